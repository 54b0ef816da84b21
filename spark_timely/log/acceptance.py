"""Acceptance of a foreign change: messages that another program deleted or rewrote stay as they are now.

`Log.accept_change` and ``spark-timely repair --accept`` call `accept_change`. They pass the token that the error about
the change names. (`admission`, of like name, judges rows that come into a stream.) Readers that have a position from
before such a change are refused: replays, subscriptions, dataflows and mirrors word that error by `describe_others`.

Progress, since and retainers are never taken as others left them: their files are put back as our commits wrote them.
Messages are taken. Each commit whose messages are others now is written down once more in the ledger (`ledger`), as it
would say them. The last commit adds the token to the facts of the log, which its metadata keeps. From then on nothing
before that commit is judged again, and a position without the token is known to be from before the change.

Invariants
----------
1. Each commit is exclusive, and made from the snapshot in which the token is that of what is open.
2. Until the last one the change stays open; the same call again leads to the same, from wherever it ended.
3. Progress that cannot be put back, and messages of commits that progress does not have, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_timely.canonical.content import digest_from, digest_text
from spark_timely.errors import DataLossError, InvalidUsageError, LogDamagedError, StorageError, shown
from spark_timely.log.files.parquet_reader import read_progress
from spark_timely.log.files.statistics import describe_progress
from spark_timely.log.foreign import describe_change
from spark_timely.log.ledger import gone_rows, ledger_of, write_ledger_file
from spark_timely.log.machine.decide import MOST_ATTEMPTS, LostRaceError
from spark_timely.log.machine.lost_commits import describe_other_commits, is_accepted
from spark_timely.log.machine.state import DataFile, StreamState, batch_rows, states_by_seq
from spark_timely.log.streams import as_data_files
from spark_timely.log.verify import Tally, accepted_states, judged_states, tally_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_timely.log.core import LogCore
    from spark_timely.log.machine.judge import ForeignChange, Judgement
    from spark_timely.log.machine.lost_commits import Commits
    from spark_timely.log.store.base import Store
    from spark_timely.log.streams import StreamStates


@dataclass(frozen=True, slots=True)
class AcceptReport:
    """Report of an acceptance: what was accepted, and what was put back.

    Parameters
    ----------
    path : str
    token : str
    changes : tuple of str
        What other programs did, as sentences.
    commits : int
        Commits whose messages are others than they brought.
    more, less : int
        Messages more and less than they brought, of the commits that have more, and of those that have less.
    other : int
        Commits that have as many messages as before, and other ones.
    put_back : tuple of str
        Files of progress, since and retainers that are part of the log again.
    accepted : bool
        Whether messages are others now; else all was put back, and no reader is refused.
    table_version : int
        From which on the log is as it is.
    """

    path: str
    token: str
    changes: tuple[str, ...]
    commits: int
    more: int
    less: int
    other: int
    put_back: tuple[str, ...]
    accepted: bool
    table_version: int


def accept_change(log: LogCore, states: StreamStates, token: str) -> AcceptReport:
    """Accept what is open in a log. See `spark_timely.log.log.Log.accept_change`."""
    store = states.store
    attempt = f"could not accept a change of log {store.path!r}"
    if not isinstance(token, str) or not token:
        msg = f"{attempt}: found token={shown(token)}"
        raise InvalidUsageError(msg, hint="give the token as the error says it, which refuses the log")
    log.check_writable()
    report = AcceptReport(store.path, token, (), 0, 0, 0, 0, (), accepted=False, table_version=store.version)
    for _ in range(MOST_ATTEMPTS):
        store.refresh()
        store.look_into()
        found = store.judgement()
        if not found.open:
            return _finished(attempt, store, report, token)
        _check_token(attempt, found.open, token)
        report = replace(report, changes=tuple(dict.fromkeys([*report.changes, *map(describe_change, found.open)])))
        try:
            if found.put_back:
                report = replace(report, put_back=_put_back(attempt, store, found.put_back))
                continue
            counted = _write_down(attempt, log, states, report, found)
            store.refresh()
            left = store.judgement().open
            if not left:
                continue
            _check_token(attempt, left, token)
            form = replace(store.format, guarded_from=store.version + 1, accepted=(*store.format.accepted, token))
            store.change_facts(form, exclusive=True)
        except LostRaceError:
            continue
        store.refresh()
        store.flush()
        return replace(counted, accepted=True, table_version=store.version)
    msg = f"{attempt}: found {MOST_ATTEMPTS} lost races"
    raise StorageError(
        msg,
        hint="try again: too many others commit at once",
        context={"path": store.path},
        determinate=True,
    )


def _finished(attempt: str, store: Store, report: AcceptReport, token: str) -> AcceptReport:
    """Return the report where nothing is open any more; refuse where nothing was."""
    if report.put_back or token in store.format.accepted:
        store.flush()
        return replace(report, accepted=token in store.format.accepted, table_version=store.version)
    msg = f"{attempt}: found no change of another program"
    raise InvalidUsageError(
        msg,
        hint="nothing need be accepted: what was changed was undone, or was messages that may be forgotten",
        context={"path": store.path},
    )


def _check_token(attempt: str, changes: Sequence[ForeignChange], token: str) -> None:
    """Refuse a token that is not of all that is open."""
    now = changes[0].token
    if now == token:
        return
    named = "; ".join(map(describe_change, changes[:3]))
    if not now:
        msg = f"{attempt}: found {named}, of which progress may be lost"
        raise LogDamagedError(
            msg,
            hint="restore the table to a version in which its rows were whole",
            determinate=True,
        )
    msg = f"{attempt}: found token {now!r} of what is changed now, not {token!r}: {named}"
    raise InvalidUsageError(
        msg, hint=f"look at what has changed since, and accept it as a whole: --accept {now}", context={"token": now}
    )


def describe_others(log: LogCore, others: Commits, reader: str) -> str:
    """Return what is said of a log that has other commits than were seen: see `describe_other_commits`.

    Of a change that was accepted it says how many messages are others, and at which times. Cost: then progress is read.
    """
    found = describe_other_commits(log.path, others, reader)
    return f"{found}: {_differences(log)}" if is_accepted(others) else found


def _differences(log: LogCore) -> str:
    """Return how the messages of commits differ from those that they brought, for all changes that were accepted."""
    now = accepted_states(log)
    before = {(s.stream, s.seq): s for s in states_by_seq(log.format, log.progress())}
    pairs = [(before[key], state) for key, state in now.items() if key in before]
    if not pairs:
        return "as many messages as before, with other values"
    less = sum(max(was.rows - state.rows, 0) for was, state in pairs)
    more = sum(max(state.rows - was.rows, 0) for was, state in pairs)
    other = sum(was.rows == state.rows for was, state in pairs)
    bounds = [state.bounds for pair in pairs for state in pair if state.bounds is not None]
    said = [f"{n} {what}" for n, what in ((less, "messages less"), (more, "messages more")) if n]
    said += [f"{other} {'commit' if other == 1 else 'commits'} with other messages"] if other else []
    if not bounds:
        return ", ".join(said)
    low, high = (np.stack(bounds).min(axis=(0, 1)), np.stack(bounds).max(axis=(0, 1)))
    ends = [log.domain.render_time(tuple(end.tolist())) for end in (low, high)]
    return f"{', '.join(said)}, at times from {ends[0]} to {ends[1]}"


# Progress -------------------------------------------------------------------------------------------


def _put_back(
    attempt: str, store: Store, sides: Mapping[str, tuple[frozenset[str], frozenset[str]]]
) -> tuple[str, ...]:
    """Make the files of our commits part of the log again, in the place of those by others."""
    adds = [_file(attempt, store, event, path) for event, (missing, _) in sides.items() for path in sorted(missing)]
    removes = [
        each
        for event, (_, extra) in sides.items()
        for index in (store.live.index(event),)
        for each in as_data_files(index.select(np.array([path in extra for path in index.paths.tolist()], np.bool_)))
    ]
    store.transact(adds, [], removes=removes, exclusive=True)
    store.refresh(after_put=True)
    store.flush()
    return tuple(file.path for file in adds)


def _file(attempt: str, store: Store, event: str, path: str) -> DataFile:
    """Describe a file that was part of the log before."""
    form = store.format
    try:
        rows = read_progress(store.storage, path, form.progress_schema)
        size = store.storage.read(path).size
    except DataLossError as error:
        msg = f"{attempt}: found file {path!r} of {event} deleted, which another program took out of the table"
        raise LogDamagedError(
            msg,
            hint="restore the file from a copy, or the table to a version in which its rows were whole: progress is"
            " never taken as another program left it",
            context={"path": store.path, "file": path},
            determinate=True,
        ) from error
    return describe_progress(path, size, rows, form.domain, event=event)


# Messages -------------------------------------------------------------------------------------------


def _write_down(
    attempt: str, log: LogCore, states: StreamStates, report: AcceptReport, found: Judgement
) -> AcceptReport:
    """Commit how many messages each commit has now whose messages are others; return what is counted."""
    store, form = states.store, states.store.format
    with states.as_it_is():
        tally, problems = tally_of(log, states_by_seq(form, log.progress()))
        if problems:
            msg = f"{attempt}: found {problems[0]}"
            raise LogDamagedError(
                msg, hint="restore what is lost before", context={"path": store.path}, determinate=True
            )
        newest = dict(states.newest())
        _check_beyond(attempt, store, tally, newest)
        accepted = accepted_states(log)
        known = [accepted.get((state.stream, state.seq), state) for state in judged_states(log)]
    # Commits that the token is not of stay as they are, and `verify` names them.
    touched = [state for state in known if _is_touched(state, found)]
    pairs = [(state, now) for state in touched for now in (_restated(state, tally, report.token),) if now is not None]
    rows = [batch_rows(form, now) for _, now in pairs]
    ledger = ledger_of(store)
    should = ledger.messages(form, newest)
    off = 0 if should is None else should - sum(tally.rows.values())
    if off:
        rows.append(gone_rows(store, ledger.gone + off, report.token))
    if rows:
        file = write_ledger_file(store, pa.concat_tables(rows))
        store.transact([file], [], exclusive=True)
        store.flush()
    return replace(
        report,
        commits=len(pairs),
        more=sum(max(now.rows - was.rows, 0) for was, now in pairs),
        less=sum(max(was.rows - now.rows, 0) for was, now in pairs),
        other=sum(now.rows == was.rows for was, now in pairs),
    )


def _is_touched(state: StreamState, found: Judgement) -> bool:
    """Return whether a commit is among those that may have other messages by what is accepted."""
    if found.commits is None:
        return True
    return any(first <= state.stream <= last and low <= state.seq <= high for first, last, low, high in found.commits)


def _restated(state: StreamState, tally: Tally, token: str) -> StreamState | None:
    """Return a commit as it would say the messages that it has now; None if it does."""
    key = (state.stream, state.seq)
    rows, bounds = tally.rows.get(key, 0), tally.bounds.get(key)
    same_bounds = (state.bounds is None) == (bounds is None) and (
        bounds is None or np.array_equal(bounds, np.asarray(state.bounds))
    )
    said, found = digest_from(state.note.content), tally.digests.get(key) if rows else None
    if rows == state.rows and same_bounds and (said is None or found == said):
        return None
    content = None if said is None or found is None else digest_text(found)
    return replace(state, n_rows=rows, bounds=bounds, reason=token, note=replace(state.note, content=content))


def _check_beyond(attempt: str, store: Store, tally: Tally, newest: Mapping[str, StreamState]) -> None:
    """Refuse messages of commits that no stream has made: a later commit would have the same number."""
    beyond = [(stream, seq) for stream, seq in tally.rows if stream not in newest or seq > newest[stream].seq]
    if not beyond:
        return
    stream, seq = min(beyond)
    made = f"up to {newest[stream].seq}" if stream in newest else "none of this name"
    msg = f"{attempt}: found messages with _seq={seq} of stream {stream!r}, whose commits are {made}"
    raise LogDamagedError(
        msg,
        hint="delete them, and accept what the next error names: DELETE FROM the table WHERE _event = 'message' AND"
        f" _stream = {stream!r} AND _seq >= {seq}",
        context={"path": store.path, "stream": stream, "seq": seq},
        determinate=True,
    )
