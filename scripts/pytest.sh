#!/usr/bin/env bash
# Runs pytest with its files in memory where there is room: much of what tests wait for are flushes to a disk. The long
# lane, and a run with TMPDIR set, have them where they would be.

set -euo pipefail
SHARED=/dev/shm
ROOM_KB=$((6 * 1024 * 1024)) # the whole suite takes one of these gigabytes

free_kb() { # of the folder, and of the machine's memory: the lesser
    local folder memory
    folder="$(df -k --output=avail "$SHARED" 2>/dev/null | tail -n 1)" || true
    memory="$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo 2>/dev/null)" || true
    folder="${folder:-0}" memory="${memory:-0}"
    echo $((folder < memory ? folder : memory))
}

own=()
if [ -z "${TMPDIR:-}" ] && [ "${SPARK_TIMELY_LONG:-0}" = 0 ] && [ -w "$SHARED" ] && [ "$(free_kb)" -gt "$ROOM_KB" ]; then
    TMPDIR="$(mktemp -d "$SHARED/tests-XXXXXX")"
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
    own=(--basetemp "$TMPDIR/p") # no longer than on a disk: errors that are kept have a greatest length
fi
bash "$(dirname "${BASH_SOURCE[0]}")/run.sh" -m pytest ${own[@]+"${own[@]}"} "$@"
