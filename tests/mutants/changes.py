"""Small changes to a module's text: another operator, another constant, a statement left out.

Each change is a splice of the source, so that a difference shows the lines as they were written. Not changed:
texts for people (errors, docstrings, f-strings), annotations, decorators, `__repr__`.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
NAMES = {
    one: other
    for pair in [
        ("min", "max"),
        ("minimum", "maximum"),
        ("minima", "maxima"),
        ("argmin", "argmax"),
        ("any", "all"),
        ("lower", "upper"),
        ("less_equal", "less_than"),
        ("first", "last"),
    ]
    for one, other in [pair, pair[::-1]]
}
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript, ast.List, ast.Dict)


@dataclass(frozen=True)
class Change:
    """One change to one file.

    Attributes
    ----------
    path
        The file, relative to the project's root.
    line, last_line
        The lines that it touches, from 1, both inclusive.
    where
        The function or method, with the names of what encloses it.
    at_import
        Whether it runs when the module is imported.
    was, becomes
        The touched lines without their common indentation. Together with `path` and `where` they name the change
        for as long as the lines stay as they are, wherever in the file they move.
    splice
        The offset of the first byte that goes, that behind the last one, and the bytes that come.
    """

    path: str
    line: int
    last_line: int
    where: str
    at_import: bool
    was: str
    becomes: str
    splice: tuple[int, int, bytes]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the change, line numbers apart."""
        return self.path, self.where, self.was, self.becomes

    def apply(self, source: bytes) -> bytes | None:
        """Return the changed text of the file, or None where it is no Python."""
        start, end, text = self.splice
        changed = source[:start] + text + source[end:]
        try:
            compile(changed, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return None
        return changed

    def difference(self) -> str:
        """Return the changed lines, as ``-`` and ``+``."""
        lines = difflib.ndiff(self.was.splitlines(), self.becomes.splitlines())
        return "\n".join(line for line in lines if line.startswith(("-", "+")))


def changes_of(root: Path, path: str) -> list[Change]:
    """Return every change to a file, each once, in the order of a walk over its syntax."""
    source = (root / path).read_bytes()
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    found: dict[tuple[str, str, str, str], Change] = {}
    for where, at_import, start, end, text in finder.splices:
        change = _change(path, source, (where, at_import), (start, end, text))
        if change is not None:
            found.setdefault(change.key, change)
    return list(found.values())


def drawn(changes: Iterable[Change], seed: int) -> list[Change]:
    """Return changes in an order that the seed draws.

    Each has its place by what it is, wherever its file is, and whatever else there is to change: after a correction
    elsewhere the same seed tries the same ones again.
    """

    def place(change: Change) -> tuple[bytes, str]:
        text = "\0".join([str(seed), change.where, change.was, change.becomes])
        return hashlib.sha256(text.encode()).digest(), change.path

    return sorted(changes, key=place)


def _change(path: str, source: bytes, place: tuple[str, bool], splice: tuple[int, int, bytes]) -> Change | None:
    start, end, text = splice
    first = source.rfind(b"\n", 0, start) + 1
    last = source.find(b"\n", end)
    last = len(source) if last < 0 else last
    was = source[first:last]
    becomes = source[first:start] + text + source[end:last]
    if was == becomes:
        return None
    line = source.count(b"\n", 0, start) + 1
    return Change(
        path=path,
        line=line,
        last_line=line + source.count(b"\n", start, end),
        where=place[0],
        at_import=place[1],
        was=_dedented(was),
        becomes=_dedented(becomes),
        splice=splice,
    )


def _dedented(text: bytes) -> str:
    lines = text.decode().splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    return "\n".join(line[min(indents, default=0) :].rstrip() for line in lines)


class _Finder(ast.NodeVisitor):
    """Collects the splices: where they are, the bytes that go, and the bytes that come."""

    def __init__(self, source: bytes) -> None:
        self.splices: list[tuple[str, bool, int, int, bytes]] = []
        self._source = source
        starts = [0]
        for line in source.split(b"\n"):
            starts.append(starts[-1] + len(line) + 1)
        self._starts = starts
        self._scope: list[str] = []
        self._functions = 0
        self._bound: Counter[str] = Counter()

    # Places ---------------------------------------------------------------------------------------

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _add(self, start: int, end: int, text: str | bytes) -> None:
        where = ".".join(self._scope) or "<module>"
        self.splices.append((where, not self._functions, start, end, text.encode() if isinstance(text, str) else text))

    def _becomes(self, node: ast.expr | ast.stmt, text: str | bytes) -> None:
        self._add(*self._span(node), text)

    def _becomes_part(self, node: ast.expr, part: ast.expr) -> None:
        start, end = self._span(part)
        text = self._source[start:end]
        self._becomes(node, text if isinstance(part, _ATOMS) else b"(" + text + b")")

    def _operator(self, left: ast.expr, right: ast.expr, was: str, becomes: str) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._source[start:end]
        at = between.find(was.encode())
        if at >= 0:
            self._add(start + at, start + at + len(was), becomes)

    # Statements -----------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in {"__repr__", "__str__"}:
            return
        if all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in node.body):
            return  # abstract: defaults are those of whoever implements it
        self._scope.append(node.name)
        outside, self._bound = self._bound, _bindings(node)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._functions += 1
        for statement in node.body:
            self.visit(statement)
        self._functions -= 1
        self._bound = outside
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring, or an ellipsis
        if not isinstance(node.value, (ast.Yield, ast.YieldFrom)):
            self._becomes(node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._becomes(node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._becomes(node, "pass")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._becomes(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._becomes(node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._becomes(node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave assertions alone: they tell the reader and the type checker what is known."""

    def visit_Assign(self, node: ast.Assign) -> None:
        # Without a name's only assignment nothing runs; that says nothing about the tests.
        names = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets) or (
            names and all(self._bound[name] > 1 for name in names)
        ):
            self._becomes(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._becomes(node, "pass")
        if type(node.op) in ARITHMETIC and not _is_text(node.value):
            was, becomes = ARITHMETIC[type(node.op)]
            self._operator(node.target, node.value, f"{was}=", f"{becomes}=")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._becomes(node.test, "True")
        self._becomes(node.test, "False")
        self.generic_visit(node)

    # Expressions ----------------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._becomes(node.test, "True")
        self._becomes(node.test, "False")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts alone."""

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            was, becomes = COMPARISONS[type(operator)]
            for other in becomes:
                self._operator(left, right, was, other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
            self._operator(node.left, node.right, *ARITHMETIC[type(node.op)])
            if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
                self._becomes_part(node, node.left)
                self._becomes_part(node, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        was, becomes = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._operator(left, right, was, becomes)
        neutral = str(isinstance(node.op, ast.And))
        for value in node.values:
            self._becomes(value, neutral)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.UAdd):
            self._becomes_part(node, node.operand)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in {"min", "max", "minimum", "maximum"} and len(node.args) == 2:
            for part in node.args:
                if not isinstance(part, ast.Starred):
                    self._becomes_part(node, part)
        if name in {"warn", "cast", "TypeVar"}:
            return
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in {"stacklevel", "strict"}:  # where a warning points; what zip asserts
                self.visit(keyword.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id in NAMES:
            self._becomes(node, NAMES[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and node.attr in NAMES:
            _, end = self._span(node)
            self._add(end - len(node.attr.encode()), end, NAMES[node.attr])
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._becomes(node, str(not node.value))
        elif isinstance(node.value, int) and node.value in (0, 1):  # larger ones are sizes and units
            self._becomes(node, str(1 - node.value))

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound in (node.lower, node.upper):
            if bound is not None:
                self._becomes(bound, "None")
        self.generic_visit(node)


def _bindings(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Counter[str]:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = Counter(each.arg for each in arguments)
    names.update(
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return names


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
