"""HTML for notebooks: tables, bars and graphs of logs, dataflows and queries.

Objects that show themselves in a notebook call it in their ``_repr_html_``: a log (`log.log`), a capture
(`spark.capture.start`), a dataflow (`spark.dataflows.dataflow`, with the graph of `dataflow.engine.explain`). They give
the facts, it makes the page.

Invariants
----------
1. Everything that comes from a log, a query or a user goes through `text`, which escapes it and takes secrets out.
2. There are no scripts, and nothing is loaded from elsewhere.
3. The only colour is that of the notebook's own text, in several strengths: so a page is legible on light and on dark.
4. To show something never fails: where a fact cannot be found out, the page says so in its place.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_timely.errors import described
from spark_timely.masking import masked

__all__ = ["Node", "bar", "counted", "facts_table", "graph", "page", "shown_in_notebook", "sized", "table", "text"]

_FRAME: Final = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.4;margin:4px 0;overflow-x:auto"
# Said of each cell: tables of notebooks have rules of their own.
_CELL: Final = (
    "text-align:left;vertical-align:baseline;padding:2px 14px 2px 0;white-space:pre-wrap;font-size:12px;"
    "line-height:1.4;background:transparent;border:none"
)
_HEAD: Final = f"{_CELL};font-weight:600;border-bottom:1px solid"
_TABLE: Final = "border-collapse:collapse;margin:4px 0;border:none;color:inherit"
_MONO: Final = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px"
# Of the text in a graph: its size, the width of a character, and the height of a line, in pixels.
_FONT, _CHARACTER, _LINE = 11, 6.7, 15
_PAD, _GAP_X, _GAP_Y = 8, 34, 14
_WIDEST = 38
_MOST_NODES = 200


@dataclass(frozen=True, slots=True)
class Node:
    """A box of a graph.

    Parameters
    ----------
    name : str
        The same in no other node.
    lines : tuple of str
        What stands in the box, below the name.
    inputs : tuple of str
        Names of the nodes from which arrows lead to it.
    strong : bool
        Whether its border is a thick one.
    """

    name: str
    lines: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    strong: bool = False


def text(value: object, /) -> str:
    """Return a value as text of a page: without secrets, and with nothing that would be taken for HTML.

    Examples
    --------
    >>> text("a <b> & s3://user:secret@bucket")
    'a &lt;b&gt; &amp; s3://***@bucket'
    """
    return html.escape("" if value is None else masked(str(value)), quote=True)


def shown_in_notebook(value: object, make: Callable[[], str], /) -> str:
    """Return a page of a value, or what the value is and why there is none.

    Examples
    --------
    >>> "ZeroDivisionError" in shown_in_notebook("a log", lambda: str(1 // 0))
    True
    """
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - whatever a store or a session raises, a cell of a notebook shows it
        return page(repr(value), facts_table([("not shown", described(error))]))


def page(title: str, /, *parts: str) -> str:
    """Return what a cell shows: a title, and parts made by the other functions.

    Examples
    --------
    >>> page("Log /a").startswith("<div")
    True
    """
    return f'<div style="{_FRAME}"><div style="font-weight:600">{text(title)}</div>{"".join(parts)}</div>'


def facts_table(facts: Iterable[tuple[str, object]], /) -> str:
    """Return a table of names and values.

    Examples
    --------
    >>> "<td" in facts_table([("frontier", "complete")])
    True
    """
    rows = "".join(
        f'<tr style="background:transparent"><td style="{_CELL};opacity:.65">{text(name)}</td>'
        f'<td style="{_CELL};{_MONO}">{text(value)}</td></tr>'
        for name, value in facts
    )
    return f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], /) -> str:
    """Return a table with a head; nothing where there are no rows.

    A cell that `bar` made is one, all others are texts.

    Examples
    --------
    >>> table(("stream",), [])
    ''
    """
    body = "".join(
        '<tr style="background:transparent">'
        + "".join(f'<td style="{_CELL};{_MONO}">{_cell(value)}</td>' for value in row)
        + "</tr>"
        for row in rows
    )
    if not body:
        return ""
    names = "".join(f'<th style="{_HEAD}">{text(name)}</th>' for name in head)
    return f'<table style="{_TABLE}"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>'


class _Made(str):
    """HTML that was made here, in place of a text."""

    __slots__ = ()


def _cell(value: object) -> str:
    return str(value) if isinstance(value, _Made) else text(value)


def bar(done: int, total: int, /) -> str:
    """Return a bar of how much of something is done, for a cell of a table.

    Examples
    --------
    >>> "75 %" in bar(3, 4), "100 %" in bar(0, 0)
    (True, True)
    """
    share = 1.0 if total <= 0 else min(max(done / total, 0.0), 1.0)
    percent = int(share * 100)  # 100 only where all is done
    return _Made(
        f'<svg width="120" height="10" role="img" aria-label="{percent} %" style="color:inherit">'
        '<rect x="0.5" y="0.5" width="119" height="9" rx="3" fill="none" stroke="currentColor" opacity=".5"/>'
        f'<rect x="0.5" y="0.5" width="{119 * share:.1f}" height="9" rx="3" fill="currentColor" opacity=".55"/></svg>'
        f" {percent} %"
    )


def counted(number: int | None, /) -> str:
    """Return a number of things as people write it.

    Examples
    --------
    >>> counted(1234567), counted(None)
    ('1,234,567', 'not known')
    """
    return "not known" if number is None else f"{number:,}"


def sized(n_bytes: int, /) -> str:
    """Return a size as people write it.

    Examples
    --------
    >>> sized(900), sized(1536), sized(5 << 30)
    ('900 bytes', '1.5 kB', '5.0 GB')
    """
    if n_bytes < 1024:
        return f"{n_bytes} bytes"
    size, units = float(n_bytes), iter(("kB", "MB", "GB", "TB", "PB"))
    unit = ""
    while size >= 1024 and (after := next(units, None)) is not None:
        size, unit = size / 1024, after
    return f"{size:.1f} {unit}"


def graph(nodes: Sequence[Node], /) -> str:
    """Return a drawing of boxes and arrows, from left to right.

    Parameters
    ----------
    nodes : sequence of Node
        Inputs that are not among them are left out. Of more than 200 nodes there is no drawing, but a table.

    Returns
    -------
    str
        SVG, in a box that scrolls.

    Examples
    --------
    >>> graph([Node("in"), Node("out", inputs=("in",))]).count("<path")
    2
    """
    if not nodes:
        return ""
    if len(nodes) > _MOST_NODES:
        return table(("operator", "of", ""), [(n.name, ", ".join(n.inputs), "\n".join(n.lines)) for n in nodes])
    known = {node.name: node for node in nodes}
    columns = _columns(known)
    places: dict[str, tuple[float, float, float, float]] = {}
    x = 1.0
    for column in columns:  # from left to right
        width = max(_width(known[name]) for name in column)
        y = 1.0
        for name in column:
            height = _LINE * (1 + len(known[name].lines)) + 2 * _PAD - 4
            places[name] = (x, y, width, height)
            y += height + _GAP_Y
        x += width + _GAP_X
    width = x - _GAP_X + 1
    lowest = max(y + h for _, y, _, h in places.values()) + 1
    arrows = "".join(
        _arrow(places[source], places[name])
        for name, node in known.items()
        for source in node.inputs
        if source in known
    )
    boxes = "".join(_box(node, *places[name]) for name, node in known.items())
    return (
        '<div style="overflow-x:auto">'
        f'<svg width="{width:.0f}" height="{lowest:.0f}" viewBox="0 0 {width:.0f} {lowest:.0f}" role="img" '
        f'style="color:inherit;{_MONO};font-size:{_FONT}px">{arrows}{boxes}</svg></div>'
    )


def _columns(known: Mapping[str, Node]) -> list[list[str]]:
    """Return the names by their distance from the inputs, each column ordered by where its inputs are."""
    depth: dict[str, int] = {}
    waiting = list(known)
    for _ in range(len(known)):  # at most once a node: there are no cycles, and a cycle ends here too
        later = []
        for name in waiting:
            inputs = [source for source in known[name].inputs if source in known]
            if all(source in depth for source in inputs):
                depth[name] = 1 + max((depth[source] for source in inputs), default=-1)
            else:
                later.append(name)
        if not later or len(later) == len(waiting):
            break
        waiting = later
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for name in known:
        columns[depth.get(name, 0)].append(name)
    rank: dict[str, float] = {}
    for column in columns:
        column.sort(key=lambda name: _middle([rank[each] for each in known[name].inputs if each in rank]))
        rank.update({name: i / len(column) for i, name in enumerate(column)})
    return [column for column in columns if column]


def _middle(ranks: Sequence[float]) -> float:
    return sum(ranks) / len(ranks) if ranks else 0.0


def _cut(line: str) -> str:
    """Return as much of a line as fits: of a path its end, which says which log it is."""
    if len(line) <= _WIDEST:
        return line
    is_path = "/" in line and " " not in line
    return "…" + line[1 - _WIDEST :] if is_path else line[: _WIDEST - 1] + "…"


def _width(node: Node) -> float:
    return max(len(_cut(line)) for line in (node.name, *node.lines)) * _CHARACTER + 2 * _PAD


def _box(node: Node, x: float, y: float, width: float, height: float) -> str:
    weight = 1.8 if node.strong else 0.8
    parts = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="currentColor" '
        f'fill-opacity=".05" stroke="currentColor" stroke-width="{weight}"/>'
    ]
    for number, line in enumerate((node.name, *node.lines)):
        style = 'font-weight="600"' if number == 0 else 'opacity=".8"'
        at = y + _PAD + _LINE * number + _FONT - 2
        whole = f"<title>{text(line)}</title>" if _cut(line) != line else ""
        parts.append(
            f'<text x="{x + _PAD:.1f}" y="{at:.1f}" fill="currentColor" xml:space="preserve" {style}>'
            f"{whole}{text(_cut(masked(line)))}</text>"
        )
    return "".join(parts)


def _arrow(source: tuple[float, float, float, float], target: tuple[float, float, float, float]) -> str:
    x0, y0 = source[0] + source[2], source[1] + source[3] / 2
    x1, y1 = target[0], target[1] + target[3] / 2
    bend = max((x1 - x0) / 2, 12)
    return (
        f'<path d="M{x0:.1f} {y0:.1f} C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1 - 5:.1f} {y1:.1f}" '
        'fill="none" stroke="currentColor" opacity=".6"/>'
        f'<path d="M{x1 - 6:.1f} {y1 - 3.5:.1f} L{x1:.1f} {y1:.1f} L{x1 - 6:.1f} {y1 + 3.5:.1f} Z" '
        'fill="currentColor" opacity=".7"/>'
    )
