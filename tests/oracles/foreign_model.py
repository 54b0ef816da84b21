"""A Delta table of a log that knows each row: who put it there, and whether it should still be there.

Our commits and those of others are drawn at random. The model tells for each version whether others have done harm: a
row that our commits put there and that nobody may forget is missing, is there twice or is another one, or the newest
state of since is not ours. It knows rows only: of files, statistics and entries it makes what a table would have, and
judges nothing by them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

EVENTS = ("message", "progress", "dead", "since", "retain")
STREAMS = ("a", "b")


@dataclass(frozen=True)
class Row:
    """A row of the table. No two rows that were written apart have one number."""

    number: int
    event: str
    stream: str | None
    seq: int
    time: int
    value: int
    base: bool = False
    n_rows: int = 0
    bounds: tuple[int, int] | None = None
    # Of a base commit the row that it was.
    was: int | None = None


Rows = frozenset[Row]


@dataclass
class Version:
    """The table as one entry left it."""

    live: dict[str, str]
    # What would be there if nobody but us had changed rows.
    expected: dict[str, Rows]
    actions: list[dict[str, Any]]
    # Whether the entry may have done harm: neither ours nor maintenance.
    suspect: bool
    # What is wrong, and since which version.
    harm: dict[Any, int] = field(default_factory=dict)

    @property
    def harmful(self) -> bool:
        return bool(self.harm)


@dataclass
class World:
    """The table, and what happens to it.

    Parameters
    ----------
    random : random.Random
    kind : str
        Of the log: stream or collection.
    """

    random: random.Random
    kind: str
    versions: list[Version] = field(default_factory=list)
    files: dict[str, tuple[str, tuple[Row, ...]]] = field(default_factory=dict)
    vectors: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    # Files that another program has read and rewritten, and not yet committed.
    plans: list[list[str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    # Entries in which rows were swapped for others in silence, and whether what they replaced may be told no more.
    swaps: set[int] = field(default_factory=set)
    blurred: bool = False
    # What the next commit of ours says that nobody has looked into.
    unlooked: tuple[int, ...] = ()
    _numbers: int = 0

    def __post_init__(self) -> None:
        rows = [self.row("progress", stream, 0, 0) for stream in STREAMS]
        paths = [self.file("progress", [row], row.stream, 0) for row in rows]
        expected = {event: frozenset[Row]() for event in EVENTS} | {"progress": frozenset(rows)}
        self._commit("CREATE", paths, [], ours=True, judged=0, expected=expected)

    # What there is

    @property
    def now(self) -> Version:
        return self.versions[-1]

    @property
    def newest(self) -> int:
        return len(self.versions) - 1

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def row(self, event: str, stream: str | None, seq: int, time: int, **more: Any) -> Row:
        number = self.number()
        return Row(number, event, stream, seq, time, more.pop("value", number), **more)

    def file(self, event: str, rows: Iterable[Row], stem: str | None, seq: int) -> str:
        """Write a file of ours."""
        path = f"_event={event}/{stem}-{seq:012d}-{self.number():016x}.parquet"
        self.files[path] = (event, tuple(rows))
        return path

    def strange_file(self, event: str, rows: Iterable[Row]) -> str:
        path = f"_event={event}/part-{self.number():05d}-c000.snappy.parquet"
        self.files[path] = (event, tuple(rows))
        return path

    def rows_of(self, path: str, vector: str = "") -> tuple[Row, ...]:
        rows = self.files[path][1]
        masked = self.vectors[path, vector] if vector else frozenset[int]()
        return tuple(row for place, row in enumerate(rows) if place not in masked)

    def live(self, event: str) -> list[str]:
        return sorted(path for path in self.now.live if self.files[path][0] == event)

    def live_rows(self, version: Version, event: str) -> list[Row]:
        paths = (item for item in version.live.items() if self.files[item[0]][0] == event)
        return [row for path, vector in paths for row in self.rows_of(path, vector)]

    # What is harmful

    def since(self, version: Version) -> int:
        return max(((row.seq, row.time) for row in version.expected["since"]), default=(-1, 0))[1]

    def harm(self, version: Version) -> set[Any]:
        """Return where rows are not what our commits, up to a version, have made of them."""
        wrong: set[Any] = {("progress", row) for row in self._wrong_progress(version)}
        wrong |= {("since", row) for row in self._wrong_since(version)}
        there, wanted = self._messages(self.live_rows(version, "message"), version), version.expected["message"]
        wanted_there = self._messages(wanted, version)
        return wrong | {("message", row) for row in (there - wanted_there) | (wanted_there - there)}

    def _messages(self, rows: Iterable[Row], version: Version) -> Counter[Row]:
        since = self.since(version)
        return Counter(row for row in rows if self.kind == "collection" or row.time >= since)

    def _wrong_progress(self, version: Version) -> set[Row]:
        wanted = version.expected["progress"]
        bases = {row.stream: row for row in wanted if row.base}
        there = set()
        for row in self.live_rows(version, "progress"):
            base = bases.get(row.stream)
            if base is None or row.seq > base.seq or (row.seq == base.seq and row.number != base.was):
                there.add(row)
        return there ^ wanted

    def _wrong_since(self, version: Version) -> set[Row]:
        def newest(since: Iterable[Row], retain: Iterable[Row]) -> set[Row]:
            since = list(since)
            seq = max((row.seq for row in since), default=None)
            return {row for row in (*since, *retain) if row.seq == seq}

        there = newest(self.live_rows(version, "since"), self.live_rows(version, "retain"))
        return there ^ newest(version.expected["since"], version.expected["retain"])

    def culprits(self) -> set[int]:
        """Return the entries that did what is wrong now; of undoing without RESTORE none: it has other reasons."""
        return {at for at in self.now.harm.values() if not self.log[at].split(" ", 1)[1].startswith("PUT BACK")}

    def has_vectors(self) -> bool:
        return any(self.now.live.values())

    # Entries

    def add_of(self, path: str, vector: str = "", *, loud: bool = True, bare: bool = False) -> dict[str, Any]:
        event, rows = self.files[path]
        stats: dict[str, Any] = {"numRecords": len(rows)}
        if rows:
            columns = {"_seq": [r.seq for r in rows], "_time": [r.time for r in rows]}
            if all(row.stream is not None for row in rows):
                columns["_stream"] = [row.stream for row in rows]  # type: ignore[misc]
            stats["minValues"] = {name: min(values) for name, values in columns.items()}
            stats["maxValues"] = {name: max(values) for name, values in columns.items()}
        add = {"path": path, "partitionValues": {"_event": event}, "size": 1, "dataChange": loud}
        if not bare:
            add["stats"] = json.dumps(stats)
        if vector:
            size = len(self.vectors[path, vector])
            add["deletionVector"] = {"storageType": "u", "pathOrInlineDv": vector, "offset": 1, "cardinality": size}
        return {"add": add}

    def _commit(
        self,
        operation: str,
        adds: Sequence[str | tuple[str, str]],
        removes: Sequence[str],
        *,
        loud: bool = True,
        ours: bool = False,
        judged: int | None = None,
        expected: dict[str, Rows] | None = None,
        suspect: bool = False,
        info: dict[str, Any] | None = None,
        bare: bool = False,
        restored: Version | None = None,
    ) -> None:
        before = self.versions[-1] if self.versions else Version({}, {}, [], suspect=False)
        live = dict(before.live)
        said: dict[str, Any] = {"operation": operation, "timestamp": 1000 + len(self.versions), **(info or {})}
        if ours:
            # A digest of the files, written apart from the code that reads it.
            lines = [f"-{path}" for path in removes] + [
                f"+{each if isinstance(each, str) else each[0]}" for each in adds
            ]
            digest = sha256("".join(f"{line}\n" for line in sorted(lines)).encode()).hexdigest()[:32]
            said |= {"timelyFiles": digest, "timelyJudged": judged}
            if self.unlooked:
                said["timelyUnlooked"] = ",".join(map(str, self.unlooked))
            self.unlooked = ()
        back = restored is not None and any(
            each is restored for each in self.versions[min(self.swaps, default=1 << 62) :]
        )
        self.blurred = self.blurred or back or bool(self.swaps and any(before.live.get(path) for path in removes))
        actions: list[dict[str, Any]] = [{"commitInfo": said}]
        for path in removes:
            remove: dict[str, Any] = {"path": path, "dataChange": loud}
            if self.random.random() < 0.5:
                remove["partitionValues"] = {"_event": self.files[path][0]}
            if live.get(path):
                remove["deletionVector"] = {"storageType": "u", "pathOrInlineDv": live[path], "offset": 1}
            actions.append({"remove": remove})
            live.pop(path, None)
        for each in adds:
            path, vector = (each, "") if isinstance(each, str) else each
            actions.append(self.add_of(path, vector, loud=loud, bare=bare))
            live[path] = vector
        version = Version(live, before.expected if expected is None else expected, actions, suspect)
        known = before.harm if restored is None else restored.harm
        version.harm = {what: known.get(what, len(self.versions)) for what in self.harm(version)}
        self.log.append(f"{len(self.versions)} {operation} {'HARM' if version.harmful else ''}")
        self.versions.append(version)

    def _expected(self, **changes: Rows) -> dict[str, Rows]:
        return {**self.now.expected, **changes}

    # Ours. `judged` is what the handle says that commits.

    def append(self, judged: int) -> None:
        stream = self.random.choice(STREAMS)
        newest = self._newest(stream)
        seq, time = newest.seq + 1, newest.time
        rows = [
            self.row("message", stream, seq, time + self.random.randrange(4)) for _ in range(self.random.randrange(5))
        ]
        cut = self.random.randrange(len(rows) + 1)
        parts = [part for part in (rows[:cut], rows[cut:]) if part]
        paths = [self.file("message", part, stream, seq) for part in parts]
        bounds = (min(r.time for r in rows), max(r.time for r in rows)) if rows else None
        commit = self.row("progress", stream, seq, time + self.random.randrange(3), n_rows=len(rows), bounds=bounds)
        paths.append(self.file("progress", [commit], stream, seq))
        dead = self._expected()["dead"]
        if self.random.random() < 0.3:
            letters = [self.row("dead", stream, seq, time) for _ in range(2)]
            paths.append(self.file("dead", letters, stream, seq))
            dead |= frozenset(letters)
        expected = self._expected(
            message=self.now.expected["message"] | frozenset(rows),
            progress=self.now.expected["progress"] | {commit},
            dead=dead,
        )
        self._commit("WRITE", paths, [], ours=True, judged=judged, expected=expected)

    def _newest(self, stream: str) -> Row:
        return max((r for r in self.now.expected["progress"] if r.stream == stream), key=lambda row: row.seq)

    def merge(self, judged: int) -> None:
        event = self.random.choice(("message", "progress", "dead"))
        paths = self._some(event, least=2)
        if not paths:
            return
        rows = [row for path in paths for row in self.rows_of(path)]
        if event == "progress":
            bases = {row.stream: row for row in self.now.expected["progress"] if row.base}
            rows = [r for r in dict.fromkeys(rows) if r.stream not in bases or r.seq >= bases[r.stream].seq]
            rows = [r for r in rows if r.stream not in bases or r.number != bases[r.stream].was]
            if not rows:
                return
        new = [self.file(event, rows, "a", max(row.seq for row in rows))] if rows else []
        self._commit("WRITE", new, paths, ours=True, judged=judged, loud=event != "progress")

    def forget_commits(self, judged: int) -> None:
        """Forget the first commits of a stream."""
        stream, since = self.random.choice(STREAMS), self.since(self.now)
        mine = [row for row in self.now.expected["progress"] if row.stream == stream]
        goes = sorted(row.seq for row in mine if row.time <= since)[:-1]
        if not goes:
            return
        old = next(row for row in mine if row.seq == goes[-1])
        base = old if old.base else replace(old, number=self.number(), base=True, was=old.number)
        paths = [p for p in self.live("progress") if any(r.stream == stream for r in self.rows_of(p))]
        there = {row for path in paths for row in self.rows_of(path)}
        kept = [r for r in there if r.stream != stream or r.seq > base.seq]
        new = [self.file("progress", [base, *sorted(kept, key=lambda r: r.number)], stream, base.seq)]
        progress = frozenset(r for r in self.now.expected["progress"] if r.stream != stream or r.seq > base.seq)
        expected = self._expected(progress=progress | {base})
        self._commit("WRITE", new, paths, ours=True, judged=judged, expected=expected)

    def late_hand(self, judged: int) -> None:
        """Forget commits while another optimizes their progress: what it had read comes back behind."""
        paths = self._some("progress")
        self.forget_commits(judged)
        self.plans.append(paths)
        self.commit_plan()

    def forget(self, judged: int) -> None:
        """Forget messages at times that nobody may read, or sum them."""
        since = self.since(self.now)
        paths = [p for p in self.live("message") if any(r.time < since for r in self.rows_of(p))]
        if not paths:
            return
        rows = [row for path in paths for row in self.rows_of(path)]
        wanted = self.now.expected["message"]
        if self.kind == "stream":
            kept = [row for row in rows if row.time >= since]
            gone = frozenset(row for row in wanted if row.time < since)
            expected = wanted - gone
        else:
            old_rows = [row for row in rows if row.time < since]
            moved = [
                self.row("message", s, max(r.seq for r in old_rows if r.stream == s), since)
                for s in STREAMS
                if any(row.stream == s for row in old_rows)
            ]
            kept = [row for row in rows if row.time >= since] + moved
            expected = (wanted - frozenset(old_rows)) | frozenset(moved)
        new = [self.file("message", kept, "a", max(r.seq for r in kept))] if kept else []
        self._commit("WRITE", new, paths, ours=True, judged=judged, expected=self._expected(message=expected))

    def move_since(self, judged: int) -> None:
        """Move since, or register and release retainers: each commit states all of both."""
        least = min(self._newest(stream).time for stream in STREAMS)
        at = self.since(self.now)
        if self.random.random() < 0.8 and least > at:
            at = self.random.randint(at + 1, least)
        seq = max((row.seq for row in self.now.expected["since"]), default=-1) + 1
        since = [self.row("since", None, seq, at)]
        retain = [self.row("retain", None, seq, at + 1) for _ in range(self.random.randrange(3))]
        new = [self.file("since", since, "since", seq)]
        if retain:
            new.append(self.file("retain", retain, "since", seq))
        old = self.live("since") + self.live("retain") if self.random.random() < 0.7 else []
        expected = self._expected(since=frozenset(since), retain=frozenset(retain))
        self._commit("WRITE", new, old, ours=True, judged=judged, expected=expected)

    def add_columns(self, judged: int) -> None:
        self._commit("ADD COLUMN", [], [], ours=True, judged=judged)
        self.now.actions.append({"metaData": {"id": "x"}})

    # Others: maintenance

    def _some(self, event: str, least: int = 1) -> list[str]:
        paths = self.live(event)
        if len(paths) < least:
            return []
        return self.random.sample(paths, self.random.randint(least, len(paths)))

    def _rewritten(self, paths: Sequence[str]) -> list[str]:
        """Write the rows of files of one kind into one or two, in any order."""
        rows = [row for path in paths for row in self.rows_of(path, self.now.live[path])]
        self.random.shuffle(rows)
        cut = self.random.choice((0, self.random.randrange(len(rows) + 1)))
        return [self.strange_file(self.files[paths[0]][0], part) for part in (rows[:cut], rows[cut:]) if part]

    def optimize(self) -> None:
        """Optimize, order, purge, or backfill some files of some kinds in one entry."""
        events = self.random.sample(EVENTS, self.random.randint(1, 3))
        removes, adds = [], []
        for event in events:
            paths = self._some(event)
            if paths:
                removes += paths
                adds += self._rewritten(paths)
        if removes:
            bare = self.random.random() < 0.1
            self._commit(self.random.choice(("OPTIMIZE", "ZORDER")), adds, removes, loud=False, bare=bare)

    def purge(self) -> None:
        paths = [path for path, vector in self.now.live.items() if vector]
        adds = [new for event in EVENTS for part in self._by_event(paths, event) for new in self._rewritten([part])]
        if paths:
            self._commit("REORG", adds, paths, loud=False)

    def _by_event(self, paths: Iterable[str], event: str) -> list[str]:
        return [path for path in paths if self.files[path][0] == event]

    def restate(self) -> None:
        """Compute statistics again, or give rows numbers: live files are added once more."""
        paths = self._some(self.random.choice(EVENTS))
        if paths:
            self._commit("COMPUTE STATS", [(p, self.now.live[p]) for p in paths], [], loud=self.random.random() < 0.3)

    def plan(self) -> None:
        """Read some files, to commit what is made of them later: another hand may be faster."""
        paths = self._some(self.random.choice((*EVENTS, "progress")))
        if paths and not any(self.now.live[path] for path in paths):
            self.plans.append(paths)

    def commit_plan(self) -> None:
        """Commit an OPTIMIZE that has not noticed what happened to its files meanwhile, as delta-rs does not."""
        if not self.plans:
            return
        paths = self.plans.pop(self.random.randrange(len(self.plans)))
        if any(self.now.live.get(path) for path in paths):
            return
        rows = [row for path in paths for row in self.rows_of(path)]
        new = self.strange_file(self.files[paths[0]][0], rows)
        whole = all(path in self.now.live for path in paths)
        self._commit("OPTIMIZE", [new], paths, loud=False, suspect=not whole)

    def two_hands(self) -> None:
        """Optimize the same files twice: of messages each row is there twice then; of progress that is no harm."""
        paths = self._some(self.random.choice(("message", "progress", "progress", "since", "retain", "dead")))
        if paths and not any(self.now.live[path] for path in paths):
            self.plans.append(paths)
            self.commit_plan()
            self.plans.append(paths)
            self.commit_plan()

    # Others: changes

    def swap(self) -> None:
        """Say that no data changed where a row is a copy of another commit's."""
        paths = self._some("message")
        rows = [row for path in paths for row in self.rows_of(path, self.now.live[path])]
        pairs = [(x, y) for x in range(len(rows)) for y in rows if (rows[x].stream, rows[x].seq) != (y.stream, y.seq)]
        # Of a second one the counts may be those from before the first, though the rows are others.
        if not pairs or self.now.harmful or any(self.now.live[path] for path in paths):
            return
        place, row = self.random.choice(pairs)
        rows[place] = row
        cut = self.random.randrange(len(rows))
        new = [self.strange_file("message", part) for part in (rows[:cut], rows[cut:]) if part]
        self.swaps.add(len(self.versions))
        self._commit("OPTIMIZE", new, paths, loud=False, suspect=True)

    def _change(self, operation: str, event: str, change: Callable[[Row], list[Row]], *, vectors: bool = True) -> None:
        """Rewrite the files that have rows which a change makes others of, or mask those rows."""
        masks = vectors and self.random.random() < 0.3
        quiet = operation == "DELETE" and not masks and self.random.random() < 0.1
        adds: list[str | tuple[str, str]] = []
        removes, fresh = [], []
        for path in self.live(event):
            vector = self.now.live[path]
            rows = self.rows_of(path, vector)
            changed = {row: change(row) for row in dict.fromkeys(rows)}
            if all(changed[row] == [row] for row in rows):
                continue
            removes.append(path)
            new = [other for row in rows for other in changed[row]]
            if masks:
                hit = frozenset(i for i, row in enumerate(self.files[path][1]) if changed.get(row, []) != [row])
                name = f"v{self.number()}"
                self.vectors[path, name] = hit
                fresh += [other for other in new if other not in rows]
                if len(hit) < len(self.files[path][1]):
                    adds.append((path, name))
            elif new:
                adds.append(self.strange_file(event, new))
        if fresh:
            adds.append(self.strange_file(event, fresh))
        if removes:
            self._commit(operation, adds, removes, suspect=True, loud=not quiet)

    def delete(self) -> None:
        event = self.random.choice(EVENTS)
        share = self.random.choice((0.2, 0.5, 1.0))
        gone = {r for r in self.live_rows(self.now, event) if self.random.random() < share}
        self._change("DELETE", event, lambda row: [] if row in gone else [row])

    def delete_files(self) -> None:
        paths = self._some(self.random.choice(EVENTS))
        if paths:
            self._commit("DELETE", [], paths, suspect=True)

    def delete_forgotten(self) -> None:
        """Delete rows that nobody may read any more, or some of them."""
        since = self.since(self.now)
        bases = {row.stream: row.seq for row in self.now.expected["progress"] if row.base}
        newest = max((row.seq for row in self.now.expected["since"]), default=0)
        old = {
            "message": lambda row: row.time < since,
            "progress": lambda row: row.seq < bases.get(row.stream, 0),
            "since": lambda row: row.seq < newest,
        }
        found = {event: [r for r in self.live_rows(self.now, event) if is_old(r)] for event, is_old in old.items()}
        events = [event for event, rows in found.items() if rows]
        if not events:
            return
        event = self.random.choice(events)
        gone = {row for row in found[event] if self.random.random() < 0.8}
        self._change("DELETE", event, lambda row: [] if row in gone else [row])

    def delete_newest(self) -> None:
        stream = self.random.choice(STREAMS)
        seq = max((r.seq for r in self.live_rows(self.now, "progress") if r.stream == stream), default=0)
        self._change("DELETE", "progress", lambda row: [] if (row.stream, row.seq) == (stream, seq) else [row])

    def insert(self) -> None:
        event = self.random.choice(EVENTS)
        rows = self.live_rows(self.now, event)
        if rows:
            row = self.random.choice(rows)
            copy = replace(row, number=self.number(), value=row.value if event == "message" else self.number())
            self._commit("WRITE", [self.strange_file(event, [copy])], [], suspect=True)

    def update(self) -> None:
        event = self.random.choice(EVENTS)
        rows = self.live_rows(self.now, event)
        if not rows:
            return
        hit = self.random.choice(rows)
        new = replace(hit, number=self.number(), value=self.number())
        if event in ("message", "since") and self.random.random() < 0.5:
            new = replace(new, time=max(0, hit.time + self.random.choice((-2, 1, 3))))
        self._change("UPDATE", event, lambda row: [new] if row == hit else [row])

    def forge_since(self) -> None:
        """Put since to a later time, and delete what could be forgotten if that were true."""
        rows = self.live_rows(self.now, "since")
        if rows:
            hit = max(rows, key=lambda row: row.seq)
            new = replace(hit, number=self.number(), value=self.number(), time=hit.time + 2)
            self._change("UPDATE", "since", lambda row: [new] if row == hit else [row], vectors=False)
            self._change("DELETE", "message", lambda row: [] if row.time < new.time else [row], vectors=False)

    def merge_into(self) -> None:
        rows = self.live_rows(self.now, "message")
        if rows:
            hit = self.random.choice(rows)
            new = [replace(hit, number=self.number(), value=self.number()) for _ in range(2)]
            self._change("MERGE", "message", lambda row: new if row == hit else [row])

    def overwrite(self) -> None:
        event = self.random.choice(("message", "progress", "dead"))
        paths = self.live(event)
        if paths:
            rows = [self.row(event, "a", 1, 1) for _ in range(2)]
            self._commit("WRITE", [self.strange_file(event, rows)], paths, suspect=True)

    def restore(self, to: int | None = None) -> None:
        to = self.random.randrange(len(self.versions)) if to is None else to
        target = self.versions[to]
        adds = [item for item in target.live.items() if self.now.live.get(item[0]) != item[1]]
        removes = [path for path, vector in self.now.live.items() if target.live.get(path) != vector]
        says = {"version": self.random.choice((to, str(to)))} if self.random.random() < 0.7 else {"timestamp": "then"}
        self._commit(
            "RESTORE",
            adds,
            removes,
            expected=target.expected,
            suspect=target.harmful,
            info={"operationParameters": says},
            restored=target,
        )

    def heal(self) -> None:
        """Restore the newest version that was whole."""
        if self.now.harmful:
            whole = [number for number, version in enumerate(self.versions) if not version.harmful]
            self.restore(whole[-1])

    def put_back(self) -> None:
        """Undo what one entry did by adding what it removed, and removing what it added."""
        number = self.random.randrange(max(1, self.newest - 4), self.newest + 1) if self.newest else 0
        # What was swapped in silence was believed: that rows are put back is a change to who has not looked.
        if not self.versions[number].suspect or not number or number in self.swaps:
            return
        before, after = self.versions[number - 1].live, self.versions[number].live
        new = [path for path, vector in after.items() if before.get(path) != vector]
        old = [item for item in before.items() if after.get(item[0]) != item[1]]
        if any(path not in self.now.live for path in new) or any(p in self.now.live and p not in new for p, _ in old):
            return
        self._commit("PUT BACK", old, new, suspect=True)


OURS = (
    "append",
    "merge",
    "merge",
    "forget",
    "forget",
    "forget_commits",
    "late_hand",
    "move_since",
    "move_since",
    "move_since",
    "add_columns",
)
MAINTENANCE = ("optimize", "purge", "restate", "plan", "commit_plan", "two_hands")
CHANGES = (
    "delete",
    "delete_files",
    "delete_forgotten",
    "delete_forgotten",
    "forge_since",
    "delete_newest",
    "insert",
    "update",
    "merge_into",
    "overwrite",
    "restore",
    "put_back",
)
