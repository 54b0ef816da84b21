#!/usr/bin/env bash
# Runs Python of the project's environment from the project's root: scripts/run.sh -m pytest tests/unit
# The console scripts of an environment are not used: their first line breaks where the path has spaces.

set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
find_java || true # what needs no JVM runs without one
exec "$PYTHON_VENV" "$@"
