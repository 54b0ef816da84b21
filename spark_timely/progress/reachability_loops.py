"""The inner loops of reachability: propagate frontiers along the arcs of a graph until nothing changes.

The `Tracker` of `reachability` calls them, and nothing else does: that module knows operators and ports, this one only
integers in arrays.

A graph has vertices 0…n-1, called *positions*, in an order of work: every arc between strongly connected components
leads to a higher position; a component occupies a run of positions, and inside it every arc without a step leads
to a higher position. What is held at a position (its pointstamps) is a counted antichain: records in a pool, found
by hashing position and time, and chained by position in the order of times. The frontier *implied* at a position
consists of the minima of the times held there and of what the arcs to it make of the frontiers at their tails. A
position is settled again when one of these moves. Antichains are kept in lexicographic order: then two of them are
merged, or compared, in one pass, and only what comes earlier can be less or equal to an element.

The pool stands for one `MutableAntichain` per port: a propagation may change counts at every port, in compiled loops
for about 0.3 microseconds each, where a `MutableAntichain` takes 1.5.

Every loop is written once and takes one-dimensional arrays only. For a large graph numba compiles it, where it is
installed. A small graph is worth neither loading numba nor compiling: there the same function runs as it is, over
lists, which the interpreter indexes several times faster than arrays.

Invariants
----------
1. After `carry` has returned True the frontier at every position is what its arcs and pointstamps imply. Only one
   assignment of frontiers has this property, because every cycle advances times.
2. No frontier holds a time that no path leads to, at any moment while a component is worked on: `_open` first takes
   away all that is implied there. So no time climbs round and round.
3. `carry` may return False for want of room between any two positions, and continues there when called again.
4. No sum leaves the 64-bit integers, so compiled and interpreted loops give the same answers.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FunctionType, ModuleType
from typing import NamedTuple, TypeAlias

__all__ = ["SMALL", "Held", "Ints", "Links", "Loops", "loops_for"]

# A graph of no more vertices is worked on by interpreted loops: about 1 microsecond per vertex that moves.
SMALL = 256

# Fields of a pool record; the coordinates of the time follow. An antichain is its number of elements, and their times.
OWNER, COUNT, NEXT, CHAIN, TIME = range(5)
# Scalars of `Held.st`: records of the pool that are used; where free room for antichains begins; positions that moved
# since the last reading; times with a positive count; end of the component that was opened.
USED, TOP, MOVED, HOLDING, OPENED, SCALARS = range(6)
NONE, UNTOUCHED = -1, -2
BLOCK = 64
# Integers: a list or, for compiled loops, a one-dimensional array.
Ints: TypeAlias = "list[int]"
_HASH = (1 << 40) - 1


class Links(NamedTuple):
    """The arcs of a graph, by head and by tail."""

    steps: Ints  # rows of steps, flat; row 0 holds zeros
    limits: Ints  # for each step the greatest number that it can be added to
    in_first: Ints  # (n + 1): where the arcs to each position begin
    in_tails: Ints
    in_steps: Ints  # rows of the steps
    out_first: Ints
    out_heads: Ints
    ends: Ints  # (n): end of the position's component; 0 where it is a component alone


class Held(NamedTuple):
    """The pointstamps held and the frontiers implied at each position."""

    st: Ints  # the scalars
    pool: Ints  # records, flat
    buckets: Ints  # first record by hash
    points: Ints  # (n): first record of each position, in lexicographic order
    lasts: Ints  # (n): last one, if there is a first one
    elements: Ints  # antichains, flat, each in lexicographic order; of one coordinate two places for each position
    fronts: Ints  # (n): where the frontier implied at each position begins, or `NONE`
    old: Ints  # (n): where what was implied before this call begins, or `NONE`, or `UNTOUCHED`
    moved: Ints  # (n): positions that are not untouched
    marks: Ints  # (n): 1 where a position is to be settled
    blocks: Ints  # number of marks in each run of `BLOCK` positions


class Loops(NamedTuple):
    """The loops for one graph, and whether they are compiled."""

    run: ModuleType
    compiled: bool


def loops_for(n_vertices: int) -> Loops:
    """Return the loops for a graph of that size.

    Examples
    --------
    >>> loops_for(10).compiled
    False
    """
    return _compiled() if n_vertices > SMALL else Loops(sys.modules[__name__], compiled=False)


@cache
def _compiled() -> Loops:
    from spark_timely.progress.kernels import COMPILED, njit

    plain = sys.modules[__name__]
    if not COMPILED:
        return Loops(plain, compiled=False)
    # The same code among globals that are the compiled functions.
    module = ModuleType(__name__)
    scope = vars(module)
    scope.update(vars(plain))
    for name, loop in list(scope.items()):
        if isinstance(loop, FunctionType) and loop.__module__ == __name__:
            scope[name] = njit(FunctionType(loop.__code__, scope, name))
    return Loops(module, compiled=True)


def components(n: int, out: Ints, heads: Ints, into: Ints, tails: Ints, scratch: Ints, which: Ints) -> int:
    """Find the strongly connected components; return their number.

    `out` and `heads` are the arcs by tail, `into` and `tails` by head. `which` is given as -1 throughout and receives
    each vertex's component, numbered so that arcs lead to equal or higher numbers. `scratch` has 3n entries.
    Cost: O(n + arcs).
    """
    at, stack, found = 0, n, 2 * n
    count = 0
    for v in range(n):
        scratch[at + v] = NONE
    for root in range(n):  # the vertices in the order in which a search in depth leaves them
        depth = NONE
        v = root
        while scratch[at + v] < 0 or depth >= 0:
            if scratch[at + v] < 0:
                scratch[at + v] = out[v]
                depth += 1
                scratch[stack + depth] = v
            if scratch[at + v] < out[v + 1]:
                w = heads[scratch[at + v]]
                scratch[at + v] += 1
                if scratch[at + w] < 0:
                    v = w
            else:
                scratch[found + count] = v
                count += 1
                depth -= 1
                v = scratch[stack + max(depth, 0)]
    number = 0
    for i in range(n - 1, -1, -1):  # in the opposite order, and against the arcs
        root = scratch[found + i]
        if which[root] < 0:
            which[root] = number
            scratch[stack] = root
            depth = 1
            while depth > 0:
                depth -= 1
                v = scratch[stack + depth]
                for arc in range(into[v], into[v + 1]):
                    w = tails[arc]
                    if which[w] < 0:
                        which[w] = number
                        scratch[stack + depth] = w
                        depth += 1
            number += 1
    return number


def _bucket(owner: int, times: Ints, base: int, k: int, mask: int) -> int:
    """Return the hash bucket of a time, `times[base:base + k]`, at an owner.

    Neighbours that hold the same time are neighbours in the table: this is what a graph at work looks like.
    """
    h = 0
    for j in range(k):
        # Products may wrap when compiled: the bits that are kept are the same.
        h = (h * 1000003 + times[base + j]) & _HASH
    h = (h * 2654435761) & _HASH
    return ((h >> 8) + owner) & mask


def _find(pool: Ints, r: int, p: int, times: Ints, base: int, k: int) -> int:
    """Return the record of a time at a position, given the first one of its bucket, or -1."""
    while r >= 0:
        if pool[r + OWNER] == p:
            j = 0
            while j < k and pool[r + TIME + j] == times[base + j]:
                j += 1
            if j == k:
                break
        r = pool[r + CHAIN]
    return r


def _precedes(left: Ints, a: int, right: Ints, b: int, k: int) -> bool:
    """Tell whether a time comes before another in lexicographic order."""
    for j in range(k):
        if left[a + j] != right[b + j]:
            return left[a + j] < right[b + j]
    return False


def _new_record(held: Held, p: int, times: Ints, base: int, k: int, bucket: int) -> int:
    """Put a time into the pool, and among those of its position. Cost: O(times there that come before it) or O(1)."""
    st, pool, points, lasts = held.st, held.pool, held.points, held.lasts
    r = st[USED] * (TIME + k)
    st[USED] += 1
    pool[r + OWNER] = p
    pool[r + COUNT] = 0
    pool[r + CHAIN] = held.buckets[bucket]
    held.buckets[bucket] = r
    for j in range(k):
        pool[r + TIME + j] = times[base + j]
    before = lasts[p] if points[p] >= 0 else NONE
    after = NONE
    if before >= 0 and _precedes(times, base, pool, before + TIME, k):  # most times come after all others
        before = NONE
        after = points[p]
        while _precedes(pool, after + TIME, times, base, k):
            before = after
            after = pool[after + NEXT]
    pool[r + NEXT] = after
    if before < 0:
        points[p] = r
    else:
        pool[before + NEXT] = r
    if after < 0:
        lasts[p] = r
    return r


def _mark(marks: Ints, blocks: Ints, p: int) -> None:
    """Have a position settled."""
    if marks[p] == 0:
        marks[p] = 1
        blocks[p // BLOCK] += 1


def _next(n: int, marks: Ints, blocks: Ints, start: int) -> int:
    """Return the first marked position from `start` on, or `n`."""
    p = start
    while p < n:
        if blocks[p // BLOCK] == 0:
            p = (p // BLOCK + 1) * BLOCK
        elif marks[p]:
            return p
        else:
            p += 1
    return n


def _matters(elements: Ints, first: int, times: Ints, base: int, k: int, count: int) -> bool:
    """Tell whether a frontier may move when the count of a time at its position becomes, or is no longer, positive."""
    for row in range(elements[first] if first >= 0 else 0):
        less = same = True
        for j in range(k):
            x = elements[first + 1 + row * k + j]
            if x != times[base + j]:
                same = False
                if x > times[base + j]:
                    less = False
        if same or (less and count > 0):
            return count <= 0
    return count > 0


def enter(held: Held, k: int, n_updates: int, at: Ints, times: Ints, diffs: Ints) -> None:
    """Enter changes of pointstamps, times flat; the pool must have room for a record each.

    Cost: O(changes · k), and for a new time the search for its place. Records whose count is 0 keep their place, until
    they come first or room is made.
    """
    st, pool, elements, fronts, marks = held.st, held.pool, held.elements, held.fronts, held.marks
    mask = len(held.buckets) - 1
    for u in range(n_updates):
        p = at[u]
        base = u * k
        bucket = _bucket(p, times, base, k, mask)
        r = _find(pool, held.buckets[bucket], p, times, base, k)
        if r < 0:
            r = _new_record(held, p, times, base, k, bucket)
        before = pool[r + COUNT]
        after = before + diffs[u]
        pool[r + COUNT] = after
        if (before > 0) != (after > 0):
            st[HOLDING] += 1 if after > 0 else -1
            if marks[p] == 0 and _matters(elements, fronts[p], times, base, k, after):
                _mark(marks, held.blocks, p)


def _beyond(elements: Ints, first: int, count: int, k: int) -> bool:
    """Return whether one of `count` elements, the first one given, is less or equal to the time that follows them.

    The elements and the time are in lexicographic order: of two coordinates the last element has the least second one.
    """
    time = first + count * k
    for row in range(max(count - 1, 0) if k <= 2 else 0, count):
        j = 0
        while j < k and elements[first + row * k + j] <= elements[time + j]:
            j += 1
        if j == k:
            return True
    return False


def _minima(pool: Ints, r: int, elements: Ints, into: int, k: int) -> int:
    """Write the minima of the times with a positive count, given by their first record.

    Returns where free room begins behind the antichain, or `NONE` if there is too little.
    """
    if into >= len(elements):
        return NONE
    found, to = 0, into + 1
    while r >= 0:
        if pool[r + COUNT] > 0:
            if to + k > len(elements):
                return NONE
            for j in range(k):
                elements[to + j] = pool[r + TIME + j]
            if not _beyond(elements, into + 1, found, k):
                found += 1
                to += k
        r = pool[r + NEXT]
    elements[into] = found
    return to


def _merge(links: Links, elements: Ints, one: int, other: int, into: int, step: int, k: int) -> int:
    """Write the minima of an antichain, or of none, and of what a step makes of another one.

    Returns where free room begins behind the antichain, or `NONE` if there is too little.
    """
    steps, limits = links.steps, links.limits
    count = elements[one] if one >= 0 else 0
    more = elements[other]
    if into + 1 + (count + more) * k > len(elements):
        return NONE
    found, to, a, b = 0, into + 1, one + 1, other + 1
    while count > 0 or more > 0:
        if more > 0:
            j = 0
            while j < k and elements[b + j] <= limits[step + j]:
                j += 1
            if j < k:  # past the greatest time nothing follows
                more -= 1
                b += k
                continue
        j = 0
        while count > 0 and more > 0 and j < k and elements[a + j] == elements[b + j] + steps[step + j]:
            j += 1
        if count > 0 and (more == 0 or j == k or elements[a + j] < elements[b + j] + steps[step + j]):
            for i in range(k):
                elements[to + i] = elements[a + i]
            count -= 1
            a += k
        else:
            for i in range(k):
                elements[to + i] = elements[b + i] + steps[step + i]
            more -= 1
            b += k
        if not _beyond(elements, into + 1, found, k):
            found += 1
            to += k
    elements[into] = found
    return to


def _same(elements: Ints, one: int, other: int, k: int) -> bool:
    """Tell whether two antichains, or none, are the same."""
    if one < 0 or other < 0:
        return one == other
    for i in range(1 + elements[one] * k):  # noqa: SIM110 - compiled code has no generators
        if elements[one + i] != elements[other + i]:
            return False
    return True


def compact(held: Held, k: int, into: Ints) -> None:
    """Copy the antichains that are in use, one behind the other. Cost: O(positions + elements copied)."""
    elements, top = held.elements, 0
    for starts in (held.fronts, held.old):
        for p in range(len(starts)):
            first = starts[p]
            if first >= 0:
                starts[p] = top
                for i in range(1 + elements[first] * k):
                    into[top] = elements[first + i]
                    top += 1
    held.st[TOP] = top


def _open(held: Held, links: Links, p: int) -> int:
    """Take the frontiers of a component away, for them to be found again; return where it begins."""
    st, fronts, old, ends = held.st, held.fronts, held.old, links.ends
    st[OPENED] = ends[p]
    while p > 0 and ends[p - 1] == st[OPENED]:
        p -= 1
    for q in range(p, st[OPENED]):
        if fronts[q] >= 0:
            if old[q] == UNTOUCHED:
                old[q] = fronts[q]
                held.moved[st[MOVED]] = q
                st[MOVED] += 1
            fronts[q] = NONE
            _mark(held.marks, held.blocks, q)
    return p


def carry(links: Links, held: Held, k: int) -> bool:
    """Bring the frontiers of all positions up to date; return False where there is no room.

    The caller then makes room for antichains, and calls again. Cost: O(arcs at positions that are settled · elements
    of the frontiers there), with more than two coordinates times the elements. A position outside of cycles is
    settled once; a component of which one is to be settled is found again as a whole. Times of one coordinate always
    have room.
    """
    steps, limits, in_first, in_tails, in_steps, out_first, out_heads, ends = links
    st, pool, _, points, _, elements, fronts, old, moved, marks, blocks = held
    n = len(points)
    best = top = 0
    back = False
    p = _next(n, marks, blocks, 0)
    while p < n:
        end = ends[p]
        if end > 0 and end != st[OPENED]:
            p = _next(n, marks, blocks, _open(held, links, p))
        before = fronts[p]
        first = NONE
        r = points[p]
        while r >= 0 and pool[r + COUNT] == 0:  # what has no count is forgotten
            pool[r + OWNER] = NONE
            r = pool[r + NEXT]
            points[p] = r
        if k == 1:  # the order is total: a short way to the same
            while r >= 0 and pool[r + COUNT] <= 0:
                r = pool[r + NEXT]
            found = 0
            if r >= 0:
                found = 1
                best = pool[r + TIME]
            for arc in range(in_first[p], in_first[p + 1]):
                e = fronts[in_tails[arc]]
                if e >= 0:
                    time = elements[e + 1]
                    step = in_steps[arc]
                    if time <= limits[step] and (found == 0 or time + steps[step] < best):
                        found = 1
                        best = time + steps[step]
            changed = found == 0 or elements[before + 1] != best if before >= 0 else found == 1
        else:
            top = st[TOP]
            if r >= 0:
                first = top
                top = _minima(pool, r, elements, top, k)
            for arc in range(in_first[p], in_first[p + 1]):
                e = fronts[in_tails[arc]]
                if e >= 0 and top >= 0:
                    into = top
                    top = _merge(links, elements, first, e, into, in_steps[arc] * k, k)
                    first = into
            if top < 0:
                return False
            found = elements[first] if first >= 0 else 0
            if found == 0:
                first = NONE
            changed = not _same(elements, before, first, k)
        if changed:
            if old[p] == UNTOUCHED:
                old[p] = before
                moved[st[MOVED]] = p
                st[MOVED] += 1
            if k != 1:
                st[TOP] = top
            elif found == 1:
                # Each position has two antichains of its own: for what is, and for what was before this call.
                first = 4 * p + 2 if old[p] == 4 * p else 4 * p
                elements[first + 1] = best
            fronts[p] = first
        if changed or (found == 0 and old[p] != UNTOUCHED):
            # What was taken away in a component and is not found again was dealt with there, but not behind it.
            for arc in range(out_first[p], out_first[p + 1]):
                head = out_heads[arc]
                if changed or head >= end:
                    if marks[head] == 0:
                        marks[head] = 1
                        blocks[head // BLOCK] += 1
                    if head < p:
                        back = True
        marks[p] = 0
        blocks[p // BLOCK] -= 1
        p += 1
        if p == n or marks[p] == 0:
            p = _next(n, marks, blocks, p)
        if back and p >= end:
            p = _next(n, marks, blocks, 0)
            back = False
    st[OPENED] = 0
    return True


def read(held: Held, k: int, asked: Ints, position: Ints, moves: Ints, diffs: Ints) -> int:
    """Write how frontiers moved since the last call; return how many moves, or their number if there is no room.

    A move is the port and the time. They come in the order of the ports `asked`, for each sorted by time. If there are
    more moves than room, nothing has changed, and the caller asks again.
    Cost: O(asked + positions that moved · elements of the frontiers there).
    """
    st, elements, fronts, old, moved = held.st, held.elements, held.fronts, held.old, held.moved
    room, rows = len(diffs), 0
    for port in asked:
        p = position[port]
        gone = old[p]
        if gone == UNTOUCHED:
            continue
        come = fronts[p]
        left = elements[gone] if gone >= 0 else 0
        right = elements[come] if come >= 0 else 0
        gone += 1
        come += 1
        while left > 0 or right > 0:
            j = 0
            while left > 0 and right > 0 and j < k and elements[gone + j] == elements[come + j]:
                j += 1
            if left > 0 and right > 0 and j == k:
                left -= 1
                right -= 1
                gone += k
                come += k
                continue
            leaves = right == 0 or (left > 0 and elements[gone + j] < elements[come + j])
            if rows < room:
                diffs[rows] = -1 if leaves else 1
                to = rows * (k + 1)
                moves[to] = port
                for i in range(k):
                    moves[to + 1 + i] = elements[(gone if leaves else come) + i]
            rows += 1
            if leaves:
                left -= 1
                gone += k
            else:
                right -= 1
                come += k
    if rows <= room:
        for i in range(st[MOVED]):
            old[moved[i]] = UNTOUCHED
        st[MOVED] = 0
    return rows
