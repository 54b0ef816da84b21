"""Options: names, values of every kind, and the errors that help."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_timely.conf import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Option,
    SinkOptions,
    SourceOptions,
    parse_bytes,
    parse_options,
)
from spark_timely.errors import InvalidOptionError, TimelyError
from spark_timely.time.text import Duration, parse_duration

TABLES = [SINK_OPTIONS, SOURCE_OPTIONS]
ALL: list[Option] = [option for table in TABLES for option in table.options.values()]


def sink(**options: object) -> SinkOptions:
    return parse_options(SINK_OPTIONS, {"path": "log", **options})


def source(**options: object) -> SourceOptions:
    return parse_options(SOURCE_OPTIONS, {"path": "log", **options})


def refused(table: object, given: dict[str, object]) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        parse_options(table, given)
    return str(caught.value)


# --- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ALL, ids=lambda option: option.name)
def test_every_option_has_help_and_a_name_as_users_write_it(option: Option) -> None:
    assert option.help.endswith(".")
    assert re.fullmatch(r"[a-z]+([A-Z][a-z]*)*", option.name)
    assert "|" not in option.help
    assert bool(option.choices) or option.kind != "enum"


@pytest.mark.parametrize("table", TABLES, ids=["sink", "source"])
def test_attribute_is_the_name_in_snake_case(table: object) -> None:
    for attribute, option in table.options.items():
        assert attribute == re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), option.name)


def test_tables_are_those_of_the_design() -> None:
    assert {option.name for option in SINK_OPTIONS.options.values()} == {
        *("path", "stream", "timeColumn", "frontier", "lateness", "maxFutureSkew", "lateData", "onFinish", "streams"),
        *("diffColumn", "targetFileSize", "compression", "autoCompact", "checkpointLocation", "singleWriter"),
        *("idleTimeout", "mergeSchema", "takeover", "beginAt", "dialect", "flush", "credential"),
        *("autoVacuum", "keyColumns", "keep", "keepCommitted", "missingColumns", "badTime", "contentDigest"),
    }
    assert {option.name for option in SOURCE_OPTIONS.options.values()} == {
        *("path", "delivery", "content", "workers", "splitBy", "asOf", "snapshot", "startingFrontier"),
        *("startingVersion", "startingTimestamp", "upTo", "endingVersion", "endingTimestamp", "maxTimesPerTrigger"),
        *("maxFilesPerTrigger", "maxBytesPerTrigger", "maxRowsPerTrigger", "pollInterval", "includeMetadata"),
        *(
            "includeTime",
            "columns",
            "where",
            "streamFilter",
            "failOnDataLoss",
            "credential",
            "alignTo",
            "cut",
            "logs",
            "logOptions",
            "run",
            "alarm",
            "acceptChange",
            "consumerId",
            "consumerExpiry",
        ),
    }


def test_defaults_of_the_sink() -> None:
    options = sink()
    assert (options.stream, options.late_data, options.on_finish, options.streams) == ("main", "error", "hold", 1)
    assert (options.frontier, options.time_column, options.lateness) == (None, (), Duration(0, "time"))
    assert (options.target_file_size, options.compression) == (128 << 20, "zstd")
    assert options.given == {"path"}


def test_defaults_of_the_source() -> None:
    options = source()
    assert (options.delivery, options.content, options.split_by) == ("complete", "messages", "bytes")
    assert (options.snapshot, options.fail_on_data_loss, options.include_time) == (True, True, False)
    assert options.poll_interval.seconds == 0.2
    assert options.workers is None
    assert options.columns is None


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["timeColumn", "timecolumn", "TIMECOLUMN", "time_column", "Time_Column"])
def test_name_is_known_in_any_case_and_in_snake_case(name: str) -> None:
    options = sink(**{name: "t"})
    assert options.time_column == ("t",)
    assert options.given == {"path", "time_column"}


@pytest.mark.parametrize(
    ("name", "near"),
    [("timeColum", "timeColumn"), ("latedata", None), ("lateDate", "lateData"), ("TARGETFILESIZES", "targetFileSize")],
)
def test_unknown_name_offers_the_nearest(name: str, near: str | None) -> None:
    if near is None:
        assert sink(**{name: "advance"}).late_data == "advance"
    else:
        text = refused(SINK_OPTIONS, {"path": "log", name: "x"})
        assert f"found unknown option {name!r} — hint: did you mean {near!r}?" in text


@pytest.mark.parametrize("name", ["alignedTo", "größe", "日本", "", "x" * 5000, "storage"])
def test_unknown_name_without_a_near_one_lists_those_there_are(name: str) -> None:
    text = refused(SINK_OPTIONS, {"path": "log", name: "true"})
    assert "unknown option" in text
    assert "\n" not in text
    assert "did you mean" in text or all(option.name in text for option in SINK_OPTIONS.options.values())
    assert len(text) < 1000


@pytest.mark.parametrize("name", ["readChangeFeed2", "pushdown"])
def test_options_of_later_versions_are_unknown(name: str) -> None:
    assert "unknown option" in refused(SOURCE_OPTIONS, {"path": "log", name: "true"})


def test_option_given_twice_is_refused() -> None:
    text = refused(SINK_OPTIONS, {"path": "log", "lateData": "error", "LATE_DATA": "error"})
    assert "option 'lateData' twice, as 'lateData' and 'LATE_DATA'" in text


@pytest.mark.parametrize("table", TABLES, ids=["sink", "source"])
def test_path_must_be_given(table: object) -> None:
    assert "found no option 'path' — hint: set 'path'" in refused(table, {})
    assert "found no option 'path'" in refused(table, {"path": None})


def test_keys_that_spark_adds_are_passed_over() -> None:
    assert sink(queryname="q", checkpointlocation="c").checkpoint_location == "c"
    assert "did you mean 'path'" in refused(SOURCE_OPTIONS, {"paths": '["a", "b"]'})


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        (
            {"startingFrontier": "[5]", "startingVersion": "3"},
            "'startingFrontier', 'startingVersion' — hint: give at most one of 'asOf', 'startingFrontier', "
            "'startingVersion', 'startingTimestamp'",
        ),
        ({"asOf": "5", "startingTimestamp": "latest"}, "'asOf', 'startingTimestamp'"),
        (
            {"upTo": "[5]", "endingVersion": 1, "ending_timestamp": "2013-01-01"},
            "'upTo', 'endingVersion', 'endingTimestamp'",
        ),
    ],
)
def test_conflicting_options_are_listed(options: dict[str, object], listed: str) -> None:
    assert f"found conflicting options {listed}" in refused(SOURCE_OPTIONS, {"path": "log", **options})


def test_storage_options_keep_their_own_names() -> None:
    options = sink(**{"storage.AWS_REGION": "x", "Storage.timeout": 3})
    assert options.storage_options == {"AWS_REGION": "x", "timeout": "3"}
    assert sink().storage_options == {}


def test_secrets_of_the_storage_are_not_shown() -> None:
    assert "hunter2" not in repr(sink(**{"storage.AWS_SECRET_ACCESS_KEY": "hunter2"}))


def test_given_mapping_is_not_modified_and_result_pickles() -> None:
    mapping: dict[str, object] = {"path": "log", "lateness": "10 minutes", "timeColumn": "a, b"}
    before = dict(mapping)
    options = parse_options(SINK_OPTIONS, mapping)
    assert mapping == before
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(AttributeError):
        options.stream = "other"


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20) | st.integers() | st.booleans() | st.none()))
def test_anything_is_parsed_or_refused_by_an_error_of_ours(mapping: dict[str, object]) -> None:
    for table in TABLES:
        try:
            parse_options(table, mapping)
        except TimelyError as error:
            text = str(error)
        else:
            text = "parsed"
        assert len(text.splitlines()) == 1


@given(
    st.dictionaries(
        st.sampled_from(sorted({option.name for option in ALL})), st.text(max_size=12) | st.integers(), min_size=1
    )
)
def test_any_value_is_parsed_or_refused_by_an_error_of_ours(mapping: dict[str, object]) -> None:
    for table in TABLES:
        try:
            parse_options(table, {"path": "log", **mapping})
        except TimelyError as error:
            text = str(error)
        else:
            text = "parsed"
        assert len(text.splitlines()) == 1


# --- values of each kind -----------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("true", True), (" FALSE ", False), ("True", True), (True, True)])
def test_bool(text: object, value: bool) -> None:
    assert source(includeTime=text).include_time is value


@pytest.mark.parametrize("text", ["yes", "1", 1, "", "truee", "ｔｒｕｅ"])
def test_bool_refuses_other_words(text: object) -> None:
    assert "hint: expected 'true' or 'false'" in refused(SOURCE_OPTIONS, {"path": "log", "snapshot": text})


@pytest.mark.parametrize(("text", "value"), [("8", 8), (" 08 ", 8), (3, 3), ("+1", 1)])
def test_int(text: object, value: int) -> None:
    assert source(workers=text).workers == value


@pytest.mark.parametrize("text", ["0", -1, "1.0", 1.0, "1_000", "٣", "three", "", True, "9223372036854775808"])
def test_int_refuses_what_is_none_or_too_small_or_large(text: object) -> None:
    assert "found workers=" in refused(SOURCE_OPTIONS, {"path": "log", "workers": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1b", 1), ("2k", 2048), ("2 KB", 2048), ("128mb", 128 << 20), ("1GiB", 1 << 30), ("1t", 1 << 40)],
)
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value
    assert sink(targetFileSize=text).target_file_size == value


@pytest.mark.parametrize("text", ["0", "-1", "1.5g", "1 zb", "mb", "", "9999999999t", 0, True])
def test_bytes_refuses_the_rest(text: object) -> None:
    assert "found targetFileSize=" in refused(SINK_OPTIONS, {"path": "log", "targetFileSize": text})


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("10 minutes", 600_000_000),
        ("10min", 600_000_000),
        ("1h", 3_600_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        ("1h, 30m", 5_400_000_000),
        ("INTERVAL 2 Days", 172_800_000_000),
        ("1 week", 604_800_000_000),
        ("200ms", 200_000),
        ("1.5s", 1_500_000),
        ("3us", 3),
        ("3 µs", 3),
        ("PT1H30M", 5_400_000_000),
        ("pt0.000001s", 1),
        ("P1DT1S", 86_401_000_000),
        ("P2W", 1_209_600_000_000),
        ("0 seconds", 0),
        (timedelta(minutes=1), 60_000_000),
    ],
)
def test_duration(text: object, microseconds: int) -> None:
    assert parse_duration(text) == Duration(microseconds, "us")
    assert sink(lateness=text).lateness.in_units("timestamp") == microseconds


@pytest.mark.parametrize(
    "text",
    [
        *("ten minutes", "", "-1", "-1 s", "10 fortnights", "1 month", "P1M", "P1Y", "PT", "P", "0.5us", "1 2 s"),
        *("1e3 s", "minutes", "5 s ago", "99999999999999 days", "١ s", True, 1.5),
    ],
)
def test_duration_refuses_the_rest(text: object) -> None:
    assert "found lateness=" in refused(SINK_OPTIONS, {"path": "log", "lateness": text})


def test_months_are_refused_with_the_reason() -> None:
    assert "no fixed length" in refused(SINK_OPTIONS, {"path": "log", "lateness": "1 month"})


def test_plain_number_is_a_time_of_integers_alone() -> None:
    assert sink(lateness="7").lateness == Duration(7, "time")
    assert sink(lateness=7).lateness.in_units("short") == 7
    for type_, written in (("timestamp", "'7 s', '7 ms' or '7 us'"), ("date", "'7 days'")):
        with pytest.raises(InvalidOptionError, match=r"option .lateness.*found 7, a number without a unit") as caught:
            sink(lateness=7).lateness.in_units(type_, option="lateness")
        assert caught.value.hint == f"write {written}"
        assert sink(lateness=0).lateness.in_units(type_) == 0


@pytest.mark.parametrize("given_", [600, "600", "0600"])
def test_issue_14_a_duration_of_the_clock_needs_a_unit(given_: object) -> None:
    text = refused(SINK_OPTIONS, {"path": "log", "idleTimeout": given_})
    assert f"found idleTimeout={given_!r}" in text
    assert "write the number with its unit: '600 s', '600 ms' or '600 us'" in text
    assert "found pollInterval=" in refused(SOURCE_OPTIONS, {"path": "log", "pollInterval": given_})
    assert source(pollInterval=0).poll_interval == source(pollInterval="0").poll_interval == Duration(0)


def test_duration_in_units_of_each_type() -> None:
    assert parse_duration("2 days").in_units("date") == 2
    assert parse_duration("0 s").in_units("long") == 0
    with pytest.raises(InvalidOptionError, match="no whole number of days"):
        parse_duration("36 hours").in_units("date")
    with pytest.raises(InvalidOptionError, match=r"hint: write a plain number .*: integer times have no clock"):
        parse_duration("1 s").in_units("long")
    with pytest.raises(InvalidOptionError, match="found no unit"):
        _ = Duration(3, "time").seconds


@given(st.integers(min_value=0, max_value=2**62), st.sampled_from(["us", "microseconds"]))
def test_duration_round_trip(amount: int, unit: str) -> None:
    assert parse_duration(f"{amount} {unit}").amount == amount
    assert parse_duration(Duration(amount).text) == Duration(amount)


def test_durations_are_written_as_people_do() -> None:
    assert Duration(43_200_000_000).text == "12 hours"
    assert Duration(2**63 - 1).text == (
        "106751991 days 4 hours 54 seconds 775 milliseconds 807 microseconds"
    )  # fmt: skip
    assert parse_duration(Duration(2**63 - 1).text) == Duration(2**63 - 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ("a",)),
        (" a , b ", ("a", "b")),
        ('["a,b", "ü"]', ("a,b", "ü")),
        (["x", "y"], ("x", "y")),
        ("a b", ("a b",)),
    ],
)
def test_names(text: object, names: tuple[str, ...]) -> None:
    assert source(columns=text).columns == names


@pytest.mark.parametrize("text", ["", "a,,b", ",", "[]", "[1]", '["a"', "a,a", 3, ["", "a"], '{"a": 1}x,'])
def test_names_refuses_the_rest(text: object) -> None:
    given: dict[str, object] = {"path": "log", "columns": text}
    if text == '{"a": 1}x,':  # a comma at the end leaves an empty name
        assert "hint: expected names" in refused(SOURCE_OPTIONS, given)
    else:
        assert "found columns=" in refused(SOURCE_OPTIONS, given)


@pytest.mark.parametrize("text", ["main", "a_1", "X"])
def test_stream_name(text: str) -> None:
    assert sink(stream=text).stream == text


@pytest.mark.parametrize("text", ["", "a-b", "a b", "#open", "ü", "a\n", 3])
def test_stream_name_refuses_the_rest(text: object) -> None:
    assert "letters, digits" in refused(SINK_OPTIONS, {"path": "log", "stream": text})


@pytest.mark.parametrize(("text", "word"), [("deadletter", "deadLetter"), (" ERROR ", "error"), ("advance", "advance")])
def test_enum(text: str, word: str) -> None:
    assert sink(lateData=text).late_data == word


def test_enum_lists_what_is_allowed() -> None:
    text = refused(SINK_OPTIONS, {"path": "log", "frontier": "sink"})
    assert text.endswith("found frontier='sink' — hint: expected one of 'batch', 'bounded', 'source', 'events', 'hold'")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[5]", [5]),
        ("[]", []),
        ("[[1, 2], [2, 1]]", [[1, 2], [2, 1]]),
        ("5", 5),
        ("-5", -5),
        ("2013-01-01T00:00:00Z", "2013-01-01T00:00:00Z"),
        ('["2013-01-01"]', ["2013-01-01"]),
        ("LATEST", "latest"),
        ([5], [5]),
        (5, 5),
    ],
)
def test_antichain_is_read_as_json(text: object, value: object) -> None:
    assert source(startingFrontier=text).starting_frontier == value


@pytest.mark.parametrize(
    "text", ["[5", "[5.5]", "[[[1]]]", '{"a": 1}', "[true]", "[null]", "", "[NaN]", "[" * 9999, 1.5]
)
def test_antichain_refuses_what_is_none(text: object) -> None:
    assert "found upTo=" in refused(SOURCE_OPTIONS, {"path": "log", "upTo": text})


def test_seq() -> None:
    assert source(startingVersion="earliest").starting_version == "earliest"
    assert source(startingVersion="12").starting_version == 12
    assert source(endingVersion=0).ending_version == 0
    assert "or 'earliest' or 'latest'" in refused(SOURCE_OPTIONS, {"path": "log", "startingVersion": "first"})
    assert "found endingVersion='latest'" in refused(SOURCE_OPTIONS, {"path": "log", "endingVersion": "latest"})
    assert "expected at least 0" in refused(SOURCE_OPTIONS, {"path": "log", "startingVersion": -1})


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01 01:00:00.000001+01:00", 1),
        ("1969-12-31T23:59:59.999999", -1),
        (date(1970, 1, 2), 86_400_000_000),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(2013, 1, 1, tzinfo=UTC), 1_356_998_400_000_000),
    ],
)
def test_wallclock_is_utc_without_a_zone(text: object, microseconds: int) -> None:
    # The tests' driver runs in another zone: a local reading would show.
    assert source(startingTimestamp=text).starting_timestamp == microseconds


@pytest.mark.parametrize("text", ["yesterday", "", "2013-02-30", "12", 5])
def test_wallclock_refuses_the_rest(text: object) -> None:
    assert "expected a moment" in refused(SOURCE_OPTIONS, {"path": "log", "endingTimestamp": text})


def test_path_may_be_a_path_object_or_any_unicode(tmp_path: Path) -> None:
    assert parse_options(SINK_OPTIONS, {"path": tmp_path}).path == str(tmp_path)
    assert parse_options(SINK_OPTIONS, {"path": "日本/ü log"}).path == "日本/ü log"
    assert "found path=' '" in refused(SINK_OPTIONS, {"path": " "})
    assert "found path=3" in refused(SINK_OPTIONS, {"path": 3})


def test_long_value_is_cut_in_the_message() -> None:
    assert "(5002 characters)" in refused(SINK_OPTIONS, {"path": "log", "frontier": "x" * 5000})


@pytest.mark.parametrize(("name", "hint"), [("tableName", r"table_path\(spark, name\)"), ("pushdown", "by `where`")])
def test_options_of_other_connectors_name_what_there_is_instead(name: str, hint: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"found unknown option '{name}' — hint: .*{hint}"):
        parse_options(SOURCE_OPTIONS, {"path": "log", name: "x"})
