"""What notebooks show: escaped, without secrets, scripts or colours, and whatever happens."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from spark_timely.masking import forget_secrets, keep_secret
from spark_timely.notebook import Node, bar, facts_table, graph, page, shown_in_notebook, sized, table

HOSTILE = "</td><script>alert('x')</script>&\"<b>"


def whole(html: str) -> ET.Element:
    """Parse a page as XML: every tag is closed, and every text escaped."""
    return ET.fromstring(f"<body>{html}</body>")


def a_page() -> str:
    nodes = [Node("in", (HOSTILE,)), Node("out", ("x" * 100,), inputs=("in", "missing"), strong=True)]
    return page(
        HOSTILE,
        facts_table([(HOSTILE, HOSTILE), ("nothing", None)]),
        table((HOSTILE, "done"), [(HOSTILE, bar(1, 3))]),
        graph(nodes),
    )


def test_texts_of_others_are_never_taken_for_html() -> None:
    found = whole(a_page())
    assert not list(found.iter("script"))
    assert not list(found.iter("b"))
    assert HOSTILE in "".join(found.itertext())


def test_nothing_is_loaded_and_no_colour_is_set() -> None:
    html = a_page()
    assert not re.search(r"https?:|src=|href=|url\(|@import|\bon[a-z]+=", html)
    for name, value in re.findall(r"(fill|stroke|color|background)[=:]\"?([^;\" ]+)", html):
        assert value in ("currentColor", "none", "transparent", "inherit"), name


def test_secrets_are_masked_before_texts_are_cut() -> None:
    keep_secret({"account_key": "hunter2hunter2hunter2hunter2hunter2hunter2hunter2"})
    try:
        html = graph(
            [Node("s3://me:password@bucket", ("a" * 30 + "hunter2hunter2hunter2hunter2hunter2hunter2hunter2",))]
        )
        assert "hunter2" not in html
        assert "password" not in html
    finally:
        forget_secrets()


def test_graph_has_each_node_right_of_its_inputs() -> None:
    nodes = [Node("d", inputs=("b", "c")), Node("c", inputs=("a",)), Node("b", inputs=("a",)), Node("a")]
    found = whole(graph(nodes))
    boxes = [float(box.attrib["x"]) for box in found.iter("rect")]
    names = [text.text for text in found.iter("text")]
    at = dict(zip(names, boxes, strict=True))
    assert at["a"] < at["b"] == at["c"] < at["d"]
    (drawing,) = found.iter("svg")
    for box in found.iter("rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= float(drawing.attrib["width"])
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= float(drawing.attrib["height"])


@pytest.mark.parametrize("n_nodes", [0, 1, 200, 201])
def test_graph_of_any_size_is_shown(n_nodes: int) -> None:
    nodes = [Node(f"n{i}", inputs=(f"n{i - 1}",)) for i in range(n_nodes)]
    found = whole(graph(nodes))
    shown = "".join(found.itertext())
    assert all(node.name in shown for node in nodes)
    assert len(list(found.iter("svg"))) == (1 if 0 < n_nodes <= 200 else 0)


def test_long_lines_are_cut_and_of_a_path_the_end_is_kept() -> None:
    path, condition = "/f" * 50 + "/orders", "n > 1 AND " * 20
    _, *lines = whole(graph([Node("a", (path, condition))])).iter("text")
    # The whole line is there too, as what a mouse finds.
    assert ["".join(line.itertext()) for line in lines] == [
        f"{path}…{path[-37:]}",
        f"{condition}{condition[:37]}…",
    ]


def test_graph_with_a_circle_ends() -> None:
    whole(graph([Node("a", inputs=("b",)), Node("b", inputs=("a",))]))


@pytest.mark.parametrize(("done", "total", "percent"), [(0, 0, 100), (0, 9, 0), (999, 1000, 99), (5, 4, 100)])
def test_bar_is_full_only_where_all_is_done(done: int, total: int, percent: int) -> None:
    assert f"{percent} %" in bar(done, total)
    whole(bar(done, total))


@pytest.mark.parametrize(("size", "text"), [(1023, "1023 bytes"), (1 << 20, "1.0 MB"), (1 << 60, "1024.0 PB")])
def test_sizes_are_written_with_their_unit(size: int, text: str) -> None:
    assert sized(size) == text


def test_failure_to_show_is_shown() -> None:
    def fails() -> str:
        raise OSError("could not reach <storage>")

    html = shown_in_notebook("a <log>", fails)
    assert "could not reach &lt;storage&gt;" in html
    assert "a &lt;log&gt;" in html
    whole(html)
