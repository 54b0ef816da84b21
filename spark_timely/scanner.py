"""The scanner of Spark's SQL, a tokenizer: cuts a text into the tokens that Spark's own scanner finds.

All that reads SQL begins here: statements (`answers.statements`, `compute.sql`), the bodies of continual tasks
(`continual.body`) and conditions (`predicate`). They read from tokens, and put new text only between two tokens.
`read_trees` gives the text to sqlglot, where a tree is needed.

Invariants
----------
1. Tokens, white space and comments together are the text, byte for byte.
2. A text that is not understood to its end is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_timely.errors import InvalidUsageError, described, shown

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = [
    "BARE", "KEYWORDS", "TAKES_FROM", "UNITS", "Token", "UnreadError", "in_types", "markers", "neighbours",
    "quoted_name", "read_trees", "refused_sql", "scanned", "span", "statements_of", "words_of",
]  # fmt: skip

# The pieces of Spark's SQL, by the rules of its own scanner. Comments with brackets nest: a pattern cannot follow them.
# A text with a doubled quote inside is two texts here, as it is to sqlglot.
_PIECES: Final = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|--(?:\\\n|[^\r\n])*)
    |(?P<comment>/\*(?!\+))
    |(?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[bB][dD]|[lLsSyYfFdD])?(?!\w))
    |(?P<word>\w+)
    |(?P<symbol>/\*\+|\*/|<=>|\|>|\|\||<>|!=|<=|>=|==|->|=>|::|!<|!>|[-+*/%~&|^!<>=(),.\[\]:;?])
    """,
    re.VERBOSE | re.DOTALL,
)


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, with white space between them."""
    return frozenset(text.split())


# Words that begin and join the parts of a query. They name no function, and the case of their letters says nothing.
# Recorded identities depend on this list: do not change it.
KEYWORDS: Final = words_of("""
    all and anti any as asc between both by case cluster cross cube delete desc distinct distribute div else end escape
    except exclude exists false filter following for from full group grouping having ilike in inner insert intersect
    interval into is join lateral leading left like limit minus natural not null nulls offset on or order outer over
    partition pivot preceding range recursive regexp right rlike rollup rows select semi sets some sort table then
    trailing true unbounded union unpivot using values view when where window with within
    """)

BARE: Final = words_of("current_date current_path current_time current_timestamp current_user session_user user")
"""Functions that Spark calls without brackets, where no column has their name."""

# Recorded identities depend on this list too.
UNITS: Final = frozenset(
    f"{unit}{ending}"
    for unit in words_of("year quarter month week day hour minute second millisecond microsecond nanosecond")
    for ending in ("", "s")
)

# Words that sqlglot takes for functions, also where they are names.
_TAKEN_FOR_FUNCTIONS: Final = words_of("current_date current_timestamp current_user session_user")
# How sqlglot shows what it has read, and misses.
_READ: Final = re.compile(r"<Token token_type: TokenType\.(\w+), text: (.*?), line: \d+, col: \d+, .*?>", re.DOTALL)
_MISSED: Final = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*?(\w+)'>")
_MISSED_IN: Final = {"Where": "WHERE", "Limit": "LIMIT", "Union": "UNION", "Between": "BETWEEN", "If": "CASE"}

# In the brackets of these, FROM is followed by a value.
TAKES_FROM: Final = frozenset({"extract", "overlay", "substr", "substring", "trim"})


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text; white space and comments are none.

    Attributes
    ----------
    kind : str
        ``word``, ``quoted``, ``string``, ``number`` or ``symbol``.
    text : str
    start, end : int
        Characters, the end exclusive.
    """

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The word in lower case; nothing if it is no plain word."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """The name that a word or a quoted name stands for."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text

    @property
    def names(self) -> bool:
        """Whether it can be a name."""
        return self.kind in ("word", "quoted")


def scanned(text: str, attempt: str, statement: str | None = None, *, condition: bool = False) -> list[Token]:
    """Return the pieces of a text, as Spark's scanner finds them, without white space and comments.

    Parameters
    ----------
    text : str
    attempt : str
        For errors.
    statement : str, optional
        What to show in errors; the text if not given.
    condition : bool
        Whether it is a condition that Spark does not get as it is: in a statement it would replace ``${…}``.
    """
    shown_text = text if statement is None else statement
    what = "condition" if condition else "statement"
    if "${" in text and not condition:
        hint = "write the value itself: Spark would replace this by a setting of the session"
        raise refused_sql(attempt, "${", shown_text, hint)
    tokens: list[Token] = []
    at = 0
    # Bounded by the length of what a user wrote.
    while at < len(text):
        found = _PIECES.match(text, at)
        kind = found.lastgroup if found else None
        if found is None or kind is None:
            hint = (
                "close what is open" if text[at] in "'\"`" else "leave it out, or quote the name that it is a part of"
            )
            raise refused_sql(attempt, f"character {text[at]!r} at {shown(text[at : at + 20])}", shown_text, hint, what)
        end = found.end()
        if kind == "comment":
            end = _comment_end(text, at)
            if end < 0:
                raise refused_sql(attempt, "a comment without an end", shown_text, "close it with */", what)
        elif kind != "space":
            tokens.append(Token(kind, found.group(), at, end))
        at = end
    if any(token.text == ":" and text.startswith("//", token.end) for token in tokens):
        raise refused_sql(attempt, "a path", shown_text, "declare its contents as a reference", what)
    return tokens


def _comment_end(text: str, at: int) -> int:
    """Return where a comment in brackets ends; they nest. Negative if it does not end."""
    depth = 0
    # Bounded by the marks in what a user wrote.
    for mark in re.compile(r"/\*(?!\+)|\*/").finditer(text, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return -1


def statements_of(tokens: list[Token]) -> list[list[Token]]:
    """Return the statements that are not empty."""
    pieces: list[list[Token]] = [[]]
    for token in tokens:
        if token.kind == "symbol" and token.text == ";":
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [piece for piece in pieces if piece]


class UnreadError(Exception):
    """A text that sqlglot does not read; says why in words of SQL."""


def read_trees(query: str, tokens: list[Token]) -> list[exp.Expr]:
    """Return what sqlglot makes of a text: a tree for each statement.

    Names and functions in it are called as they are in the text, and say where they are there: see `span`.

    Parameters
    ----------
    query : str
    tokens : list of Token
        Its pieces.

    Raises
    ------
    UnreadError
        If it does not read the text.
    """
    import sqlglot  # here, not above: most processes read no SQL
    from sqlglot import exp

    legible, replaced = _legible(query, tokens)
    try:
        trees = [each for each in sqlglot.parse(legible, dialect="spark") if each is not None]
    except RecursionError:
        raise
    except Exception as error:
        raise UnreadError(_why(error, replaced)) from error
    by_place = {token.start: token.text for token in tokens if token.text in replaced.values()}
    words = {other.lower(): word.lower() for other, word in replaced.items()}
    # Bounded by the size of what a user wrote.
    for node in (node for tree in trees if replaced for node in tree.find_all(exp.Identifier, exp.Anonymous)):
        if isinstance(node, exp.Anonymous):
            node.set("this", words.get(str(node.this).lower(), node.this))
        elif node.this in replaced:
            node.set("this", by_place.get(node.meta.get("start", -1), node.this))
    return trees


def _legible(query: str, tokens: list[Token]) -> tuple[str, dict[str, str]]:
    """Return a text that sqlglot reads better, with everything at the same place; and words by what stands for them.

    It does not know the words of ORDER BY with a comment between them, takes the function ``window`` in GROUP BY for
    the clause, and some names for functions.
    """
    parts, at = [], 0
    replaced: dict[str, str] = {}
    for _, token, after in neighbours(tokens):
        parts.append(re.sub(r"\S", " ", query[at : token.start]))
        called = after.text == "("
        text = token.text
        if (token.word == "window" and called) or (token.word in _TAKEN_FOR_FUNCTIONS and not called):
            text = f"{text[0]}_{text[2:]}"
            replaced[text] = token.text
        parts.append(text)
        at = token.end
    return "".join(parts), replaced


def _why(error: Exception, replaced: dict[str, str]) -> str:
    """Return why sqlglot does not read a text, without the names of its classes, and in the words of the text."""
    from sqlglot.errors import ParseError

    first = error.errors[0] if isinstance(error, ParseError) and error.errors else None
    if first is None:
        said = re.sub("\x1b[^m]*m", "", described(error).partition("\n")[0])
    else:
        said = str(first.get("description", ""))
    said = _READ.sub(lambda found: "the end" if found[1] == "SENTINEL" else shown(found[2]), said.rstrip("."))
    said = _MISSED.sub(lambda found: f"an incomplete {_MISSED_IN.get(found[1], 'expression')}", said)
    for other, word in replaced.items():
        said = said.replace(other, word)
    return said if first is None else f"{said} at line {first.get('line')}, col {first.get('col')}"


def span(node: exp.Expr, query: str) -> tuple[int, int]:
    """Return where a name is in the text; nowhere, at the end, if sqlglot does not say."""
    meta = node.meta
    return (meta["start"], meta["end"] + 1) if "start" in meta else (len(query), len(query))


def neighbours(tokens: list[Token]) -> Iterator[tuple[Token, Token, Token]]:
    """Yield each token between the ones before and after it; an empty one stands at either end."""
    nothing = Token("symbol", "", 0, 0)
    yield from zip([nothing, *tokens], tokens, [*tokens[1:], nothing], strict=False)


def markers(tokens: list[Token]) -> list[tuple[int, int]]:
    """Return where ``:time`` is a parameter: not behind a value, where it is a path into one, nor in a type."""
    found = []
    types = in_types(tokens)
    for at, (before, token, after) in enumerate(neighbours(tokens)):
        value = before.kind in ("quoted", "string", "number") or before.text in (")", "]")
        value = value or (before.kind == "word" and (before.word not in KEYWORDS or before.word == "end"))
        if token.text == ":" and after.word == "time" and not value and at not in types:
            found.append((token.start, after.end))
    return found


def in_types(tokens: list[Token]) -> set[int]:
    """Return the indexes of tokens that belong to the type of a cast."""
    found: set[int] = set()
    # Per open bracket: whether it is a cast's, and whether its type has begun.
    opened: list[list[bool]] = []
    for at, (before, token, _) in enumerate(neighbours(tokens)):
        if token.text == ")" and opened:
            opened.pop()
        if before.text == "::" or any(begun for _, begun in opened):
            found.add(at)
        if token.text == "(":
            opened.append([before.word in ("cast", "try_cast"), False])
        elif token.word == "as" and opened and opened[-1][0]:
            opened[-1][1] = True
    return found


def quoted_name(name: str) -> str:
    """Return a name of one part in quotes.

    Examples
    --------
    >>> quoted_name("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def refused_sql(attempt: str, found: str, text: str, hint: str, what: str = "statement") -> InvalidUsageError:
    """Return the error for a text with something in it that is not taken."""
    return InvalidUsageError(f"could not {attempt}: found {found} in {what} {shown(text)}", hint=hint)
