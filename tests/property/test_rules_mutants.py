"""The tests that keep the rules 003.* fail when their rule is taken away.

Each mutant takes one rule away in one place: the check that an append makes (`append`), the check of whole
streams (`whole`), the folding (`fold`), the columns, the log, or the replay. The test that `tests/RULES.md`
names for that rule must then fail by an assertion of its own, or because the protocol is said to be broken.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spark_timely.errors import ProtocolError
from spark_timely.protocol.rules import check_messages, check_progress
from tests.conformance import test_log_protocol as conformance
from tests.conformance.logs import LogMaker
from tests.modules import ROOT
from tests.mutants.rules import breaks
from tests.property import test_protocol as rules
from tests.property import test_rules_replay as replays
from tests.property.mutations import (
    AfterProgress,
    Mutate,
    OneForAll,
    Patch,
    any_arity,
    anything,
    append,
    backwards,
    below_zero,
    columns,
    drops_before_raises,
    drops_first,
    each_task,
    entry_by_entry,
    exactly_held,
    first_coordinate,
    folded,
    judged_at_the_start,
    judged_later,
    judged_twice,
    last_message_lost,
    narrowed,
    never_negative,
    no_check,
    no_further_counts,
    no_raises,
    one_after_the_other,
    one_at_each,
    one_entry_each,
    only_after,
    only_itself,
    passed_over_twice,
    progress_ahead,
    raises_and_drops_apart,
    replay_of,
    start,
    whole,
    wide_times,
    with_beyond,
    without_further_counts,
    without_messages,
)

MODULES = {"P": rules, "C": conformance, "E": replays}

# Drawn as in the short lane; the first failure is enough, nothing is shrunk or kept.
quick = settings(
    max_examples=150,
    phases=(Phase.generate,),
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


# The table ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A rule taken away, and a test that must notice."""

    rule: str
    what: str
    test: str
    mutate: Mutate
    arguments: dict[str, Any] = field(default_factory=dict)


ANY_PROGRESS = with_beyond(check_progress, anything)
ONLY_ITSELF = {
    "progress": with_beyond(check_progress, only_itself),
    "messages": with_beyond(check_messages, only_itself),
}
NO_PROGRESS_CHECK, NO_MESSAGE_CHECK = append(progress=ANY_PROGRESS), append(messages=no_check)
EXACT = whole(_held_at=exactly_held)
T07 = "P::test_rule_003_07_whatever_comes_is_judged_as_by_the_oracle"
DAMAGED = "P::test_damaged_streams_of_timely_are_judged_as_by_the_oracle"
FUTURE = "P::test_rule_003_07_changes_beyond_held_times_are_legal"
T05 = "P::test_rule_003_05_a_batch_is_judged_by_the_counts_before_it"
ORDER = "P::test_rule_003_05_the_order_inside_a_batch_means_nothing"
EARLIER = "P::test_rule_003_08_any_message_may_move_earlier"
LATER = "P::test_rule_003_08_progress_may_move_past_all_messages"
MOVED = "P::test_rule_003_08_earlier_messages_later_progress_are_legal"
LAST = "P::test_rule_003_08_a_last_drop_before_its_message_is_refused"
FOLD = "P::test_rule_003_10_interleaved_streams_with_more_counts_fit"
MERGED = "P::test_rule_003_10_interleaved_captures_move_as_in_timely"
T11 = "P::test_rule_003_11_events_of_another_type_of_time_are_refused"
OTHER = "E::test_rule_003_01_a_producer_that_breaks_rules_is_refused"
SINK = "E::test_rule_003_09_the_sink_records_every_message_and_change"
C2 = {"name": "c2_3workers", "n_streams": 3}

MUTANTS = [
    Mutant(*row[:4], *row[4:])
    for row in [
        (
            "01",
            "whole: iterators are passed over twice",
            "P::test_rule_003_01_any_iterator_of_one_type_can_be_replayed",
            passed_over_twice,
        ),
        (
            "01",
            "whole: only times that are held themselves",
            "P::test_rule_003_01_streams_captured_by_timely_are_accepted",
            EXACT,
            {"name": "d1_product"},
        ),
        (
            "01",
            "append: only times that are held themselves",
            "P::test_rule_003_01_streams_captured_by_timely_are_accepted",
            append(**ONLY_ITSELF),
            {"name": "a_inorder"},
        ),
        (
            "01",
            "replay: a message lost",
            "E::test_rule_003_01_events_in_order_are_replayed_as_given",
            each_task(last_message_lost),
        ),
        (
            "01",
            "replay: a message lost",
            "E::test_rule_003_01_captures_of_timely_are_replayed_as_captured",
            each_task(last_message_lost),
            {"name": "g4_i64"},
        ),
        ("01", "log: messages not judged", OTHER, append(messages=no_check, log=True), {"event": ("messages", [(2,)])}),
        (
            "01",
            "log: raises not judged",
            OTHER,
            append(progress=ANY_PROGRESS, log=True),
            {"event": ("progress", [((2,), 1)])},
        ),
        (
            "02",
            "starts with count 2",
            "P::test_rule_003_02_a_stream_starts_at_the_minimum_with_count_1",
            start(0, 1),
            {"arity": 1},
        ),
        (
            "02",
            "starts elsewhere",
            "P::test_rule_003_02_a_stream_starts_at_the_minimum_with_count_1",
            start(1, 0),
            {"arity": 2},
        ),
        ("02", "log: starts elsewhere", "C::test_log_fresh_waits_for_its_streams", start(1, 0)),
        (
            "03",
            "append: raises not judged",
            "P::test_rule_003_03_progress_raises_only_beyond_a_held_time",
            NO_PROGRESS_CHECK,
        ),
        (
            "03",
            "whole: raises not judged",
            "P::test_rule_003_03_progress_raises_only_beyond_a_held_time",
            whole(_raised=no_raises),
        ),
        (
            "03",
            "log: raises not judged",
            "C::test_progress_at_an_unheld_time_is_refused",
            append(progress=ANY_PROGRESS, log=True),
        ),
        (
            "04",
            "append: messages not judged",
            "P::test_rule_003_04_messages_use_only_times_beyond_a_held_one",
            NO_MESSAGE_CHECK,
        ),
        (
            "04",
            "whole: messages not judged",
            "P::test_rule_003_04_messages_use_only_times_beyond_a_held_one",
            whole(without_messages),
        ),
        (
            "04",
            "log: messages not judged",
            "C::test_message_behind_the_frontier_is_refused",
            append(messages=no_check, log=True),
        ),
        (
            "04",
            "log: a held time itself is refused",
            "C::test_message_at_the_frontier_is_legal",
            append(messages=with_beyond(check_messages, only_after), log=True),
        ),
        ("05", "append: entry by entry", T05, append(progress=entry_by_entry)),
        ("05", "append: drops before raises", T05, append(progress=drops_first)),
        ("05", "whole: entry by entry", T05, whole(one_entry_each)),
        ("05", "whole: drops before raises", T05, whole(drops_before_raises)),
        ("05", "append: entry by entry", ORDER, append(progress=entry_by_entry)),
        ("05", "whole: entry by entry", ORDER, whole(one_entry_each)),
        (
            "05",
            "log: entry by entry",
            "C::test_progress_is_judged_as_a_whole",
            append(progress=entry_by_entry, log=True),
            {"order": [0, 1]},
        ),
        (
            "05",
            "log: drops before raises",
            "C::test_progress_is_judged_as_a_whole",
            append(progress=drops_first, log=True),
            {"order": [1, 0]},
        ),
        (
            "05",
            "replay: a batch cut apart",
            "E::test_rule_003_05_progress_of_a_commit_is_replayed_together",
            replay_of(raises_and_drops_apart),
        ),
        (
            "06",
            "append: counts not judged",
            "P::test_rule_003_06_no_count_falls_below_zero",
            append(progress=below_zero),
        ),
        (
            "06",
            "whole: counts not judged",
            "P::test_rule_003_06_no_count_falls_below_zero",
            whole(running_counts=never_negative),
        ),
        (
            "06",
            "log: counts not judged",
            "C::test_progress_that_gives_up_what_is_not_held_is_refused",
            append(progress=below_zero, log=True),
        ),
        ("07", "append: only times that are held themselves", FUTURE, append(**ONLY_ITSELF)),
        ("07", "whole: only times that are held themselves", FUTURE, EXACT),
        ("07", "append: raises not judged", T07, NO_PROGRESS_CHECK),
        ("07", "append: messages not judged", T07, NO_MESSAGE_CHECK),
        ("07", "append: counts not judged", T07, append(progress=below_zero)),
        ("07", "whole: raises not judged", T07, whole(_raised=no_raises)),
        ("07", "whole: messages not judged", T07, whole(without_messages)),
        ("07", "whole: counts not judged", T07, whole(running_counts=never_negative)),
        ("07", "append: messages not judged", DAMAGED, NO_MESSAGE_CHECK, {"name": "g4_i64"}),
        ("07", "whole: messages not judged", DAMAGED, whole(without_messages), {"name": "g4_i64"}),
        ("08", "whole: messages judged by what comes later", MOVED, whole(judged_later)),
        ("08", "whole: messages judged by what comes later", EARLIER, whole(judged_later)),
        ("08", "whole: only times that are held themselves", LATER, EXACT),
        ("08", "whole: a drop later does not count", LATER, whole(judged_later)),
        ("08", "whole: messages judged by the start", LAST, whole(judged_at_the_start)),
        ("08", "append: messages not judged", LAST, NO_MESSAGE_CHECK),
        (
            "08",
            "whole: messages judged by the start",
            "P::test_rule_003_08_example_of_one_stream",
            whole(judged_at_the_start),
        ),
        (
            "08",
            "whole: messages judged by what comes later",
            "P::test_rule_003_08_example_of_one_stream",
            whole(judged_later),
        ),
        (
            "08",
            "log: messages judged by what comes later",
            "C::test_message_is_judged_before_the_progress_of_its_commit",
            judged_twice(AfterProgress),
        ),
        (
            "08",
            "log: messages judged by what comes later",
            "C::test_messages_may_move_earlier_and_progress_later",
            judged_twice(AfterProgress),
        ),
        (
            "08",
            "log: messages not judged",
            "C::test_last_capability_dropped_before_its_message_is_refused",
            append(messages=no_check, log=True),
        ),
        (
            "08",
            "replay: progress before messages",
            "E::test_rule_003_08_no_progress_before_a_message_that_needs_it",
            replay_of(progress_ahead),
        ),
        ("09", "columns: sorted", "P::test_rule_003_09_columns_hold_exactly_what_was_given", columns(sorted)),
        (
            "09",
            "columns: each once",
            "P::test_rule_003_09_columns_hold_exactly_what_was_given",
            columns(lambda content: list(dict.fromkeys(content))),
        ),
        ("09", "log: backwards", "C::test_events_come_in_the_order_of_commits", backwards),
        (
            "09",
            "log: counts at most 1",
            "C::test_capture_records_exactly_what_it_was_given",
            append(progress=one_at_each, log=True),
        ),
        ("09", "log: counts at most 1", SINK, append(progress=one_at_each, log=True), {"arity": 2, "n_tasks": 1}),
        ("09", "replay: a message lost", SINK, each_task(last_message_lost), {"arity": 1, "n_tasks": 3}),
        ("10", "fold: no further counts", FOLD, folded(without_further_counts)),
        ("10", "fold: the order ignored", FOLD, folded(one_after_the_other)),
        (
            "10",
            "whole: only times that are held themselves",
            "P::test_rule_003_10_events_interleaved_one_by_one_stay_legal",
            EXACT,
        ),
        (
            "10",
            "whole: counts not judged",
            "P::test_rule_003_10_events_interleaved_one_by_one_stay_legal",
            whole(judged_later),
        ),
        ("10", "fold: no further counts", MERGED, folded(without_further_counts), C2),
        ("10", "fold: the order ignored", MERGED, folded(one_after_the_other), C2),
        (
            "10",
            "log: one capability for all streams",
            "C::test_any_interleaving_of_streams_says_the_same",
            judged_twice(OneForAll),
        ),
        (
            "10",
            "replay: no further counts",
            "E::test_rule_003_10_any_interleaving_is_legal_for_any_workers",
            each_task(no_further_counts),
        ),
        (
            "10",
            "replay: no further counts",
            "E::test_rule_003_10_any_number_of_queries_makes_the_same_log",
            each_task(no_further_counts),
        ),
        (
            "10",
            "replay: progress lost",
            "E::test_rule_003_10_streams_replayed_together_move_as_in_timely",
            each_task(no_further_counts),
            C2,
        ),
        ("11", "whole: further coordinates ignored", T11, narrowed),
        (
            "11",
            "append: further coordinates of progress ignored",
            T11,
            append(progress=first_coordinate(check_progress)),
        ),
        (
            "11",
            "append: further coordinates of messages ignored",
            T11,
            append(messages=first_coordinate(check_messages)),
        ),
        ("11", "fold: other streams ignored", T11, folded(any_arity)),
        (
            "11",
            "replay: times are plain numbers",
            "E::test_rule_003_11_events_captured_again_keep_the_time_type",
            each_task(wide_times),
            {"kinds": ("short",)},
        ),
        (
            "11",
            "replay: times are plain numbers",
            "E::test_rule_003_11_events_captured_again_keep_the_time_type",
            each_task(wide_times),
            {"kinds": ("timestamp", "long")},
        ),
    ]
]


def run(module: ModuleType, name: str, tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Call a test function as pytest would, drawn ones without shrinking."""
    test = getattr(module, name)
    if hasattr(test, "hypothesis"):
        quick(given(st.data())(test.hypothesis.inner_test))()
        return
    fixtures = {"maker": LogMaker("memory", tmp_path), "tmp_path": tmp_path}
    asked = inspect.signature(test).parameters
    test(**{name: value for name, value in fixtures.items() if name in asked}, **arguments)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"003.{m.rule}-{m.what}-{m.test[:1]}".replace(" ", "_"))
def test_the_test_of_a_rule_fails_without_the_rule(mutant: Mutant, tmp_path: Path, monkeypatch: Patch) -> None:
    letter, name = mutant.test.split("::")
    with monkeypatch.context() as patch:
        mutant.mutate(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception, ProtocolError)):
            run(MODULES[letter], name, tmp_path, mutant.arguments)


def test_every_test_of_the_table_of_rules_has_a_mutant() -> None:
    text = (ROOT / "tests" / "RULES.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([PCE]::\w+)`", text))
    assert len(named) > 30
    assert named == {mutant.test for mutant in MUTANTS}


def test_rules_drawn_of_all_tables_are_noticed_when_broken() -> None:
    """A few by the state of the code: `make mutants` tries all."""
    seed = hashlib.sha256("".join((ROOT / each.file).read_text(encoding="utf-8") for each in breaks()).encode())
    command = [sys.executable, "-m", "tests.mutants.rules", "--draw", "3", "--seed", seed.hexdigest()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
