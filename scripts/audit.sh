#!/usr/bin/env bash
# Looks up the pinned packages among known vulnerabilities. Fails where there is one, and where no advisory service can be
# reached, or does not know a package: then nothing is known (`--strict`; without it that ends well).

set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
# shellcheck source=scripts/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
cd "$ROOT"

tools="build/release/tools"
mkdir -p build/release
[ -x "$tools/bin/pip-audit" ] || {
    make_venv "$tools" "$PYTHON_VENV"
    mapfile -t wanted < <(wanted_of release)
    install_into "$tools" -c constraints.txt "${wanted[@]}"
}
log="build/release/audit.log"
ended=0
"$tools/bin/python" -m pip_audit --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off --timeout 15 "$@" \
    >"$log" 2>&1 </dev/null || ended=$?
cat "$log"
# It ends with 1 for a vulnerability and for a service that does not answer alike.
if [ "$ended" -ne 0 ] && ! grep -qE '^Found [0-9]+ known vulnerabilit' "$log"; then
    fail "could not look up known vulnerabilities: nothing is known of these packages" \
        "run it where an advisory service can be reached; see $log"
fi
exit "$ended"
