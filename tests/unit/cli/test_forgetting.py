"""The verbs that let a log forget, and say who keeps what."""

from __future__ import annotations

import datetime as dt
import io
import json
import re

import pyarrow as pa
import pytest

from spark_timely.log import Log
from spark_timely.log.log import create_log, open_log
from spark_timely.testing import ManualClock
from spark_timely.time.antichain import Antichain
from tests.conformance.logs import frozen, stored
from tests.unit.cli.conftest import Run

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture
def log(log_path: str) -> Log:
    """Return a log of ten commits, each of a row at its own time."""
    log = create_log(log_path, SCHEMA, minimum=(0,), merge_every=None)
    writer = log.writer(owner="me")
    for time in range(10):
        writer.append(pa.table({"_time": [time], "v": [time]}), advance_to=time + 1)
    return log


def values(log: Log) -> list[int]:
    return sorted(open_log(log.path).messages()["v"].to_pylist())


def test_forget_deletes_what_is_before(run: Run, log: Log) -> None:
    before = frozen(log)
    code, out, err = run("forget", log.path, "--to", "4", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("since: 0 → 4\n4 files before it, ")
    assert out.endswith("dry run: nothing was changed\n")
    assert frozen(log) == before
    code, out, err = run("forget", log.path, "--to", "4")
    assert (code, err) == (0, "")
    assert re.match(r"since: 0 → 4\n4 messages fewer: 4 files of .* replaced by 0 files of 0 B\n", out)
    assert values(log) == [4, 5, 6, 7, 8, 9]
    assert len(stored(log)) >= len(before[1])
    assert run("forget", log.path, "--to", "2")[1].startswith("since stays at 4\n")


def test_forget_keeps_a_length(run: Run, log: Log) -> None:
    code, out, _ = run("forget", log.path, "--keep", "3", "--json")
    facts = json.loads(out)
    assert (code, facts["asked"], facts["since"], facts["reached"], facts["keep"]) == (0, [7], [7], True, None)
    assert facts["forgotten"]["rows_removed"] == 7
    assert values(log) == [7, 8, 9]


def test_forget_always_sets_what_the_log_keeps(run: Run, log: Log) -> None:
    code, out, _ = run("forget", log.path, "--keep", "3", "--always")
    # Committed just now: nothing goes yet.
    assert code == 1
    assert "since stays at 0\n" in out
    assert out.endswith("the log keeps 3, and what was committed in the last 1 day\n")
    assert open_log(log.path).core.kept() is not None
    assert "keeps         3, and what was committed in the last 1 day" in run("stats", log.path)[1]
    code, _, err = run("forget", log.path, "--to", "3", "--always")
    assert code == 2
    assert "found --always without --keep" in err


def test_forget_says_who_holds_it_back(run: Run, log: Log) -> None:
    assert run("retain", log.path, "report", "6", "--owner", "nightly", "--expiry", "2 days")[0] == 0
    code, out, _ = run("forget", log.path, "--to", "8")
    assert code == 1
    assert out.startswith("since: 0 → 6\n")
    assert re.search(r"held back by consumer 'report' until 20..-..-..T..:..:..Z\n", out)
    code, out, _ = run("forget", log.path, "--to", "99", "--json", "--dry-run")
    facts = json.loads(out)
    assert (code, facts["reached"], facts["since"], facts["dry_run"]) == (1, False, [6], True)
    run("release", log.path, "report")
    assert run("forget", log.path, "--to", "99")[1].endswith("held back by the log's own frontier\n")


def test_purge_says_when_the_bytes_are_gone(run: Run, log: Log) -> None:
    code, out, _ = run("forget", log.path, "--to", "4", "--purge")
    assert code == 0
    found = re.search(r"gone from disk after (20\S+): by the upkeep of commits that come then, or by `spark-ti", out)
    assert found is not None
    left = dt.datetime.fromisoformat(found[1]) - dt.datetime.now(dt.UTC)
    assert dt.timedelta(hours=23) < left < dt.timedelta(hours=25)
    assert run("vacuum", log.path, "--older-than", "0s")[0] == 0
    out = run("forget", log.path, "--to", "4", "--purge")[1]
    assert out.endswith("nothing that was forgotten is left on disk, but for copies that others made\n")
    facts = json.loads(run("forget", log.path, "--to", "5", "--purge", "--json", "--dry-run")[1])
    assert facts["vacuum"]["gone_at"] is None


def test_forget_asks_at_a_terminal(run: Run, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    before = frozen(log)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    code, _, err = run("forget", log.path, "--to", "4")
    assert code == 4
    assert "since: 0 → 4\nthis cannot be undone. Forget " in err
    assert frozen(log) == before
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert run("forget", log.path, "--to", "4", "--yes")[0] == 0


def test_retainers_are_shown_with_what_they_cost(run: Run, log: Log) -> None:
    assert run("retainers", log.path)[:2] == (0, "no retainers\n")
    assert run("retain", log.path, "audit", "3")[1].startswith("audit: needs 3, until 20")
    run("retain", log.path, "report", "5")
    clock = ManualClock()
    open_log(log.path, clock=clock).retain("late", [2], owner="me")
    code, out, _ = run("retainers", log.path)
    assert code == 0
    lines = [re.split(r"  +", line) for line in out.splitlines()]
    assert lines[0] == ["consumer", "needs", "owner", "expires", "state", "holds"]
    sizes = dict(zip(log.core.files().seq_lo.tolist(), log.core.files().sizes.tolist(), strict=True))
    # Without `audit` what is at 3 and 4 could go; without `report` nothing more.
    facts = {each["consumer"]: each for each in json.loads(run("retainers", log.path, "--json")[1])["retainers"]}
    assert {name: (each["bytes"], each["alive"]) for name, each in facts.items()} == {
        "audit": (sizes[4] + sizes[5], True),
        "late": (0, False),
        "report": (0, True),
    }
    assert [line[4] for line in lines[1:]] == ["live", "expired", "live"]
    text = run("stats", log.path)[1]
    assert re.search(r"retained for audit +3 for 'command line' until 20.*, .* by it alone\n", text)
    assert re.search(r"retained for late +2, expired 1970-01-08T00:00:00Z\n", text)
    assert json.loads(run("stats", log.path, "--json")[1])["since"] == [0]


def test_release_says_what_it_frees(run: Run, log: Log) -> None:
    run("retain", log.path, "audit", "3")
    size = log.core.files().sizes[3:].sum()
    facts = json.loads(run("release", log.path, "audit", "--dry-run", "--json")[1])
    assert (facts["bytes"], facts["dry_run"], len(facts["retainers"])) == (size, True, 1)
    code, out, _ = run("release", log.path, "audit")
    assert (code, open_log(log.path).retainers()) == (0, {})
    assert out.startswith("audit: ")
    code, _, err = run("release", log.path, "audit")
    assert code == 2
    assert "found consumers=[]" in err
    assert run("retain", log.path, "audit", "[]")[1] == "audit: released\n"


def test_vacuum_deletes_what_was_replaced(run: Run, log: Log) -> None:
    run("compact", log.path)
    before = stored(log)
    replaced = len(before) - len(open_log(log.path).core.store.live)
    assert replaced > 20
    code, out, _ = run("vacuum", log.path)
    assert code == 0
    assert re.match(r"0 files deleted, 0 B\n\d+ files replaced too lately, .*: the last may go after 20\S+\n$", out)
    facts = json.loads(run("vacuum", log.path, "--older-than", "0s", "--json", "--dry-run")[1])
    assert (facts["files"], facts["dry_run"], facts["gone_at"]) == (replaced, True, None)
    assert stored(log) == before
    code, out, _ = run("vacuum", log.path, "--older-than", "0s")
    assert re.match(rf"{replaced} files deleted, .*\n$", out)
    assert values(log) == list(range(10))
    assert run("verify", log.path)[0] == 0


def test_verbs_of_forgetting_refuse_by_name(run: Run, log: Log, tmp_path: object) -> None:
    before = frozen(log)
    two = create_log(f"{tmp_path}/two", SCHEMA, times=("long", "long"), minimum=(0, 0))
    refused = [
        (["forget", log.path], 2, "one of the arguments --to --keep is required"),
        (["forget", log.path, "--to", "4", "--keep", "4"], 2, "not allowed with argument"),
        (["forget", log.path, "--keep", "3 days"], 2, "found keep='3 days'"),
        (["forget", log.path, "--to", "[]"], 2, "found the empty frontier"),
        (["forget", two.path, "--keep", "3"], 2, "found times of 2 coordinates"),
        (["retain", log.path, "a", "3", "--expiry", "soon"], 2, "found expiry='soon'"),
        (["vacuum", log.path, "--older-than", "7"], 2, "write the number with its unit"),
        (["release", log.path, "nobody"], 2, "found consumers=[]"),
    ]
    for arguments, wanted, text in refused:
        code, _, err = run(*arguments)
        assert (code, text in err) == (wanted, True), (arguments, err)
    assert frozen(log) == before
    open_log(log.path).allow_compaction([5])
    code, _, err = run("retain", log.path, "a", "3")
    assert code == 4
    assert "found since=[5]" in err
    assert open_log(log.path).since() == Antichain.of(5)
