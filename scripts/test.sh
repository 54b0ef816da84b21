#!/usr/bin/env bash
# The whole suite in two runs: what needs neither Spark nor kills on all cores; then the rest in three processes, file by
# file, the longest first, each with one Spark session: jobs of their own start there again and again, and each process
# waits a quarter of its time for an end of something. They are all in three folders: the others are not collected again.
# Arguments go to both runs; a choice (-k) may leave one of them empty, not both.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Each JVM maps Spark's classes from an archive: without it loading them is half of what one that lives for seconds does.
# It is written beside the first run, which needs none.
archive="$PWD/build/spark-classes.jsa"
bash scripts/run.sh -m tests.class_archive "$archive" &
archiving=$!

INTERRUPTED=2 # or nothing could be collected
NOTHING_FOUND=5
plain=0
bash scripts/pytest.sh -n auto -m "not spark and not connect and not faults and not long and not bench" \
    --junitxml=build/test-report-plain.xml --durations=10 tests "$@" || plain=$?
archived=0
wait "$archiving" || archived=$?
[ "$plain" -ne "$INTERRUPTED" ] || exit "$plain"
if [ "$archived" -eq 0 ]; then
    export JAVA_TOOL_OPTIONS="${JAVA_TOOL_OPTIONS:-} -XX:SharedArchiveFile=\"$archive\" -Xlog:disable -Xlog:all=error:stderr"
fi
rest=0
bash scripts/pytest.sh -n 3 --dist loadfile --no-loadscope-reorder -m "(spark or connect or faults) and not long and not bench" \
    --junitxml=build/test-report.xml --durations=15 tests/faults tests/stores tests/spark "$@" || rest=$?

if [ "$plain" -eq "$NOTHING_FOUND" ] && [ "$rest" -eq "$NOTHING_FOUND" ]; then
    exit "$NOTHING_FOUND"
fi
for ended in "$plain" "$rest"; do
    if [ "$ended" -ne 0 ] && [ "$ended" -ne "$NOTHING_FOUND" ]; then
        exit "$ended"
    fi
done
