#!/usr/bin/env bash
# Lanes beside the suite: other packages, other versions. Each makes an environment of its own below build/lanes, and
# runs there the tests that are about it. Needs the package index.
#
#   scripts/lane.sh base         without optional packages
#   scripts/lane.sh spark        the newest pyspark 4.2.x
#   scripts/lane.sh python       Python 3.13; VERSION=3.12 for another one
#   scripts/lane.sh features     what is found in pyspark 4.0 and 4.1
#   scripts/lane.sh databricks   the packages of Databricks' environment version 5
#
# More arguments go to pytest.

set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
# shellcheck source=scripts/venv.sh
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
cd "$ROOT"
find_java || true
# Spark's workers are those of the lane's environment.
unset PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON

lane="${1:-}"
[ $# -eq 0 ] || shift
venv="build/lanes/$lane"
mkdir -p build/lanes
NOT_HERE="not spark and not connect and not faults and not long and not bench"

# The pins without those of the packages $@, which a lane is about.
pins_but() {
    local names
    names="$(IFS='|' && printf '%s' "$*")"
    grep -viE "^(${names//-/[-_]})==" constraints.txt >"build/lanes/$lane.constraints"
    printf '%s\n' "build/lanes/$lane.constraints"
}

tested_by() {
    install_into "$venv" "$@" pytest pytest-timeout pytest-xdist hypothesis packaging
}

run_tests() {
    say "$("$venv/bin/python" --version), $("$venv/bin/python" -m pip list 2>/dev/null | sed -nE 's/^(pyspark|pyspark-client|pyarrow|numpy|pandas|deltalake) +/\1 /p' | paste -sd , -)"
    PYSPARK_PYTHON="$ROOT/$venv/bin/python" PYSPARK_DRIVER_PYTHON="$ROOT/$venv/bin/python" \
        nice "$venv/bin/python" -m pytest -q --durations=3 "$@"
}

# Files of tests without a JVM that name neither one of the modules $@ nor what is about Spark or about our own tools.
files_without() {
    local names ours='spark_timely\.(spark|sink|datasource|testing\.driver)\b|tests\.(pages|mutants|property import|spark|faults|unit\.(spark|sink|datasource))\b'
    names="$(IFS='|' && printf '%s' "$*")"
    grep -rLE --include='test_*.py' "^ *(from|import) ($names)\b|$ours" \
        tests/unit tests/property tests/conformance tests/golden | grep -v '^tests/unit/spark/' | sort
}

case "$lane" in
    base)
        make_venv "$venv" "$PYTHON_VENV"
        tested_by -c constraints.txt -e .
        "$venv/bin/python" scripts/try_extra.py alone
        mapfile -t files < <(files_without pyspark pandas delta numba yaml databricks)
        run_tests -n auto -m "$NOT_HERE" "${files[@]}" "$@"
        ;;
    spark)
        make_venv "$venv" "$PYTHON_VENV"
        tested_by -c "$(pins_but pyspark delta-spark)" -e '.[spark]' 'pyspark>=4.2,<4.3'
        # It refuses to be installed beside a later pyspark; the tests' session asks for it.
        install_into "$venv" --no-deps -c constraints.txt delta-spark importlib_metadata zipp chispa prettytable wcwidth
        "$venv/bin/python" scripts/try_extra.py spark
        run_tests tests/spark/test_sink.py tests/spark/test_source.py tests/spark/test_foreach_batch.py "$@"
        ;;
    python)
        version="${VERSION:-3.13}"
        python="$(python_of "$version")" ||
            fail "found no Python $version" "install one, or name another: make lane-python VERSION=3.12"
        make_venv "$venv" "$python"
        install_into "$venv" -c constraints.txt -e '.[dev]'
        "$venv/bin/python" scripts/try_extra.py spark
        run_tests -n auto -m "$NOT_HERE" tests/unit tests/property tests/conformance tests/golden "$@"
        ;;
    features)
        make_venv "$venv" "$PYTHON_VENV"
        tested_by -c "$(pins_but pyspark)" -e .
        # Only Python modules are needed, and pyspark-client has no others. What is expected: admission control, sink.
        for expected in '4.0 False False' '4.1 False True'; do
            install_into "$venv" --no-deps "pyspark-client==${expected%% *}.*"
            found="$("$venv/bin/python" -c 'import pyspark
from spark_timely.spark.base import compat
import spark_timely.datasource.spark_readers, spark_timely.sink.writer
print(pyspark.__version__[:3], compat.ADMISSION_CONTROL, compat.ARROW_SINK)')"
            [ "$found" = "$expected" ] || fail "found features '$found', not '$expected'" "see spark_timely/spark/base/compat.py"
            # Without the tests of what admission control alone can do.
            run_tests tests/unit/spark/base/test_compat.py tests/unit/datasource/test_source.py \
                -k 'not (on_disk or needs_no_log or carrier or admission)' "$@"
        done
        ;;
    databricks)
        # As docs/how-to/databricks.md says where this is from. The client's licence is not a free one: not installed here.
        python="$(python_of 3.12)" || fail "found no Python 3.12, which Databricks has" "install one"
        make_venv "$venv" "$python"
        tested_by -c "$(pins_but pyspark pyarrow numpy pandas)" -e . 'pyarrow<25' numpy==2.1.3 pandas==2.2.3
        "$venv/bin/python" scripts/try_extra.py base
        mapfile -t files < <(files_without pyspark delta numba yaml databricks)
        run_tests -n auto -m "$NOT_HERE" "${files[@]}" "$@"
        ;;
    *)
        sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
esac
