"""The loops of reachability: arranging a graph, and carrying frontier changes along its paths.

Each function is written for two lives: compiled, over arrays; and interpreted, over plain lists of
Python integers, which the interpreter indexes several times faster than arrays. So only one-dimensional
sequences are used, and no sum ever leaves the 64-bit integers.

A graph is given by vertices 0…n-1 and arcs with a path summary each. `arrange` and `components` find the
order in which vertices are worked on; from then on a vertex is its *position* in that order:

- every arc between strongly connected components leads to a higher position;
- a component occupies a run of positions, and inside it every arc whose summary is zero leads to a
  higher position.

Each vertex owns two multisets of times: its *implications* (owner = position) and the *pointstamps*
entered there (owner = position + number of vertices). An entry of a multiset lives in a pool of records
and is found by hashing owner and time. Entries with a positive count are chained by owner: minimal ones
(state `FRONT`) and the others (state `REST`).

Invariants
----------
1. Between calls, the count of an implication is 1 if its time is in the frontier of the vertex's
   pointstamps, plus the number of arcs and elements of frontiers at their tails that lead to its time.
2. Each pair of vertex and time is settled at most once per call: vertices in the order of their
   positions, inside a component by time (lexicographic), then by position.
3. `propagate` may stop for want of room between any two steps, and goes on where it stopped.
"""

from __future__ import annotations

from typing import Protocol

from spark_timely.progress.kernels import njit

__all__ = ["Ints", "arrange", "components", "propagate", "rehash", "renumber", "settle_order"]


class Ints(Protocol):
    """A one-dimensional array of integers, or a list of them."""

    def __getitem__(self, index: int, /) -> int:
        """Return one of them."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Replace one of them."""
        ...


# Fields of an entry's record of 32-bit integers.
RECORD = 8
OWNER, STATE, WAS, QUEUED, NEXT, PREVIOUS, CHAIN, PENDING = range(RECORD)
# Fields of an entry's record of 64-bit integers; the coordinates of the time follow.
COUNT, DELTA, TIME = range(3)
NOWHERE, FRONT, REST = range(3)
UNTOUCHED, WAS_OUT, WAS_FRONT = range(3)

# Scalars that outlive a call of `propagate`.
SCALARS = 14
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
) = range(SCALARS)

DONE, MORE = range(2)
BLOCK = 64
_HASH = (1 << 40) - 1


@njit
def arrange(n: int, n_arcs: int, tails: Ints, heads: Ints, first: Ints, arcs: Ints, degrees: Ints, order: Ints) -> int:
    """Group arcs by tail, and order the vertices so that arcs lead forward; return how many could be placed.

    `first` (n + 1 zeros) and `arcs` (n_arcs) become the arcs of each tail; `degrees` (n zeros) is scratch;
    `order` receives the vertices. Fewer than `n` are placed if there is a cycle. Cost: O(n + arcs).
    """
    for a in range(n_arcs):
        first[tails[a] + 1] += 1
        degrees[heads[a]] += 1
    for v in range(n):
        first[v + 1] += first[v]
    # Filling from the end brings each `first` back to where its group begins.
    for a in range(n_arcs - 1, -1, -1):
        v = tails[a]
        first[v + 1] -= 1
        arcs[first[v + 1]] = a
    for v in range(n):
        first[v] = first[v + 1]
    first[n] = n_arcs
    placed = 0
    for v in range(n):
        if degrees[v] == 0:
            order[placed] = v
            placed += 1
    at = 0
    while at < placed:
        v = order[at]
        at += 1
        for i in range(first[v], first[v + 1]):
            w = heads[arcs[i]]
            degrees[w] -= 1
            if degrees[w] == 0:
                order[placed] = w
                placed += 1
    return placed


@njit
def components(
    n: int,
    heads: Ints,
    first: Ints,
    arcs: Ints,
    index: Ints,
    low: Ints,
    stack: Ints,
    calls: Ints,
    at: Ints,
    which: Ints,
) -> int:
    """Find the strongly connected components; return their number.

    `which` receives each vertex's component, numbered so that arcs lead to equal or lower numbers. `index`
    and `which` are given as -1 throughout; the others are scratch of `n` entries. Cost: O(n + arcs).
    """
    counter = 0
    found = 0
    on_stack = 0
    for root in range(n):
        if index[root] >= 0:
            continue
        depth = 0
        calls[0] = root
        index[root] = counter
        low[root] = counter
        counter += 1
        stack[on_stack] = root
        on_stack += 1
        at[root] = first[root]
        while depth >= 0:
            v = calls[depth]
            if at[v] < first[v + 1]:
                w = heads[arcs[at[v]]]
                at[v] += 1
                if index[w] < 0:
                    index[w] = counter
                    low[w] = counter
                    counter += 1
                    stack[on_stack] = w
                    on_stack += 1
                    at[w] = first[w]
                    depth += 1
                    calls[depth] = w
                elif which[w] < 0 and index[w] < low[v]:
                    low[v] = index[w]
                continue
            depth -= 1
            if depth >= 0 and low[v] < low[calls[depth]]:
                low[calls[depth]] = low[v]
            if low[v] == index[v]:
                w = -1
                while w != v:
                    on_stack -= 1
                    w = stack[on_stack]
                    which[w] = found
                found += 1
    return found


@njit
def settle_order(
    n: int,
    n_components: int,
    heads: Ints,
    steps: Ints,
    first: Ints,
    arcs: Ints,
    component: Ints,
    starts: Ints,
    ends: Ints,
    degrees: Ints,
    order: Ints,
) -> int:
    """Order the vertices by component, inside by arcs without a step; return -1, or a component that has no order.

    `component` numbers the components in the order of the positions, `starts` says where each begins
    (n_components + 1 entries), `ends` is a copy of it without the last, `degrees` holds `n` zeros. A component
    has no order if it holds a cycle of arcs with step 0; its vertices with a degree left are on such cycles or
    behind them. Cost: O(n + arcs).
    """
    for v in range(n):
        for i in range(first[v], first[v + 1]):
            w = heads[arcs[i]]
            if steps[arcs[i]] == 0 and component[w] == component[v]:
                degrees[w] += 1
    for v in range(n):
        if degrees[v] == 0:
            c = component[v]
            order[ends[c]] = v
            ends[c] += 1
    at = 0
    for c in range(n_components):
        while at < ends[c]:
            v = order[at]
            at += 1
            for i in range(first[v], first[v + 1]):
                w = heads[arcs[i]]
                if steps[arcs[i]] == 0 and component[w] == c:
                    degrees[w] -= 1
                    if degrees[w] == 0:
                        order[ends[c]] = w
                        ends[c] += 1
        if at < starts[c + 1]:
            return c
    return -1


@njit
def renumber(
    n: int,
    heads: Ints,
    steps: Ints,
    first: Ints,
    arcs: Ints,
    order: Ints,
    position: Ints,
    out_first: Ints,
    out_heads: Ints,
    out_steps: Ints,
) -> int:
    """Write the graph in terms of positions; return the number of arcs. Cost: O(n + arcs)."""
    for p in range(n):
        position[order[p]] = p
    total = 0
    for p in range(n):
        out_first[p] = total
        v = order[p]
        for i in range(first[v], first[v + 1]):
            out_heads[total] = position[heads[arcs[i]]]
            out_steps[total] = steps[arcs[i]]
            total += 1
    out_first[n] = total
    return total


@njit
def _bucket(owner: int, times: Ints, base: int, k: int, mask: int) -> int:
    """Return the hash bucket of a time, `times[base:base + k]`, at an owner."""
    h = owner * 40503
    for j in range(k):
        # Products may wrap when compiled: the bits that are kept are the same.
        h = (h * 1000003 + times[base + j]) & _HASH
    h ^= h >> 19
    return h & mask


@njit
def _less_equal(big: Ints, a: int, b: int, k: int) -> bool:
    """Tell whether the time of record `a` is less or equal to that of record `b`."""
    width = TIME + k
    # A loop on purpose: compiled code has no generators.
    for j in range(TIME, width):  # noqa: SIM110
        if big[a * width + j] > big[b * width + j]:
            return False
    return True


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
def _entry(rec: Ints, big: Ints, buckets: Ints, st: Ints, owner: int, time: Ints, k: int) -> int:
    """Return the record of an owner's time, made if there is none; there must be a free one."""
    bucket = _bucket(owner, time, 0, k, st[MASK])
    e = _find(rec, big, buckets, owner, time, k, bucket)
    if e >= 0:
        return e
    e = st[FREE]
    if e >= 0:
        st[FREE] = rec[e * RECORD + CHAIN]
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
def _free(rec: Ints, big: Ints, buckets: Ints, st: Ints, e: int, k: int) -> None:
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
        if _less_equal(big, f, e, k):
            _link(rec, lists, e, REST)
            return
        f = rec[f * RECORD + NEXT]
    f = lists[2 * owner]
    while f >= 0:
        after = rec[f * RECORD + NEXT]
        if _less_equal(big, e, f, k):
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
        if _less_equal(big, e, r, k):
            _unlink(rec, lists, r)
            _enter(rec, big, lists, flips, touched, st, r, k)
        r = after


@njit
def _apply(
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
    if dirty[vertex] == 0:
        dirty[vertex] = 1
        blocks[vertex // BLOCK] += 1


@njit
def _next_dirty(n: int, dirty: Ints, blocks: Ints, start: int) -> int:
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
            into = _entry(rec, big, buckets, st, owner - n, time, k)
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
                    into = _entry(rec, big, buckets, st, heads[arc], time, k)
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
def propagate(
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
            e = _entry(rec, big, buckets, st, owner, time, k)
            _apply(rec, big, lists, sizes, flips, touched, st, e, diffs[u], k)
            if big[e * width + COUNT] == 0 and rec[e * RECORD + WAS] == UNTOUCHED:
                _free(rec, big, buckets, st, e, k)
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
                    p = _next_dirty(n, dirty, blocks, p + 1)
                    if p == n:
                        st[PHASE] = 3
                        continue
                    end = component_end[p]
                    if end == 0:
                        dirty[p] = 0
                        blocks[p // BLOCK] -= 1
                        _split(rec, big, pending, p, k)
                        st[CURSOR] = p
                        continue
                    while p < end:
                        dirty[p] = 0
                        blocks[p // BLOCK] -= 1
                        e = pending[p]
                        while e >= 0:
                            _push(rec, big, heap, st, e, k)
                            e = rec[e * RECORD + PENDING]
                        pending[p] = -1
                        p = _next_dirty(n, dirty, blocks, p + 1)
                    st[COMPONENT_END] = end
                    st[CURSOR] = end - 1
                    continue
            rec[e * RECORD + QUEUED] = 0
            diff = big[e * width + DELTA]
            big[e * width + DELTA] = 0
            if diff != 0:
                _apply(rec, big, lists, sizes, flips, touched, st, e, diff, k)
            if big[e * width + COUNT] == 0 and rec[e * RECORD + WAS] == UNTOUCHED:
                _free(rec, big, buckets, st, e, k)
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
            _free(rec, big, buckets, st, e, k)
    st[FLIPS] = 0
    st[TOUCHED] = changes
    st[PHASE] = 0
    return DONE


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
