#!/usr/bin/env bash
# Type check. mypy does not follow the mapping of package-dir in pyproject.toml, so it is shown a tree
# of links in which every package is where its name says.

set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

tree=build/types
rm -rf "$tree"
mkdir -p "$tree/spark_timely"
for entry in spark_timely/*; do
    [ "$(basename "$entry")" = __pycache__ ] || ln -s "../../../$entry" "$tree/$entry"
done
for package in conf datasource sink; do ln -s "../../../$package" "$tree/spark_timely/$package"; done
ln -s ../../pyspark_timely.py "$tree/pyspark_timely.py"
for file in api wrong; do ln -s "../../tests/typing/$file.py" "$tree/typed_$file.py"; done

set +e
(cd "$tree" && MYPYPATH=. "$PYTHON_VENV" -m mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache \
    -p spark_timely -m pyspark_timely -m typed_api -m typed_wrong "$@") |
    sed -E 's#^spark_timely/(conf|datasource|sink)/#\1/#; s#^typed_(api|wrong)\.py#tests/typing/\1.py#'
exit "${PIPESTATUS[0]}"
