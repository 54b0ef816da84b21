"""Count lines of code, without blank lines, comments and docstrings: ``bash scripts/run.sh scripts/size.py``.

Printed are the files and lines of each folder, then each file above `LARGE`. With a folder as argument another checkout
is counted.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spark_timely", "conf", "datasource", "sink")
LARGE = 600
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Return how many lines of a module have code in them."""
    words: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # a docstring, of an attribute too
                words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - words)


def sizes(root: Path = ROOT) -> dict[str, int]:
    """Return the lines of each file of the product, by its path."""
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    return {str(file.relative_to(root)): code_lines(file.read_text()) for file in files}


def main() -> int:
    """Print the tables."""
    found = sizes(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    files, lines = Counter[str](), Counter[str]()
    for file, n in found.items():
        folder = str(Path(file).parent)
        files[folder] += 1
        lines[folder] += n
    for folder in sorted(files):
        print(f"{folder:32} {files[folder]:4} files {lines[folder]:6} lines")
    print(f"{'all':32} {len(found):4} files {sum(found.values()):6} lines")
    for file, n in sorted(found.items(), key=lambda each: -each[1]):
        if n > LARGE:
            print(f"  {n:5} {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
