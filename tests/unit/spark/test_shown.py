"""How dataflows and queries show themselves, in one line and in a notebook."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_timely as st
from spark_timely import functions as tf
from spark_timely.conf.options import SINK_OPTIONS, parse_options
from spark_timely.dataflow.logs import open_logs
from spark_timely.spark.capture.start import CaptureQuery
from spark_timely.spark.dataflows.dataflow import DataflowQuery

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
NO_SPARK: Any = None


class Running:
    """Spark's handle of a query."""

    id = "3f"
    isActive = True
    lastProgress: Any = None


class Broken:
    """Spark's handle after its session has ended."""

    id = "3f"

    @property
    def isActive(self) -> bool:
        raise ConnectionError("<the session> has ended")

    @property
    def lastProgress(self) -> Any:
        raise ConnectionError("<the session> has ended")


@pytest.fixture
def flow(tmp_path: Path) -> st.Dataflow:
    log = st.create_log(tmp_path / "in", SCHEMA, times="timestamp", minimum="2013-01-01")
    rows = [{"_time": None, "k": "a", "n": 5}]
    rows[0]["_time"] = pa.scalar(1_371_074_400_000_000, pa.timestamp("us", "UTC")).as_py()
    log.writer(owner="me").append(rows, advance_to="2013-06-13T16:00Z")
    made = st.Dataflow("delays", checkpoint=str(tmp_path / "checkpoint"))
    late = made.replay(log).filter("n > 3")
    late.aggregate(by="k", n=tf.count()).capture(tmp_path / "hours <b>")
    late.capture(tmp_path / "late")
    return made


def parsed(html: str) -> str:
    """Return the texts of a page, which must be whole."""
    return "\n".join(ET.fromstring(html).itertext())


def test_dataflow_shows_how_many_logs_it_reads_and_writes(flow: st.Dataflow) -> None:
    assert repr(flow) == "Dataflow('delays', inputs=1, outputs=2)"
    assert repr(flow.replay(next(iter(flow._leaves))).probe()) == "Probe('replay_1')"


def test_dataflow_in_a_notebook_is_a_graph_with_frontiers(flow: st.Dataflow, tmp_path: Path) -> None:
    html = flow._repr_html_()
    text = parsed(html)
    for wanted in (
        "replay_1",
        "filter_2",
        "n > 3",
        "frontier 2013-06-13T16:00Z",
        "upper 2013-01-01T00:00Z",
        "hours <b>",
    ):
        assert wanted in text, wanted
    assert html.count("<svg") == 1
    assert "2013-01-01T00:00Z to 2013-06-13T16:00Z" in text
    # An arrow each: replay to filter, filter to aggregate and capture, aggregate to capture.
    assert html.count('fill="none" stroke="currentColor" opacity=".6"') == 4


def test_dataflow_whose_log_is_gone_is_shown_all_the_same(flow: st.Dataflow, tmp_path: Path) -> None:
    (tmp_path / "in" / "_delta_log" / "00000000000000000000.json").write_text("damaged")
    assert "Dataflow(" in parsed(flow._repr_html_())


def test_query_shows_how_far_its_outputs_are(flow: st.Dataflow) -> None:
    logs = open_logs(flow.sinks, flow.storage)
    handle: Any = Running()
    query = DataflowQuery(handle, [flow], NO_SPARK, [logs])
    assert repr(query) == "DataflowQuery('delays', outputs=2, uppers=2013-01-01T00:00Z)"
    logs[flow.sinks[1].path].writer("main", owner=flow.sinks[1].owner).advance("2013-06-12")
    _ = query.frontier
    assert repr(query) == "DataflowQuery('delays', outputs=2, uppers=2013-01-01T00:00Z, 2013-06-12T00:00Z)"
    text = parsed(query._repr_html_())
    for wanted in ("Query 3f runs", "Dataflow delays", "0 of 1", " 0 %", "upper 2013-06-12T00:00Z"):
        assert wanted in text, wanted


def test_query_whose_session_has_ended_is_shown_all_the_same(flow: st.Dataflow, tmp_path: Path) -> None:
    logs = open_logs(flow.sinks, flow.storage)
    handle: Any = Broken()
    query = DataflowQuery(handle, [flow], NO_SPARK, [logs])
    assert "ConnectionError: <the session> has ended" in parsed(query._repr_html_())
    assert repr(query).startswith("DataflowQuery('delays'")
    options = parse_options(SINK_OPTIONS, {"path": str(tmp_path / "x"), "checkpointLocation": "c"})
    capture = CaptureQuery(handle, options, NO_SPARK)
    assert repr(capture) == f"CaptureQuery({str(tmp_path / 'x')!r}, stream='main', checkpoint='c')"
    assert "ConnectionError: <the session> has ended" in parsed(capture._repr_html_())


def test_capture_in_a_notebook_shows_its_stream_and_micro_batch(tmp_path: Path, flow: st.Dataflow) -> None:
    options = parse_options(SINK_OPTIONS, {"path": str(tmp_path / "in"), "checkpointLocation": "c"})
    handle: Any = Running()
    query = CaptureQuery(handle, options, NO_SPARK)
    assert "2013-06-13T16:00Z" in parsed(query._repr_html_())
    handle.lastProgress = {
        "batchId": 7,
        "numInputRows": 12345,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "durationMs": {"triggerExecution": 1500},
    }
    text = parsed(query._repr_html_())
    for wanted in ("Capture 3f runs", "7", "12,345", "1,500 ms"):
        assert wanted in text, wanted
