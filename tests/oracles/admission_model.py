"""How far a micro-batch may go and who reads what, by dictionaries and loops.

Shares no code with the library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from tests.oracles.replay_model import Frontier, Time, is_beyond, minimal

File = Mapping[Time, int]


def in_range(times: Iterable[Time], lower: Iterable[Time], upper: Iterable[Time]) -> list[Time]:
    """Return the times that are beyond `lower` and not beyond `upper`."""
    low, high = list(lower), list(upper)
    return [time for time in times if is_beyond(time, low) and not is_beyond(time, high)]


def admitted(
    files: Sequence[File],
    sizes: Sequence[int],
    lower: Iterable[Time],
    upper: Iterable[Time],
    limits: Mapping[str, int],
    align: int | None = None,
) -> tuple[list[Time], Frontier]:
    """Return the times taken and the frontier reached.

    `limits` may name times, files, rows and size_bytes. Times are added one by one, as long as all limits
    hold; the first is always taken. With `align`, times of one multiple of it are added together.
    """
    low, high = list(lower), list(upper)
    candidates = sorted({time for file in files for time in in_range(file, low, high)})
    taken: list[Time] = []
    steps: dict[object, list[Time]] = {}
    for time in candidates:
        steps.setdefault(time if align is None else math.floor(Fraction(time[0], align)), []).append(time)
    for times in steps.values():
        trial = [*taken, *times]
        touched = [number for number, file in enumerate(files) if any(t in file for t in trial)]
        used = {
            "times": Fraction(len(trial)),
            "files": Fraction(len(touched)),
            "rows": Fraction(sum(file.get(t, 0) for file in files for t in trial)),
            "size_bytes": sum(
                (Fraction(sizes[n] * files[n].get(t, 0), sum(files[n].values())) for n in touched for t in trial),
                Fraction(0),
            ),
        }
        # Half a byte too many is none: shares of files are fractions.
        if taken and any(used[name] > limit + Fraction(1, 2) for name, limit in limits.items()):
            break
        taken += times
    rest = [time for time in candidates if time not in taken]
    if align is not None:
        rest = [(math.floor(Fraction(time[0], align)) * align,) for time in rest]
    return taken, minimal([*rest, *high])
