"""Tables of options as Markdown, and their places in a page of the documentation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from spark_timely.errors import InvalidUsageError

if TYPE_CHECKING:
    from spark_timely.conf.kinds import Option
    from spark_timely.conf.options import OptionTable, ParsedT

__all__ = ["render_markdown", "rendered"]


def render_markdown(table: OptionTable[ParsedT], /) -> str:
    """Render a table of options as Markdown, for the documentation.

    Parameters
    ----------
    table : OptionTable
        `SINK_OPTIONS` or `SOURCE_OPTIONS`.

    Returns
    -------
    str
        A table with a line per option, ending with a line feed.

    Examples
    --------
    >>> from spark_timely.conf.options import SINK_OPTIONS
    >>> print(render_markdown(SINK_OPTIONS).splitlines()[3])
    | `stream` | letters, digits, `_` | `main` | Which stream of the log this query is. |
    """
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for option in table.options.values():
        default = "required" if option.required else f"`{option.default}`" if option.default else ""
        lines.append(f"| `{option.name}` | {_values_text(option)} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


def rendered(text: str, /, **tables: OptionTable[Any]) -> str:
    r"""Put tables of options between their marks in a Markdown text.

    Parameters
    ----------
    text : str
        Markdown with lines ``<!-- options: NAME -->`` and ``<!-- end -->``. Not modified.
    **tables : OptionTable
        The table of each name.

    Returns
    -------
    str
        The text with all that was between the marks replaced.

    Raises
    ------
    InvalidUsageError
        If a table has no marks in the text.

    Examples
    --------
    >>> from spark_timely.conf.options import SINK_OPTIONS
    >>> text = rendered("<!-- options: sink -->\nstale\n<!-- end -->\n", sink=SINK_OPTIONS)
    >>> "stale" in text, "`timeColumn`" in text
    (False, True)
    """
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- options: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        markdown = render_markdown(table)
        # Not as a template: a backslash in a help text would mean something.
        parts = pattern.split(text)
        n_found = len(parts) // 3
        text = "".join(part + (markdown if index % 3 == 1 else "") for index, part in enumerate(parts))
        if n_found == 0:
            msg = f"could not render the options {name!r}: found no line '<!-- options: {name} -->' with an end"
            raise InvalidUsageError(msg, hint="add the two marks where the table shall be")
    return text


_KIND_TEXT: dict[str, str] = {
    "str": "text",
    "name": "letters, digits, `_`",
    "names": "names, comma separated or a JSON list",
    "int": "number",
    "bool": "`true`, `false`",
    "bytes": "size such as `128mb`",
    "antichain": 'one time, or a JSON antichain such as `[5]` or `["2013-06-12"]`',
    "seq": "number",
    "wallclock": "moment such as `2013-01-01T00:00Z`",
}


def _values_text(option: Option) -> str:
    words = ", ".join(f"`{word}`" for word in option.choices)
    if option.kind == "enum":
        return words
    kind = option.unit if option.kind in ("duration", "distance") else _KIND_TEXT[option.kind]
    return f"{kind}, {words}" if words else kind
