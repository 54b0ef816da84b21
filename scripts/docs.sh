#!/usr/bin/env bash
# The documentation as a site, in build/docs. Warnings are errors, links within it are checked. What builds it (extra
# `docs`) is installed when it is missing; with it in place nothing is fetched.

set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

wanted_docs() {
    "$PYTHON_VENV" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")'
}

if ! "$PYTHON_VENV" -c 'import myst_parser, numpydoc, pydata_sphinx_theme, sphinx' 2>/dev/null; then
    printf 'docs: installing what builds the documentation into .venv\n' >&2
    wanted_docs | "$PYTHON_VENV" -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -r /dev/stdin >&2
fi

bash scripts/run.sh scripts/reference.py
rm -rf build/docs
bash scripts/run.sh -m sphinx -b html -W --keep-going --quiet --nitpicky -d build/docs-cache docs build/docs
printf 'docs: build/docs/index.html\n' >&2
