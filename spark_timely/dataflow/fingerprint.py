"""Fingerprints of plans: a hash of the operators that make an output, so that no other plan continues it unnoticed.

`engine.outputs` writes it into the notes of an output and refuses commits by another plan; a user may let one plan
replace another (`Stream.capture(…, replaces=)`). `kept_logs` names folders by it. A fingerprint is the number of its
scheme and a hash. Scheme 1 hashes each operator with the hashes of its inputs:

- what kind of operator it is, and how it is connected; the order of inputs counts;
- of a log that is read, its id; of one that the dataflow itself writes, what its streams are made by;
- conditions and computed columns: SQL as it was written, expressions with all their literals;
- columns, keys, aggregations, delays in units of the time, and other parameters;
- of functions their module and qualified name; columns that they get, where they were named, and those that they give;
- of a continual task its body, and which of its logs has which name and role there;
- types of the times, and names and types of the output's columns.

Left out is what does not distinguish one answer from another: names of operators, the order in which they were written
down, `inspect`, paths, streams and storage options, and other outputs; and of earlier versions the operators `exchange`
and `broadcast`, and evaluation by SQL. The code of functions is left out too, and what `functools.partial` gives them:
to mend a function is no change of the plan.

Invariants
----------
1. A scheme never changes: what hashes otherwise is another scheme, with another number.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_timely.dataflow.operators.texts import columns_text
from spark_timely.dataflow.views import Replay, View, leaves_of, ordered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.dataflow.logs import Sink

__all__ = ["FINGERPRINT", "Plan", "plans_of", "spool_hash"]

SCHEME: Final = 1
FINGERPRINT: Final = re.compile(r"[0-9]+:[0-9a-f]{32}")
"""What a fingerprint looks like."""

# Of an outline: for people, in every note of the output.
_MOST_CHARACTERS: Final = 500
_MOST_OF_ONE: Final = 80


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an output, as its fingerprint has it.

    Attributes
    ----------
    fingerprint : str
    outline : str
        In a few words, an operator a line.
    """

    fingerprint: str
    outline: str


def plans_of(sinks: Sequence[Sink], ids: Mapping[str, str], known: dict[View, str] | None = None) -> dict[Sink, Plan]:
    """Return the plans of the outputs of a dataflow.

    Parameters
    ----------
    sinks : sequence of Sink
        All of the dataflow.
    ids : mapping of str to str
        Ids of the logs that are read, by path. An output that is made from one without an id has no plan.
    known : dict of View to str, optional
        Hashes of operators, which are believed; those that are found are added.

    Notes
    -----
    Cost: one hash per operator.
    """
    writers: dict[str, list[Sink]] = {}
    for sink in sinks:
        writers.setdefault(sink.path, []).append(sink)
    known = {} if known is None else known
    found: dict[Sink, Plan] = {}
    for sink in _spools_first(sinks, writers):
        for view in ordered(sink.view):
            if view in known or not all(source in known for source in view.inputs):
                continue
            below = [known[source] for source in view.inputs]
            if isinstance(view, Replay) and view.path in writers:
                mine = writers[view.path]
                if all(other in found for other in mine):
                    known[view] = spool_hash([(x.stream, found[x].fingerprint) for x in mine])
            elif isinstance(view, Replay):
                if view.path in ids:
                    known[view] = _hash("replay", ids[view.path])
            else:
                hashed = view.operator.hashed(view)
                known[view] = below[0] if hashed is None else _hash(*hashed, below)
        if sink.view in known:
            times = [kind.value for kind in sink.view.domain.types]
            whole = _hash("output", times, columns_text(sink.view.schema), known[sink.view])
            found[sink] = Plan(f"{SCHEME}:{whole[:32]}", _outline(sink.view, ids, writers))
    return found


def spool_hash(streams: Sequence[tuple[str, str]]) -> str:
    """Return the hash of reading a log that the dataflow itself writes: of its streams' names and fingerprints."""
    return _hash("spool", sorted(streams))


def _spools_first(sinks: Sequence[Sink], writers: Mapping[str, Sequence[Sink]]) -> list[Sink]:
    """Return outputs, each after those that it is made from."""
    found: dict[Sink, None] = {}
    waiting = [(sink, False) for sink in sinks]
    while waiting:  # at most twice per output and use
        sink, ready = waiting.pop()
        if sink in found:
            continue
        if ready:
            found[sink] = None
        else:
            waiting.append((sink, True))
            waiting += [(other, False) for leaf in leaves_of(sink.view) for other in writers.get(leaf.path, ())]
    return list(found)


def _hash(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _outline(view: View, ids: Mapping[str, str], writers: Mapping[str, object]) -> str:
    lines: list[str] = []
    left = _MOST_CHARACTERS
    for each in ordered(view):
        if isinstance(each, Replay):
            own = each.path in writers or each.path not in ids
            line = "replay of its own output" if own else f"replay of log {ids[each.path][:8]}"
        else:
            hashed = each.operator.hashed(each)
            if hashed is None:
                continue
            line = " ".join(f"{hashed[0]} {each.operator.describe()}".split())
        line = line if len(line) <= _MOST_OF_ONE else f"{line[:_MOST_OF_ONE]}…"
        left -= len(line) + 1
        if left < 0:
            return "\n".join([*lines, "…"])
        lines.append(line)
    return "\n".join(lines)
