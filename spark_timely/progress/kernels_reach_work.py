"""The loops that carry changes of pointstamps along all paths of a graph; see `kernels_reach` for its form.

Pointstamps, and in partial orders implications too, are multisets of times, each with an owner. An entry of
a multiset lives in a pool of records, and is found by hashing owner and time. Entries with a positive count
are chained by owner: those that are minimal (state `FRONT`), and the others (`REST`).

There are two ways to carry changes:

- `propagate_total`, for times of one coordinate: the frontier of a vertex is one time or none, and is
  computed again from the vertices before it when one of those moves;
- `propagate_partial`, for any times: contributions to each vertex are counted by time, and the changes of
  frontiers are passed on one by one.

All of it is in this one file because compiled code is kept by file: a function compiled with helpers from
another file would not be compiled again when those change.

Invariants
----------
1. Without pending work, an implication of `propagate_partial` is counted once if its time is in the frontier
   of the vertex's pointstamps, and once for each arc and element of the frontier at its tail that leads to it.
2. Each vertex (`propagate_total`), or vertex and time (`propagate_partial`), is settled once per call:
   vertices in the order of their positions, inside a component by time, then by position.
3. `propagate_partial` may stop for want of room between any two steps, and goes on where it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_timely.progress.kernels_reach import Ints

P = ParamSpec("P")
R = TypeVar("R")

if __name__.endswith("_plain"):

    def njit(function: Callable[P, R], /) -> Callable[P, R]:
        """Leave a loop as it is: this is the copy of the module that `reachability_loops` makes."""
        return function

else:
    from spark_timely.progress.kernels import njit

__all__ = ["propagate_partial", "propagate_total", "read_total", "rehash"]

# Fields of an entry's record of 32-bit integers.
RECORD = 8
OWNER, STATE, WAS, QUEUED, NEXT, PREVIOUS, CHAIN, PENDING = range(RECORD)
# Fields of an entry's record of 64-bit integers; the coordinates of the time follow.
COUNT, DELTA, TIME = range(3)
NOWHERE, FRONT, REST = range(3)
UNTOUCHED, WAS_OUT, WAS_FRONT = range(3)

# Scalars that outlive a call of `propagate`.
SCALARS = 15
(
    USED,  # records of the pool ever used
    FREE,  # first record of the chain of free ones, or -1
    ROOM,  # records in the pool
    MASK,  # number of hash buckets - 1
    PHASE,  # which step a call is in
    UPDATE,  # next update to enter
    HEAP,  # entries on the heap
    FLIPS,  # frontier changes to be passed on
    FLIP,  # next of them
    ARC,  # next arc of it, counted from the first one of its vertex
    TOUCHED,  # entries whose state has changed in this call
    CURSOR,  # position being worked on
    COMPONENT_END,  # end of the component whose entries are on the heap, or 0
    HELD,  # elements of all frontiers of pointstamps
    VACANT,  # records on the chain of free ones
) = range(SCALARS)

DONE, MORE = range(2)
BLOCK = 64
_HASH = (1 << 40) - 1


@njit
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


@njit
def less_equal(big: Ints, a: int, b: int, k: int) -> bool:
    """Tell whether the time of record `a` is less or equal to that of record `b`."""
    width = TIME + k
    # A loop on purpose: compiled code has no generators.
    for j in range(TIME, width):  # noqa: SIM110
        if big[a * width + j] > big[b * width + j]:
            return False
    return True


@njit
def _find(rec: Ints, big: Ints, buckets: Ints, owner: int, time: Ints, k: int, bucket: int) -> int:
    """Return the record of an owner's time, or -1."""
    width = TIME + k
    e = buckets[bucket]
    while e >= 0:
        if rec[e * RECORD + OWNER] == owner:
            same = True
            for j in range(k):
                if big[e * width + TIME + j] != time[j]:
                    same = False
                    break
            if same:
                return e
        e = rec[e * RECORD + CHAIN]
    return -1


@njit
def entry(rec: Ints, big: Ints, buckets: Ints, st: Ints, owner: int, time: Ints, k: int) -> int:
    """Return the record of an owner's time, made if there is none; there must be a free one."""
    bucket = _bucket(owner, time, 0, k, st[MASK])
    e = _find(rec, big, buckets, owner, time, k, bucket)
    if e >= 0:
        return e
    e = st[FREE]
    if e >= 0:
        st[FREE] = rec[e * RECORD + CHAIN]
        st[VACANT] -= 1
    else:
        e = st[USED]
        st[USED] += 1
    r = e * RECORD
    rec[r + OWNER] = owner
    rec[r + STATE] = NOWHERE
    rec[r + WAS] = UNTOUCHED
    rec[r + QUEUED] = 0
    rec[r + CHAIN] = buckets[bucket]
    buckets[bucket] = e
    b = e * (TIME + k)
    big[b + COUNT] = 0
    big[b + DELTA] = 0
    for j in range(k):
        big[b + TIME + j] = time[j]
    return e


@njit
def free(rec: Ints, big: Ints, buckets: Ints, st: Ints, e: int, k: int) -> None:
    """Give a record back; its owner and time stay readable until it is used again."""
    r = e * RECORD
    bucket = _bucket(rec[r + OWNER], big, e * (TIME + k) + TIME, k, st[MASK])
    if buckets[bucket] == e:
        buckets[bucket] = rec[r + CHAIN]
    else:
        other = buckets[bucket]
        while rec[other * RECORD + CHAIN] != e:
            other = rec[other * RECORD + CHAIN]
        rec[other * RECORD + CHAIN] = rec[r + CHAIN]
    rec[r + CHAIN] = st[FREE]
    st[FREE] = e
    st[VACANT] += 1


@njit
def _link(rec: Ints, lists: Ints, e: int, state: int) -> None:
    """Put a record at the head of its owner's chain of that state."""
    r = e * RECORD
    head = 2 * rec[r + OWNER] + state - FRONT
    other = lists[head]
    rec[r + STATE] = state
    rec[r + NEXT] = other
    rec[r + PREVIOUS] = -1
    if other >= 0:
        rec[other * RECORD + PREVIOUS] = e
    lists[head] = e


@njit
def _unlink(rec: Ints, lists: Ints, e: int) -> None:
    """Take a record out of the chain it is in."""
    r = e * RECORD
    before = rec[r + PREVIOUS]
    after = rec[r + NEXT]
    if before >= 0:
        rec[before * RECORD + NEXT] = after
    else:
        lists[2 * rec[r + OWNER] + rec[r + STATE] - FRONT] = after
    if after >= 0:
        rec[after * RECORD + PREVIOUS] = before
    rec[r + STATE] = NOWHERE


@njit
def _flip(rec: Ints, flips: Ints, touched: Ints, st: Ints, e: int, entered: int, was: int) -> None:
    """Note that a time entered (1) or left (0) its owner's frontier."""
    flips[st[FLIPS]] = 2 * e + entered
    st[FLIPS] += 1
    if rec[e * RECORD + WAS] == UNTOUCHED:
        rec[e * RECORD + WAS] = was
        touched[st[TOUCHED]] = e
        st[TOUCHED] += 1


@njit
def _enter(rec: Ints, big: Ints, lists: Ints, flips: Ints, touched: Ints, st: Ints, e: int, k: int) -> None:
    """Put a record whose count is positive where it belongs: before the others of its frontier, or behind them."""
    owner = rec[e * RECORD + OWNER]
    f = lists[2 * owner]
    while f >= 0:
        if less_equal(big, f, e, k):
            _link(rec, lists, e, REST)
            return
        f = rec[f * RECORD + NEXT]
    f = lists[2 * owner]
    while f >= 0:
        after = rec[f * RECORD + NEXT]
        if less_equal(big, e, f, k):
            _unlink(rec, lists, f)
            _link(rec, lists, f, REST)
            _flip(rec, flips, touched, st, f, 0, WAS_FRONT)
        f = after
    _link(rec, lists, e, FRONT)
    _flip(rec, flips, touched, st, e, 1, WAS_OUT)


@njit
def _leave(rec: Ints, big: Ints, lists: Ints, flips: Ints, touched: Ints, st: Ints, e: int, k: int) -> None:
    """Take out a record whose count is no longer positive, and let those come forward that only it held back."""
    owner = rec[e * RECORD + OWNER]
    front = rec[e * RECORD + STATE] == FRONT
    _unlink(rec, lists, e)
    if not front:
        return
    _flip(rec, flips, touched, st, e, 0, WAS_FRONT)
    r = lists[2 * owner + 1]
    if k == 1:
        # The order is total: one element at most comes forward.
        best = r
        while r >= 0:
            if big[r * (TIME + 1) + TIME] < big[best * (TIME + 1) + TIME]:
                best = r
            r = rec[r * RECORD + NEXT]
        if best >= 0:
            _unlink(rec, lists, best)
            _link(rec, lists, best, FRONT)
            _flip(rec, flips, touched, st, best, 1, WAS_OUT)
        return
    while r >= 0:
        after = rec[r * RECORD + NEXT]
        if less_equal(big, e, r, k):
            _unlink(rec, lists, r)
            _enter(rec, big, lists, flips, touched, st, r, k)
        r = after


@njit
def apply(
    rec: Ints, big: Ints, lists: Ints, sizes: Ints, flips: Ints, touched: Ints, st: Ints, e: int, diff: int, k: int
) -> None:
    """Change the count of an entry, and move it and others of its owner accordingly."""
    b = e * (TIME + k)
    old = big[b + COUNT]
    new = old + diff
    big[b + COUNT] = new
    if old <= 0 and new > 0:
        sizes[rec[e * RECORD + OWNER]] += 1
        _enter(rec, big, lists, flips, touched, st, e, k)
    elif old > 0 and new <= 0:
        sizes[rec[e * RECORD + OWNER]] -= 1
        _leave(rec, big, lists, flips, touched, st, e, k)


@njit
def rehash(k: int, rec: Ints, big: Ints, buckets: Ints, st: Ints) -> None:
    """Enter all records in use into new buckets, given as -1 throughout."""
    e = st[FREE]
    while e >= 0:
        rec[e * RECORD + OWNER] = -1
        e = rec[e * RECORD + CHAIN]
    for e in range(st[USED]):
        r = e * RECORD
        if rec[r + OWNER] >= 0:
            bucket = _bucket(rec[r + OWNER], big, e * (TIME + k) + TIME, k, st[MASK])
            rec[r + CHAIN] = buckets[bucket]
            buckets[bucket] = e


@njit
def mark(dirty: Ints, blocks: Ints, p: int) -> None:
    """Note that a position is to be worked on."""
    if dirty[p] == 0:
        dirty[p] = 1
        blocks[p // BLOCK] += 1


@njit
def unmark(dirty: Ints, blocks: Ints, p: int) -> None:
    """Forget that a position was to be worked on."""
    dirty[p] = 0
    blocks[p // BLOCK] -= 1


@njit
def next_dirty(n: int, dirty: Ints, blocks: Ints, start: int) -> int:
    """Return the first marked position from `start` on, or `n`."""
    p = start
    while p < n:
        if blocks[p // BLOCK] == 0:
            p = (p // BLOCK + 1) * BLOCK
        elif dirty[p] == 1:
            return p
        else:
            p += 1
    return n


@njit
def _before(rec: Ints, big: Ints, a: int, b: int, k: int) -> bool:
    """Tell whether record `a` is settled before record `b`: by time in lexicographic order, then by position."""
    width = TIME + k
    for j in range(TIME, width):
        x = big[a * width + j]
        y = big[b * width + j]
        if x != y:
            return x < y
    return rec[a * RECORD + OWNER] < rec[b * RECORD + OWNER]


@njit
def _push(rec: Ints, big: Ints, heap: Ints, st: Ints, e: int, k: int) -> None:
    """Add a record to the heap."""
    i = st[HEAP]
    st[HEAP] += 1
    while i > 0:
        up = (i - 1) >> 1
        if not _before(rec, big, e, heap[up], k):
            break
        heap[i] = heap[up]
        i = up
    heap[i] = e


@njit
def _pop(rec: Ints, big: Ints, heap: Ints, st: Ints, k: int) -> int:
    """Take the record that is to be settled first from the heap."""
    top = heap[0]
    st[HEAP] -= 1
    n = st[HEAP]
    if n == 0:
        return top
    e = heap[n]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and _before(rec, big, heap[down + 1], heap[down], k):
            down += 1
        if not _before(rec, big, heap[down], e, k):
            break
        heap[i] = heap[down]
        i = down
    heap[i] = e
    return top


@njit
def _add(
    rec: Ints, big: Ints, heap: Ints, pending: Ints, dirty: Ints, blocks: Ints, st: Ints, e: int, diff: int, k: int
) -> None:
    """Add to what an implication's count is going to change by, and have it settled in its turn."""
    big[e * (TIME + k) + DELTA] += diff
    r = e * RECORD
    if rec[r + QUEUED] == 1:
        return
    rec[r + QUEUED] = 1
    vertex = rec[r + OWNER]
    if vertex < st[COMPONENT_END]:
        _push(rec, big, heap, st, e, k)
        return
    rec[r + PENDING] = pending[vertex]
    pending[vertex] = e
    mark(dirty, blocks, vertex)


@njit
def _pass_on(
    n: int,
    k: int,
    hi: int,
    first: Ints,
    heads: Ints,
    steps: Ints,
    table: Ints,
    rec: Ints,
    big: Ints,
    buckets: Ints,
    heap: Ints,
    flips: Ints,
    pending: Ints,
    dirty: Ints,
    blocks: Ints,
    time: Ints,
    st: Ints,
) -> bool:
    """Add every noted frontier change to what it leads to; return False if records ran out on the way."""
    width = TIME + k
    while st[FLIP] < st[FLIPS]:
        flip = flips[st[FLIP]]
        e = flip >> 1
        diff = 2 * (flip & 1) - 1
        owner = rec[e * RECORD + OWNER]
        base = e * width + TIME
        if owner >= n:
            if st[FREE] < 0 and st[USED] >= st[ROOM]:
                return False
            for j in range(k):
                time[j] = big[base + j]
            st[HELD] += diff
            into = entry(rec, big, buckets, st, owner - n, time, k)
            _add(rec, big, heap, pending, dirty, blocks, st, into, diff, k)
        else:
            arc = first[owner] + st[ARC]
            while arc < first[owner + 1]:
                if st[FREE] < 0 and st[USED] >= st[ROOM]:
                    return False
                step = steps[arc] * k
                valid = True
                for j in range(k):
                    x = big[base + j]
                    s = table[step + j]
                    # Past the greatest time nothing follows.
                    if x > hi - s:
                        valid = False
                        break
                    time[j] = x + s
                if valid:
                    into = entry(rec, big, buckets, st, heads[arc], time, k)
                    _add(rec, big, heap, pending, dirty, blocks, st, into, diff, k)
                st[ARC] += 1
                arc += 1
            st[ARC] = 0
        st[FLIP] += 1
    st[FLIP] = 0
    st[FLIPS] = 0
    return True


@njit
def _split(rec: Ints, big: Ints, pending: Ints, vertex: int, k: int) -> None:
    """Bring what raises counts before what lowers them: fewer elements come forward only to go back."""
    up = -1
    down = -1
    e = pending[vertex]
    while e >= 0:
        after = rec[e * RECORD + PENDING]
        if big[e * (TIME + k) + DELTA] > 0:
            rec[e * RECORD + PENDING] = up
            up = e
        else:
            rec[e * RECORD + PENDING] = down
            down = e
        e = after
    if up < 0:
        pending[vertex] = down
        return
    pending[vertex] = up
    e = up
    while rec[e * RECORD + PENDING] >= 0:
        e = rec[e * RECORD + PENDING]
    rec[e * RECORD + PENDING] = down


@njit
def propagate_partial(
    n: int,
    k: int,
    hi: int,
    first: Ints,
    heads: Ints,
    steps: Ints,
    table: Ints,
    component_end: Ints,
    rec: Ints,
    big: Ints,
    buckets: Ints,
    lists: Ints,
    sizes: Ints,
    heap: Ints,
    flips: Ints,
    touched: Ints,
    pending: Ints,
    dirty: Ints,
    blocks: Ints,
    time: Ints,
    st: Ints,
    n_updates: int,
    at: Ints,
    times: Ints,
    diffs: Ints,
) -> int:
    """Enter changes of pointstamps and carry what follows along all paths.

    Returns `DONE` with the net changes of implications' frontiers in `flips` (twice the record, plus 1 if its
    time entered; their number in `st[FLIPS]`), or `MORE` where records ran out: the caller
    doubles their number and calls again with the same updates. Cost: O(updates + frontier changes × arcs they pass),
    plus a scan of the times at a vertex for each element that leaves a frontier.
    """
    width = TIME + k
    if st[PHASE] == 0:
        st[UPDATE] = 0
        st[TOUCHED] = 0
        st[CURSOR] = -1
        st[COMPONENT_END] = 0
        st[PHASE] = 1
    while True:
        if st[FLIPS] > 0 and not _pass_on(
            n, k, hi, first, heads, steps, table, rec, big, buckets, heap, flips, pending, dirty, blocks, time, st
        ):
            return MORE
        if st[PHASE] == 1:
            u = st[UPDATE]
            if u == n_updates:
                st[PHASE] = 2
                continue
            owner = n + at[u]
            if st[FREE] < 0 and st[USED] >= st[ROOM]:
                return MORE
            if 2 * sizes[owner] + 4 > st[ROOM]:
                return MORE
            for j in range(k):
                time[j] = times[u * k + j]
            e = entry(rec, big, buckets, st, owner, time, k)
            apply(rec, big, lists, sizes, flips, touched, st, e, diffs[u], k)
            if big[e * width + COUNT] == 0 and rec[e * RECORD + WAS] == UNTOUCHED:
                free(rec, big, buckets, st, e, k)
            st[UPDATE] = u + 1
        elif st[PHASE] == 2:
            if st[HEAP] > 0:
                e = heap[0]
                if 2 * sizes[rec[e * RECORD + OWNER]] + 4 > st[ROOM]:
                    return MORE
                e = _pop(rec, big, heap, st, k)
            else:
                p = st[CURSOR]
                st[COMPONENT_END] = 0
                if p >= 0 and pending[p] >= 0:
                    e = pending[p]
                    if 2 * sizes[p] + 4 > st[ROOM]:
                        return MORE
                    pending[p] = rec[e * RECORD + PENDING]
                else:
                    p = next_dirty(n, dirty, blocks, p + 1)
                    if p == n:
                        st[PHASE] = 3
                        continue
                    end = component_end[p]
                    if end == 0:
                        unmark(dirty, blocks, p)
                        _split(rec, big, pending, p, k)
                        st[CURSOR] = p
                        continue
                    while p < end:
                        unmark(dirty, blocks, p)
                        e = pending[p]
                        while e >= 0:
                            _push(rec, big, heap, st, e, k)
                            e = rec[e * RECORD + PENDING]
                        pending[p] = -1
                        p = next_dirty(n, dirty, blocks, p + 1)
                    st[COMPONENT_END] = end
                    st[CURSOR] = end - 1
                    continue
            rec[e * RECORD + QUEUED] = 0
            diff = big[e * width + DELTA]
            big[e * width + DELTA] = 0
            if diff != 0:
                apply(rec, big, lists, sizes, flips, touched, st, e, diff, k)
            if big[e * width + COUNT] == 0 and rec[e * RECORD + WAS] == UNTOUCHED:
                free(rec, big, buckets, st, e, k)
        else:
            break
    changes = 0
    for i in range(st[TOUCHED]):
        e = touched[i]
        r = e * RECORD
        front = rec[r + STATE] == FRONT
        if rec[r + OWNER] < n and front != (rec[r + WAS] == WAS_FRONT):
            flips[changes] = 2 * e + (1 if front else 0)
            changes += 1
        rec[r + WAS] = UNTOUCHED
        if big[e * width + COUNT] == 0:
            free(rec, big, buckets, st, e, k)
    st[FLIPS] = 0
    st[TOUCHED] = changes
    st[PHASE] = 0
    return DONE


@njit
def _mark_heads(first: Ints, heads: Ints, dirty: Ints, blocks: Ints, p: int, beyond: int) -> None:
    """Have the vertices at positions from `beyond` on worked on to which arcs of `p` lead."""
    for arc in range(first[p], first[p + 1]):
        if heads[arc] >= beyond:
            mark(dirty, blocks, heads[arc])


@njit
def _note(was: Ints, has: Ints, imp: Ints, old: Ints, moved: Ints, st: Ints, p: int) -> None:
    """Keep what a vertex's frontier was when this call began."""
    if was[p] == UNTOUCHED:
        was[p] = WAS_FRONT if has[p] == 1 else WAS_OUT
        old[p] = imp[p]
        moved[st[TOUCHED]] = p
        st[TOUCHED] += 1


@njit
def _higher(keys: Ints, vertices: Ints, a: int, b: int) -> bool:
    """Tell whether slot `a` of the heap belongs above slot `b`."""
    return keys[a] < keys[b] or (keys[a] == keys[b] and vertices[a] < vertices[b])


@njit
def _push_key(keys: Ints, vertices: Ints, size: int, key: int, vertex: int) -> int:
    """Add a vertex to the heap; return the new size."""
    i = size
    keys[i] = key
    vertices[i] = vertex
    while i > 0:
        up = (i - 1) >> 1
        if not _higher(keys, vertices, i, up):
            break
        keys[i], keys[up] = keys[up], keys[i]
        vertices[i], vertices[up] = vertices[up], vertices[i]
        i = up
    return size + 1


@njit
def _drop_top(keys: Ints, vertices: Ints, size: int) -> int:
    """Take the top off the heap; return the new size."""
    n = size - 1
    keys[0] = keys[n]
    vertices[0] = vertices[n]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and _higher(keys, vertices, down + 1, down):
            down += 1
        if not _higher(keys, vertices, down, i):
            break
        keys[i], keys[down] = keys[down], keys[i]
        vertices[i], vertices[down] = vertices[down], vertices[i]
        i = down
    return n


@njit
def _settle_component(
    n: int,
    hi: int,
    first: Ints,
    heads: Ints,
    steps: Ints,
    in_first: Ints,
    in_tails: Ints,
    in_steps: Ints,
    table: Ints,
    component_end: Ints,
    big: Ints,
    lists: Ints,
    dirty: Ints,
    blocks: Ints,
    has: Ints,
    imp: Ints,
    old: Ints,
    was: Ints,
    moved: Ints,
    state: Ints,
    worked: Ints,
    keys: Ints,
    vertices: Ints,
    st: Ints,
    start: int,
) -> None:
    """Bring the frontiers of a component up to date, given its first position that is marked.

    First those times are taken back that nothing supports any more, in the order of times: what could support
    a time is settled before it. Then times are found anew as shortest paths are, from what still holds.
    """
    end = component_end[start]
    size = 0
    n_worked = 0
    p = start
    while p < end:
        unmark(dirty, blocks, p)
        state[p] = 1
        worked[n_worked] = p
        n_worked += 1
        if has[p] == 1:
            size = _push_key(keys, vertices, size, imp[p], p)
        p = next_dirty(n, dirty, blocks, p + 1)
    while size > 0:
        p = vertices[0]
        size = _drop_top(keys, vertices, size)
        supported = lists[2 * p] >= 0 and big[lists[2 * p] * (TIME + 1) + TIME] <= imp[p]
        arc = in_first[p]
        while not supported and arc < in_first[p + 1]:
            tail = in_tails[arc]
            step = table[in_steps[arc]]
            if has[tail] == 1 and state[tail] != 2 and imp[tail] <= hi - step and imp[tail] + step <= imp[p]:
                supported = True
            arc += 1
        if supported:
            continue
        state[p] = 2
        for arc in range(first[p], first[p + 1]):
            head = heads[arc]
            if component_end[head] == end and has[head] == 1 and state[head] == 0:
                step = table[steps[arc]]
                if imp[p] <= hi - step and imp[head] == imp[p] + step:
                    state[head] = 1
                    worked[n_worked] = head
                    n_worked += 1
                    size = _push_key(keys, vertices, size, imp[head], head)
    for i in range(n_worked):
        p = worked[i]
        if state[p] == 2:
            _note(was, has, imp, old, moved, st, p)
            has[p] = 0
    for i in range(n_worked):
        p = worked[i]
        state[p] = 0
        found = False
        best = 0
        if lists[2 * p] >= 0:
            found = True
            best = big[lists[2 * p] * (TIME + 1) + TIME]
        for arc in range(in_first[p], in_first[p + 1]):
            tail = in_tails[arc]
            if has[tail] == 1:
                step = table[in_steps[arc]]
                if imp[tail] <= hi - step and (not found or imp[tail] + step < best):
                    found = True
                    best = imp[tail] + step
        if found and (has[p] == 0 or best < imp[p]):
            size = _push_key(keys, vertices, size, best, p)
    while size > 0:
        p = vertices[0]
        time = keys[0]
        size = _drop_top(keys, vertices, size)
        if has[p] == 1 and imp[p] <= time:
            continue
        _note(was, has, imp, old, moved, st, p)
        has[p] = 1
        imp[p] = time
        for arc in range(first[p], first[p + 1]):
            head = heads[arc]
            if component_end[head] == end:
                step = table[steps[arc]]
                if time <= hi - step and (has[head] == 0 or time + step < imp[head]):
                    size = _push_key(keys, vertices, size, time + step, head)


@njit
def propagate_total(
    n: int,
    hi: int,
    first: Ints,
    heads: Ints,
    steps: Ints,
    in_first: Ints,
    in_tails: Ints,
    in_steps: Ints,
    table: Ints,
    component_end: Ints,
    rec: Ints,
    big: Ints,
    buckets: Ints,
    lists: Ints,
    sizes: Ints,
    flips: Ints,
    touched: Ints,
    dirty: Ints,
    blocks: Ints,
    has: Ints,
    imp: Ints,
    old: Ints,
    was: Ints,
    moved: Ints,
    state: Ints,
    worked: Ints,
    keys: Ints,
    vertices: Ints,
    time: Ints,
    st: Ints,
    n_updates: int,
    at: Ints,
    times: Ints,
    diffs: Ints,
) -> int:
    """Enter changes of pointstamps and carry what follows along all paths; times of one coordinate.

    The pool must have room for a record per update. `imp` holds the frontier of each position where `has` is
    1. Returns how many positions may have moved: they are in `moved`, with what was before in `was` and `old`,
    for `read_total`. Cost: O(updates + arcs at vertices that move), inside a component times a logarithm.
    """
    st[TOUCHED] = 0
    for u in range(n_updates):
        p = at[u]
        time[0] = times[u]
        e = entry(rec, big, buckets, st, p, time, 1)
        apply(rec, big, lists, sizes, flips, touched, st, e, diffs[u], 1)
        if st[FLIPS] > 0:
            for i in range(st[FLIPS]):
                st[HELD] += 2 * (flips[i] & 1) - 1
            st[FLIPS] = 0
            mark(dirty, blocks, p)
        elif big[e * (TIME + 1) + COUNT] == 0 and rec[e * RECORD + WAS] == UNTOUCHED:
            free(rec, big, buckets, st, e, 1)
    for i in range(st[TOUCHED]):
        e = touched[i]
        rec[e * RECORD + WAS] = UNTOUCHED
        if big[e * (TIME + 1) + COUNT] == 0:
            free(rec, big, buckets, st, e, 1)
    st[TOUCHED] = 0
    p = next_dirty(n, dirty, blocks, 0)
    while p < n:
        if component_end[p] > 0:
            before = st[TOUCHED]
            _settle_component(
                n,
                hi,
                first,
                heads,
                steps,
                in_first,
                in_tails,
                in_steps,
                table,
                component_end,
                big,
                lists,
                dirty,
                blocks,
                has,
                imp,
                old,
                was,
                moved,
                state,
                worked,
                keys,
                vertices,
                st,
                p,
            )
            end = component_end[p]
            for i in range(before, st[TOUCHED]):
                _mark_heads(first, heads, dirty, blocks, moved[i], end)
            p = next_dirty(n, dirty, blocks, end)
            continue
        unmark(dirty, blocks, p)
        found = False
        best = 0
        if lists[2 * p] >= 0:
            found = True
            best = big[lists[2 * p] * (TIME + 1) + TIME]
        for arc in range(in_first[p], in_first[p + 1]):
            tail = in_tails[arc]
            if has[tail] == 1:
                step = table[in_steps[arc]]
                if imp[tail] <= hi - step and (not found or imp[tail] + step < best):
                    found = True
                    best = imp[tail] + step
        if found != (has[p] == 1) or (found and best != imp[p]):
            _note(was, has, imp, old, moved, st, p)
            has[p] = 1 if found else 0
            imp[p] = best
            _mark_heads(first, heads, dirty, blocks, p, 0)
        p = next_dirty(n, dirty, blocks, p + 1)
    return st[TOUCHED]


@njit
def read_total(
    count: int,
    has: Ints,
    imp: Ints,
    old: Ints,
    was: Ints,
    moved: Ints,
    n_asked: int,
    asked: Ints,
    position: Ints,
    ports: Ints,
    times: Ints,
    diffs: Ints,
) -> int:
    """Write how frontiers moved in the last call of `propagate_total`, which returned `count`; return how many rows.

    The vertices asked for are `asked`, or the first `n_asked` if this is empty. There are up to 2 rows for each, in
    the order asked, sorted by time. Cost: O(count + n_asked).
    """
    rows = 0
    several = len(asked) > 0  # type: ignore[arg-type]
    for i in range(n_asked):
        v = asked[i] if several else i
        p = position[v]
        if was[p] == UNTOUCHED:
            continue
        left = was[p] == WAS_FRONT
        entered = has[p] == 1
        if left and entered and old[p] == imp[p]:
            continue
        early = left and entered and imp[p] < old[p]
        if left:
            at = rows + 1 if early else rows
            ports[at] = v
            times[at] = old[p]
            diffs[at] = -1
        if entered:
            at = rows + 1 if left and not early else rows
            ports[at] = v
            times[at] = imp[p]
            diffs[at] = 1
        rows += 2 if left and entered else 1 if left or entered else 0
    for i in range(count):
        was[moved[i]] = UNTOUCHED
    return rows
