#!/usr/bin/env bash
# The whole suite in two runs side by side. In the foreground what needs Spark or kills, file by file, the longest first,
# in two or three processes, each with one Spark session: jobs of their own start there again and again, and each process
# waits a quarter of its time for an end of something. What needs neither runs on all cores where these leave them, and
# is shown at the end; it is in build/test-plain.txt before.
# Arguments go to both runs; a choice (-k) may leave one of them empty, not both.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

NOTHING_FOUND=5
mkdir -p build
plain_output=build/test-plain.txt

set -m # in a group of its own: what interrupts this interrupts all of that
nice -n 10 bash scripts/pytest.sh -n auto -m "not spark and not connect and not faults and not long and not bench" \
    --junitxml=build/test-report-plain.xml --durations=10 tests "$@" >"$plain_output" 2>&1 &
plain_process=$!
set +m
trap 'kill -INT -- "-$plain_process" 2>/dev/null' INT TERM

# Each JVM maps Spark's classes from an archive: without it loading them is half of what one that lives for seconds does.
archive="$PWD/build/spark-classes.jsa"
if bash scripts/run.sh -m tests.class_archive "$archive"; then
    export JAVA_TOOL_OPTIONS="${JAVA_TOOL_OPTIONS:-} -XX:SharedArchiveFile=\"$archive\" -Xlog:disable -Xlog:all=error:stderr"
fi
sessions=2
[ "$(getconf _NPROCESSORS_ONLN)" -le 2 ] || sessions=3
rest=0
bash scripts/pytest.sh -n "$sessions" --dist loadfile --no-loadscope-reorder \
    -m "(spark or connect or faults) and not long and not bench" \
    --junitxml=build/test-report.xml --durations=15 tests/faults tests/stores tests/spark "$@" || rest=$?

plain=0
wait "$plain_process" || plain=$?
cat "$plain_output"

if [ "$plain" -eq "$NOTHING_FOUND" ] && [ "$rest" -eq "$NOTHING_FOUND" ]; then
    exit "$NOTHING_FOUND"
fi
for ended in "$plain" "$rest"; do
    if [ "$ended" -ne 0 ] && [ "$ended" -ne "$NOTHING_FOUND" ]; then
        exit "$ended"
    fi
done
