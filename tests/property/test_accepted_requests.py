"""Requests of an instance race with an input that is allowed to forget: what was accepted is answered as of its time.

A request at an early time is made in one of the ways that there are. At a place between two of its steps, or beside
it, another handle lets the input forget as much as it may, and has that rewritten; at a place the process may end. The
versions of the input's table, read here as files, say what since was when a decision was made:

- what was accepted had not been passed, and gives exactly the rows of an oracle from its as_of on;
- what was refused had been passed;
- what was begun again after a kill begins as of a time of its own, and is right from there on;
- an import that cannot be written is warned of, and a read that breaks names since by its own error;
- nothing is retained by anybody in the end.

``SPARK_TIMELY_LONG=1`` draws 500 races.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_timely.answers import retainers
from spark_timely.compute.command_log import CommandLog
from spark_timely.compute.drive import runners, subscribes
from spark_timely.compute.drive.handle import Handle
from spark_timely.compute.drive.requests import Requests
from spark_timely.compute.drive.retention import ImportRetainers
from spark_timely.datasource.retaining import RetainedPosition
from spark_timely.errors import OperatorError, SinceViolationError, StorageError, TimelyError, WaitTimeoutError
from spark_timely.log import Log, core
from spark_timely.log.log import open_log
from spark_timely.log.retention import _RetentionAttempt
from spark_timely.time.text import parse_duration
from tests.faults.harness import long_lane, seed_of_run, tell
from tests.unit.compute.bodies import COPIES, Stand
from tests.unit.compute.instances import TOTALS, handle, orders, runtime
from tests.unit.compute.test_drive_edges import wait_until

pytestmark = pytest.mark.timeout(3600)

AS_OF, END, FORGET = 1, 6, 3
UPDATES = [(time, 1, time % 3, 10 * time) for time in range(1, 8)] + [(4, -1, 1, 10), (6, -1, 2, 20)]
IMPORT = '{"op": "import", "name": "orders"}'

KINDS = ("subscribe", "subscribe import", "index", "maintain", "task", "copy", "copy import",
         "asked index", "asked maintain", "asked task", "follower")  # fmt: skip
LASTS = ("index", "maintain", "task", "asked index", "asked maintain", "asked task")
# In their order; the decision is made at "commit" at the latest.
PLACES = ("begin", "commit", "decided", "store", "stored", "step", "read")
DECIDED = PLACES[2:]


class KilledError(BaseException):
    """The process ends here."""


# The oracle -----------------------------------------------------------------------------------------


def totals(rows: Counter[tuple[int, int]]) -> Counter[tuple[int, ...]]:
    """Return (k, n, s) of the rows that there are."""
    found: dict[int, list[int]] = {}
    for (k, v), n in rows.items():
        found.setdefault(k, []).extend([v] * n)
    return Counter((k, len(each), sum(each)) for k, each in found.items() if each)


def contents(time: int, query: str) -> Counter[tuple[int, ...]]:
    rows: Counter[tuple[int, int]] = Counter()
    for at, diff, k, v in UPDATES:
        rows[k, v] += diff if at <= time else 0
    rows = +rows
    return totals(rows) if query == TOTALS else Counter(rows)


def changes(as_of: int, end: int, query: str) -> Counter[tuple[int, ...]]:
    """Return the (time, …row) with their diffs of a collection from a time on: what is there then stands at it."""
    found: Counter[tuple[int, ...]] = Counter()
    before: Counter[tuple[int, ...]] = Counter()
    for time in range(as_of, end):
        now = contents(time, query)
        for row in now.keys() | before.keys():
            if now[row] != before[row]:
                found[time, *row] = now[row] - before[row]
        before = now
    return found


def versions(path: str) -> list[tuple[int, set[str]]]:
    """Return since, and who retains the log, after each commit of its table; since begins at 0."""
    found: list[tuple[int, set[str]]] = []
    since, names = 0, set[str]()
    for entry in sorted((Path(path) / "_delta_log").glob("*.json")):
        added = [json.loads(line).get("add", {}).get("path", "") for line in entry.read_text().splitlines()]
        moved = [name for name in added if name.startswith("_event=since/")]
        for name in moved:
            since = pq.read_table(Path(path) / name, partitioning=None)["_time"].to_pylist()[0]
            names = set()
        for name in added:
            if moved and name.startswith("_event=retain/"):
                notes = pq.read_table(Path(path) / name, partitioning=None)["_note"].to_pylist()
                names = {json.loads(note)["consumer"] for note in notes}
        found.append((since, names))
    return found


# The world ------------------------------------------------------------------------------------------


@dataclass
class Race:
    """What happens at the places of one request."""

    kind: str
    forgets: str
    kills: str | None
    unwritable: bool
    log: str = ""
    kept_from: int | None = None
    mine: threading.local = field(default_factory=threading.local)
    done: set[str] = field(default_factory=set)
    killed: bool = False
    done_before: frozenset[str] = frozenset()
    stop: Callable[[], None] = lambda: None

    def at(self, place: str, path: str | None = None) -> None:
        if getattr(self.mine, "forgetting", False) or place in self.done or (path is not None and path != self.log):
            return
        self.done.add(place)
        if place == self.forgets:
            self.forget()
        if place == self.kills:
            self.killed, self.done_before = True, frozenset(self.done)
            self.stop()  # who handles the exception would let go what a killed process has retained
            raise KilledError

    def forget(self) -> None:
        """Let the input forget as much as it may, by a handle of another process."""
        self.mine.forgetting = True
        try:
            log = open_log(self.log)
            for wanted in (2, FORGET):
                self.kept_from = log.allow_compaction([wanted]).elements[0][0]
            log.compact(logical=True)
        finally:
            self.mine.forgetting = False

    @property
    def query(self) -> str:
        return IMPORT if "import" in self.kind or self.kind == "follower" else TOTALS


RACE: list[Race] = []


def _around(
    patch: pytest.MonkeyPatch, owner: Any, name: str, before: str, after: str | None, path_of: Callable[..., Any]
) -> None:
    own = getattr(owner, name)

    def run(*args: Any, **more: Any) -> Any:
        path = path_of(*args)
        for race in RACE:
            race.at(before, path)
        found = own(*args, **more)
        for race in RACE if after is not None else ():
            race.at(str(after), path)
        return found

    patch.setattr(owner, name, run)


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop at each place of a request, and refuse to write to an input that is not to be written."""
    _around(monkeypatch, ImportRetainers, "_retained", "begin", "decided", lambda _, entry, *__: entry.path)
    _around(monkeypatch, _RetentionAttempt, "put", "commit", None, lambda attempt: attempt.states.store.path)
    _around(monkeypatch, CommandLog, "store", "store", "stored", lambda *_: None)
    for kind in (runners._OperatorRunner, runners._TaskRunner):
        _around(monkeypatch, kind, "step", "step", None, lambda *_: None)
    _around(monkeypatch, subscribes._Reading, "read", "read", None, lambda *_: None)
    monkeypatch.setattr(Handle, "_take_requests", lambda _: None)
    # At these two the thread is not the one that asks.
    own = core.retain_several

    def refused(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(states: Any, *args: Any, **more: Any) -> Any:
            if any(race.unwritable and states.store.path == race.log for race in RACE):
                raise StorageError("no permission", hint="ask", determinate=True)
            return function(states, *args, **more)

        return run

    monkeypatch.setattr(core, "retain", refused(core.retain))
    monkeypatch.setattr(core, "retain_several", refused(own))
    monkeypatch.setattr(retainers, "_LEAST_S", 0.0)
    yield
    RACE.clear()


def _copied(path: str, folder: str, at: Any, details: Any) -> int:
    del details
    found = open_log(path).snapshot(at)
    pq.write_table(found.drop_columns([name for name in found.schema.names if name == "_time"]), folder)
    return int(found.num_rows)


def _retained(log: Log, consumer: str) -> RetainedPosition:
    return RetainedPosition(partial(open_log, log.path), consumer, parse_duration("7 days"))


def started(folder: Path, **options: Any) -> Handle:
    return handle(folder, runtime=runtime(retain=_retained, copy=_copied, task_bodies=Stand()), **options)


def killed(instance: Handle) -> None:
    """Let an instance end as if its process were gone."""
    instance._ended = True
    instance._driver.wake.set()
    instance._thread.join()
    stop_retaining(instance)


def stop_retaining(instance: Handle) -> None:
    """Let the thread that writes retainers write nothing any more."""
    retainers = instance._driver._retainers
    retainers._ended.set()
    retainers._wake.set()


# One race -------------------------------------------------------------------------------------------


def ask(instance: Handle, race: Race, folder: Path) -> Any:
    """Make the request; return what gives its answer."""
    name, imports, query = "it", {"orders": race.log}, race.query
    match race.kind:
        case "subscribe" | "subscribe import":
            return instance.subscribe(query, imports=imports, as_of=AS_OF, up_to=END)
        case "follower":
            return instance.subscribe("kept", as_of=AS_OF, up_to=END)
        case "copy" | "copy import":
            instance.copy_to(query, folder / "copied.parquet", imports=imports, as_of=AS_OF)
        case "index":
            instance.index(name, query, imports=imports, as_of=AS_OF, key="k")
        case "maintain":
            instance.maintain(name, query, folder / "out", imports=imports, as_of=AS_OF)
        case "task":
            instance.continual_task(name, COPIES, inputs=imports, as_of=AS_OF)
        case _:
            verb = {"asked index": "index", "asked maintain": "maintain", "asked task": "continual_task"}[race.kind]
            given: dict[str, Any] = {"id": name, "query": query, "imports": imports, "as_of": AS_OF}
            if verb == "continual_task":
                given = {"id": name, "query": COPIES, "inputs": imports, "as_of": AS_OF}
            requests = Requests(instance.directory)
            with pytest.raises(WaitTimeoutError):
                requests.ask(verb, given | ({"into": str(folder / "out")} if verb == "maintain" else {}), timeout_s=0)
            take(instance)
    return None


def take(instance: Handle) -> None:
    """Take the requests of other processes, and raise what the answer says."""
    requests = Requests(instance.directory)
    requests.take(instance)
    for name in requests._storage.names():
        if name.endswith(".answer"):
            content = requests._storage.find(name)
            assert content is not None
            answer = json.loads(content)
            requests._storage.delete(name)
            if any(race.unwritable for race in RACE) and answer["error"] is None:
                assert answer["warnings"]
            if answer["error"] is not None:
                raise OperatorError(answer["error"]["message"], hint=answer["error"]["hint"])


def taken(batches: Any) -> Counter[tuple[int, ...]]:
    """Return the updates of a subscribe, as (time, …row) with their diffs."""
    found: Counter[tuple[int, ...]] = Counter()
    while not batches.has_ended:
        batch = batches.next_batch(timeout_s=60)
        for row in [] if batch is None else batch.updates.to_pylist():
            diff, time = row.pop("_diff"), row.pop("_time")
            found[time, *row.values()] += diff
    return found


def written(instance: Handle, race: Race) -> tuple[int, pa.Table]:
    """Return as of when the output of what lasts began, and its rows, once it is far enough."""
    driver = instance._driver
    number = driver.instance.collection("it").run

    def is_over() -> bool:
        return not instance.frontier("it").less_equal((END,)) or "since=" in driver.state.errors.get(number, "")

    wait_until(is_over)
    failed = driver.state.errors.get(number, "")
    if failed:
        raise SinceViolationError(failed, hint="read", since="")
    (as_of,) = driver.instance.collection("it").as_of.elements[0]
    path = driver.state.path_of("it")
    assert path is not None
    log = open_log(path)
    return as_of, log.messages()


def judge_output(race: Race, as_of: int, rows: pa.Table) -> None:
    """Check what an output holds from its as_of on."""
    found: Counter[tuple[int, ...]] = Counter()
    names = [name for name in rows.schema.names if not name.startswith("_")]
    for row in rows.to_pylist():
        found[row["_time"], *(row[name] for name in names)] += row.get("_diff", 1)
    if race.kind.endswith("task"):
        expected = Counter((time, k, v) for time, diff, k, v in UPDATES if diff > 0 and time > as_of)
    else:
        expected = changes(as_of, 8, race.query)
    assert {key: n for key, n in found.items() if n} == dict(expected), (race, as_of)


def run_race(folder: Path, race: Race) -> str:
    """Run one race; return how it ended: right, refused, broken, or killed and begun again."""
    log = orders(folder / "orders", *UPDATES, upper=8)
    main = instance = started(folder / "instance")
    race.log = log.path
    if race.kind == "follower":
        kept = main.maintain("kept", IMPORT, folder / "kept", imports={"orders": log.path}, as_of=0)
        assert kept.as_of.elements == ((0,),)
        main.await_frontier("kept", 7)
        race.log = str(folder / "kept")
        instance = started(folder / "instance", read_only=True)
        wait_until(lambda: instance.has("kept") and not instance.frontier("kept").less_equal((7,)))
    race.stop = partial(stop_retaining, instance)
    RACE[:] = [race]
    beside = threading.Thread(target=race.forget)
    before, ended = len(versions(race.log)), "right"
    failure: TimelyError | None = None
    try:
        if race.forgets == "beside":
            beside.start()
        given = ask(instance, race, folder)
        accepted = versions(race.log)
        assert race.forgets not in PLACES[:2] or race.unwritable or race.forgets not in race.done, "passed before"
        if not race.unwritable and not race.kind.startswith("copy"):
            # The decision, or one before it whose retainer covers this, found since at or before the as_of.
            mine = instance._driver._retainers.consumer
            assert any(mine in names and since <= AS_OF for since, names in accepted[before - 1 :]), accepted
        if race.unwritable and race.kind in ("index", "maintain", "task"):
            assert "no permission" in instance.warnings_of("it")[0]
        judge(instance, race, folder, given)
        if race.unwritable and race.kept_from is not None and race.kept_from > AS_OF:
            ended = "right although passed"
        elif race.kept_from == AS_OF:
            ended = "retained and right"
    except KilledError:
        ended = begun_again(folder, instance, race)
        main = instance = started(folder / "instance")
    except (SinceViolationError, OperatorError) as error:
        failure = error
    finally:
        if beside.ident is not None:
            beside.join()
        RACE.clear()
        instance.close()
        main.close()
    if failure is not None:
        ended = judge_refusal(race, failure)
    judge_end(race)
    return ended


def judge_refusal(race: Race, failure: TimelyError) -> str:
    """Check that a request was refused, or broke, because since had passed its as_of; return which it was."""
    assert "since=" in str(failure), failure
    assert "max_result_bytes" not in str(failure)
    assert isinstance(failure, SinceViolationError) or race.kind.startswith("asked"), repr(failure)
    if race.killed:  # what a killed process has retained still counts
        assert "decided" not in race.done_before, (race, failure)
    else:
        assert race.unwritable or race.forgets not in DECIDED, (race, failure)
    assert versions(race.log)[-1][0] > AS_OF
    return "broken" if race.unwritable and race.forgets in DECIDED else "refused"


def judge(instance: Handle, race: Race, folder: Path, given: Any) -> None:
    """Check the answer of a request that was accepted."""
    if race.kind in LASTS:
        as_of, rows = written(instance, race)
        assert as_of == AS_OF
        judge_output(race, as_of, rows)
    elif race.kind.startswith("copy"):
        copied = pq.read_table(folder / "copied.parquet")
        names = [name for name in copied.schema.names if name != "_diff"]
        assert Counter(tuple(row[name] for name in names) for row in copied.to_pylist()) == contents(AS_OF, race.query)
    else:
        assert {key: n for key, n in taken(given).items() if n} == dict(changes(AS_OF, END, race.query)), race


def begun_again(folder: Path, instance: Handle, race: Race) -> str:
    """Start an instance again whose process has ended, and check what of it lasts."""
    killed(instance)
    race.kills = None
    with started(folder / "instance") as again:
        if race.kind.startswith("asked"):
            try:
                take(again)
            except OperatorError as error:
                return f"killed, then {judge_refusal(race, error)}"
        if race.kind not in LASTS or not again.has("it"):
            return "killed"
        as_of, rows = written(again, race)
        # By the rules of as_of.py: what it was, or where its import can be read from by then.
        assert AS_OF <= as_of <= max(AS_OF, versions(race.log)[-1][0])
        judge_output(race, as_of, rows)
        return "killed, then right"


def judge_end(race: Race) -> None:
    """Check that no instance retains the input any more: at once, or when what a killed one retained has expired."""
    later = open_log(race.log, clock=lambda: 4e9)
    if race.killed:
        later.retain("another", [7], owner="test")
        later.release("another")
    assert not [name for name in later.retainers() if name.startswith("instance ")], later.retainers()


def drawn(rng: random.Random) -> Race:
    kind, forgets = rng.choice(KINDS), rng.choice([*PLACES, "beside", "beside"])
    lasts, is_read = kind in LASTS, "subscribe" in kind or kind == "follower"
    if (forgets in ("store", "stored") and not lasts) or (forgets == "read" and not is_read):
        forgets = "decided"  # it never comes there
    unwritable = rng.random() < 0.1
    may_kill = not unwritable and kind != "follower" and rng.random() < 0.3
    return Race(kind, forgets, rng.choice(PLACES[: 5 if lasts else 3]) if may_kill else None, unwritable)


def test_requests_race_with_an_input_that_forgets(tmp_path: Path) -> None:
    rng = random.Random(seed_of_run())
    counts: Counter[str] = Counter()
    races = [Race(kind, "decided", None, unwritable=False) for kind in KINDS]
    races += [drawn(rng) for _ in range(500 if long_lane() else 6)]
    for number, race in enumerate(races):
        folder = tmp_path / f"race{number}"
        folder.mkdir()
        tell(repr(race))
        counts[run_race(folder, race)] += 1
        tell(f"{number + 1} races: {dict(counts)}")
    assert counts["retained and right"] >= (150 if long_lane() else len(KINDS) - 2), counts
