#!/usr/bin/env bash
# Makes everything ready: a Python environment in .venv with pinned packages, and a JDK.
# Does nothing, in a fraction of a second, when all of it is there.
#
#   scripts/setup.sh              both
#   scripts/setup.sh --no-java    the Python environment only

set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$1"
    [ $# -lt 2 ] || say "hint: $2"
    exit 1
}

debian_root() { [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; }

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    say "installing $* (apt-get)"
    # The package lists may be missing or too old to find the files.
    apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 </dev/null ||
        { apt-get update -q >/dev/null 2>&1 </dev/null &&
            apt-get install -y -q --no-install-recommends "$@" >&2 </dev/null; }
}

# 3.11 first: the pinned versions were tried with it.
python_fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 </dev/null
}
find_python() {
    local name
    for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
        if [ -n "$name" ] && command -v "$name" >/dev/null && python_fits "$name"; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

# The stamp names all that the environment was made from, its own place included: it cannot be moved.
wanted_stamp() {
    {
        printf '%s\n' "$ROOT"
        cat pyproject.toml constraints.txt scripts/setup.sh
    } | "$PYTHON_VENV" -c 'import hashlib, sys; print(sys.version, hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}
environment_ready() {
    [ -x "$PYTHON_VENV" ] && [ -f "$VENV/setup.stamp" ] && python_fits "$PYTHON_VENV" &&
        [ "$(wanted_stamp)" = "$(cat "$VENV/setup.stamp")" ]
}

make_environment() {
    local python log="$VENV/setup.log"
    if ! { [ -x "$PYTHON_VENV" ] && python_fits "$PYTHON_VENV" && "$PYTHON_VENV" -m pip --version >/dev/null 2>&1 &&
        [ "$("$PYTHON_VENV" -c 'import sys; print(sys.prefix)')" = "$VENV" ]; }; then
        python="$(find_python)" ||
            fail "found no Python from 3.11 to 3.13" "install one, or name it: PYTHON=/path/to/python3.11 make setup"
        if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            debian_root || fail "found $python without the modules venv and ensurepip" \
                "install them: apt-get install python3-venv"
            apt_install "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        fi
        say "making .venv with $("$python" --version)"
        rm -rf "$VENV"
        "$python" -m venv "$VENV"
    fi
    rm -f "$VENV/setup.stamp"
    say "installing the pinned packages into .venv (some minutes the first time)"
    "$PYTHON_VENV" -m pip install --quiet --disable-pip-version-check --no-input \
        -c constraints.txt -e '.[dev]' >"$log" 2>&1 </dev/null ||
        {
            tail -n 40 "$log" >&2
            fail "could not install the packages" "see .venv/setup.log; is the package index reachable?"
        }
    # Spark looks for modules named pyspark_* along sys.path, where an editable install alone does not show.
    printf '%s\n' "$ROOT" >"$("$PYTHON_VENV" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/spark_timely_root.pth"
    wanted_stamp >"$VENV/setup.stamp"
    say "environment ready"
}

check_java() {
    find_java && return 0
    local package
    if debian_root; then
        for package in openjdk-17-jdk-headless openjdk-21-jdk-headless; do
            if apt_install "$package" && find_java; then
                say "JDK ready"
                return 0
            fi
        done
    fi
    fail "found no full JDK 17 or 21 (Spark 4.2 needs one, with the module jdk.incubator.vector)" \
        "install one, e.g. 'apt-get install openjdk-17-jdk-headless' or 'brew install openjdk@17', or set JAVA_HOME"
}

# One at a time: `make test` and `make demo` may be started together.
if command -v flock >/dev/null; then
    exec 9>"${TMPDIR:-/tmp}/spark-timely-setup-$(id -u).lock"
    flock 9
fi
environment_ready || make_environment
[ "${1:-}" = --no-java ] || check_java
