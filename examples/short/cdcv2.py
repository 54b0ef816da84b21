"""Differential's CDCv2: messages in any order and any number of copies, one answer.

Prints::

    4 messages: 3 updates added
    frontier of the stream: 3
    contents as of 2: [{'value': 'ship', '_diff': 2}]
"""

from __future__ import annotations

import json
from pathlib import Path

import spark_timely
from spark_timely.cli import main

messages = [
    {"progress": {"lower": [0], "upper": [3], "counts": [[1, 2], [2, 1]]}},
    {"updates": [["dock", 2, -1]]},
    {"updates": [["ship", 1, 2], ["dock", 1, 1]]},
    {"updates": [["dock", 2, -1]]},  # a copy
]
Path("messages.jsonl").write_text("".join(json.dumps(message) + "\n" for message in messages))

main(["import", "log", "messages.jsonl", "--time", "u64", "--record", "String", "--format", "cdcv2"])

log = spark_timely.open_log("log")
print("contents as of 2:", log.snapshot(2).to_pylist())
