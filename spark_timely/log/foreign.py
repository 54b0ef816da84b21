"""Errors about rows that another program changed in a log: their words, their hints, and how to describe a change.

`describe_change` puts a `ForeignChange` into words, `changed_by_others` makes the error of those that are open, neither
undone nor accepted. `StreamStates` raises it for reads and commits; `verify` and `acceptance` report the words.

Invariants
----------
1. Nothing here reads or decides: `spark_timely.log.machine.judge` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_timely.errors import ForeignChangeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_timely.log.machine.judge import ForeignChange

# What rows of a kind of event are called.
_ROWS: Final = {
    "message": "messages",
    "progress": "rows of progress",
    "since": "rows of since",
    "retain": "rows of retainers",
    "dead": "dead letters",
}
# How many of many changes are named.
_MOST_NAMED = 3


def describe_change(change: ForeignChange) -> str:
    """Return what one entry changed, as part of a sentence.

    Examples
    --------
    >>> from spark_timely.log.machine.judge import ForeignChange
    >>> describe_change(ForeignChange(7, "DELETE", None, {"message": (5, 2)}))
    'version=7 (DELETE) with 2 messages in the place of 5'
    >>> describe_change(ForeignChange(9, "", None, {"message": (-1, -1)}))
    'version=9 with other messages than its commits brought'
    """
    if not change.operation:
        return f"version={change.version} with other messages than its commits brought"
    parts = []
    for event, (out, into) in sorted(change.changes.items()):  # one to four
        if min(out, into) < 0:
            parts.append(f"other {_ROWS[event]}")
        elif out:
            parts.append(f"{into} {_ROWS[event]} in the place of {out}")
        else:
            parts.append(f"{into} {_ROWS[event]} more")
    again = f", brought back by RESTORE in version={change.restored_at}" if change.restored_at is not None else ""
    return f"version={change.version} ({change.operation}) with {' and '.join(parts)}{again}"


def changed_by_others(attempt: str, path: str, changes: Sequence[ForeignChange]) -> ForeignChangeError:
    """Return the error for a log in which others changed rows.

    Parameters
    ----------
    attempt : str
        ``could not read log '/log'``.
    path : str
        Of the log.
    changes : sequence of ForeignChange
        By version; at least one.
    """
    named = "; ".join(describe_change(change) for change in changes[:_MOST_NAMED])
    more = f", and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
    whole, token = changes[0].restore_to, changes[0].token
    hint = (
        "restore the table to a version in which its rows were whole"
        if whole is None
        else f"restore the table to version={whole}, which is whole: RESTORE TABLE … TO VERSION AS OF {whole}; what was"
        " committed after it is to be done again"
    )
    if token:
        hint += (
            f". Where that cannot be done, `spark-timely repair LOG --accept {token}` takes the messages as they are"
        )
    return ForeignChangeError(
        f"{attempt}: found rows changed by another program: {named}{more}",
        hint=hint,
        context={"path": path, **({"token": token} if token else {})},
        changed_at=[change.version for change in changes],
    )
