"""Lost commits: whether a log still has the commits that a reader has seen, so that it may continue.

A log may be put back to an earlier state, and grow again by other commits. Its id stays, and neither its frontier nor
the numbers of its commits show it. A reader that continues in another process or after a restart keeps the identities
of the newest commits (`newest_commits`), and asks for those that the log has not (`other_commits`). Replays, inputs of
dataflows, mirrors, cuts and arrangements do so.

All commits of a log are in one order, and putting it back removes the last ones. So of thousands of streams the newest
commits are enough. A change by another program that was accepted is kept among them, as the commit of a stream that
nobody can have: a reader from before it has seen other rows.

Two cases are not noticed. In one a log lost only commits whose writers' clocks were far behind, of more streams than
are kept. In the other its files were changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from spark_timely.log.machine.state import StreamState

__all__ = [
    "ACCEPTED",
    "Commits",
    "Remembers",
    "accepted_commit",
    "describe_other_commits",
    "is_accepted",
    "made_last",
    "newest_commits",
    "other_accepted",
    "other_commits",
]

Commits = Mapping[str, tuple[int, str]]
"""By stream the number of a commit, and its identity as `StreamState.identity` has it."""

ACCEPTED: Final = "#accepted"
"""The stream under which positions keep the newest change that was accepted: its number from 1 on, and its token."""

# Of one commit beside its stream's name, about.
_COMMIT_BYTES: Final = 32


def made_last(moments: Mapping[str, int], n_bytes: int, /) -> list[str]:
    """Return the streams whose commits were made last, as many as have room; at least one.

    Parameters
    ----------
    moments : mapping of str to int
        By stream the wall clock of its commit.
    n_bytes : int
        Room for all `Commits` as text, about.

    Examples
    --------
    >>> made_last({"a": 7, "b": 9, "c": 9}, 70)
    ['b', 'c']
    """
    found: list[str] = []
    for name in sorted(moments, key=lambda name: (-moments[name], name)):
        n_bytes -= len(name) + _COMMIT_BYTES
        if found and n_bytes < 0:
            break
        found.append(name)
    return found


def accepted_commit(accepted: Sequence[str], /) -> Commits:
    """Return what a position keeps of the changes that were accepted: the newest.

    Examples
    --------
    >>> accepted_commit(["9f", "04"]), accepted_commit([])
    ({'#accepted': (2, '04')}, {})
    """
    return {ACCEPTED: (len(accepted), accepted[-1])} if accepted else {}


def newest_commits(ends: Mapping[str, StreamState], n_bytes: int, accepted: Sequence[str], /) -> Commits:
    """Return the newest commits of streams; of too many those that were made last.

    Parameters
    ----------
    ends : mapping of str to StreamState
        As `spark_timely.log.Log.ends` gives them, or some of them.
    n_bytes : int
        Room for them as text, about.
    accepted : sequence of str
        Tokens of the changes that were accepted in the log.
    """
    names = made_last({name: state.at for name, state in ends.items()}, n_bytes)
    return {**{name: (ends[name].seq, ends[name].identity) for name in names}, **accepted_commit(accepted)}


class Remembers(Protocol):
    """A log, asked for its commits."""

    @property
    def accepted(self) -> tuple[str, ...]:
        """Return the tokens of the changes that were accepted, in their order."""

    def commits_of(self, wanted: Mapping[str, int]) -> Mapping[str, StreamState]:
        """Return the states right after one commit each of some streams, without those that it lacks."""

    def has_forgotten(self, stream: str, seq: int) -> bool:
        """Return whether a commit is one of those that are forgotten."""


def other_commits(log: Remembers, commits: Commits, /, *, accept: str | None = None) -> dict[str, tuple[int, str]]:
    """Return those of some commits that a log does not have, with the identity of what it has instead.

    Parameters
    ----------
    log : Remembers
        `spark_timely.log.Log` is one.
    commits : mapping of str to (int, str)
    accept : str, optional
        The token of a change: where it is the newest that was accepted, it is no difference.

    Returns
    -------
    dict of str to (int, str)
        The identity is empty where the log has no commit of this number. `#open` comes last, then `#accepted`, with the
        newest change that was accepted since. Commits that the log has forgotten are passed over: a reader that has
        seen none later is refused for what since has passed.

    Notes
    -----
    Cost: free for the newest commits; else the progress files that may hold the others are read, once each.
    """
    wanted = {stream: commits[stream] for stream in sorted(commits, reverse=True) if stream != ACCEPTED}
    states = log.commits_of({stream: seq for stream, (seq, _) in wanted.items()})
    found = {stream: state.identity for stream, state in states.items()}
    others = {
        stream: (seq, found.get(stream, ""))
        for stream, (seq, identity) in wanted.items()
        if found.get(stream) != identity and (stream in found or not log.has_forgotten(stream, seq))
    }
    return {**others, **other_accepted(log.accepted, commits, accept)}


def other_accepted(accepted: Sequence[str], commits: Commits, accept: str | None = None, /) -> Commits:
    """Return the newest change that was accepted behind a position; as without it, where the log lacks one it has seen.

    Parameters
    ----------
    accepted : sequence of str
        Of the log.
    commits : mapping of str to (int, str)
        Of the position; none has seen nothing yet.
    accept : str, optional
        The newest change, where its consumer knows of it.

    Examples
    --------
    >>> seen = {"main": (3, "c1"), "#accepted": (1, "9f")}
    >>> other_accepted(["9f"], seen), other_accepted(["9f", "04"], seen), other_accepted([], seen)
    ({}, {'#accepted': (2, '04')}, {'#accepted': (1, '')})
    >>> other_accepted(["9f", "04"], seen, "04")
    {}
    """
    n_seen, token = commits.get(ACCEPTED, (0, ""))
    if not commits or (n_seen == len(accepted) and (not accepted or accepted[-1] == token)):
        return {}
    if n_seen and (len(accepted) < n_seen or accepted[n_seen - 1] != token):
        return {ACCEPTED: (n_seen, "")}
    return {} if accepted[-1] == accept else accepted_commit(accepted)


def is_accepted(others: Commits, /) -> bool:
    """Return whether a log differs from what was seen by a change that was accepted since, and by nothing else."""
    return others.keys() == {ACCEPTED} and bool(others[ACCEPTED][1])


def describe_other_commits(path: str, others: Commits, reader: str, /) -> str:
    """Return what is said of a log that has other commits than were seen.

    Parameters
    ----------
    path : str
        Of the log.
    others : mapping of str to (int, str)
        As `other_commits` gives them; at least one.
    reader : str
        What had them.

    Examples
    --------
    >>> describe_other_commits("/in", {"b": (4, "9f"), "a": (2, "")}, "the output was made from")
    "found another commit 4 of stream 'b' in log '/in' than the output was made from, and 1 more like it"
    >>> describe_other_commits("/in", {"a": (2, "")}, "the output was made from")
    "found log '/in' without commit 2 of stream 'a', which the output was made from"
    >>> describe_other_commits("/in", {"#accepted": (1, "9f")}, "the output was made from")
    "found a change by another program, which was accepted in log '/in' as '9f', behind what the output was made from"
    """
    (stream, (seq, identity)), *more = others.items()
    if stream == ACCEPTED:
        if identity:
            return (
                f"found a change by another program, which was accepted in log {path!r} as {identity!r}, behind what"
                f" {reader}"
            )
        return f"found log {path!r} without accepted change {seq}, which is in what {reader}"
    rest = f", and {len(more)} more like it" if more else ""
    if identity:
        return f"found another commit {seq} of stream {stream!r} in log {path!r} than {reader}{rest}"
    return f"found log {path!r} without commit {seq} of stream {stream!r}, which {reader}{rest}"
