"""The short examples print what their heads say, and are short."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from tests.modules import ROOT
from tests.pages import Step, run

EXAMPLES = sorted((ROOT / "examples" / "short").glob("*.py"))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run all in one process, for Spark knows relative paths from where its JVM began; each finds the folder empty."""
    folder = tmp_path_factory.mktemp("examples")
    empty = "import runpy, shutil; from pathlib import Path\n" + textwrap.dedent(
        """
        for each in Path().iterdir():
            if not each.name.startswith("."):
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        """
    )
    codes = [f"{empty}\nrunpy.run_path({str(file)!r}, run_name='__main__')\n" for file in EXAMPLES]
    found = run([Step(code, "", (0, 0), has_place=True) for code in codes], folder)
    return {file.stem: text for file, text in zip(EXAMPLES, found, strict=True)}


@pytest.mark.spark
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example_prints_what_it_says(file: Path, printed: dict[str, str]) -> None:
    source = file.read_text(encoding="utf-8")
    shown = (ast.get_docstring(ast.parse(source)) or "").partition("Prints::\n")[2]
    assert shown
    assert printed[file.stem].strip() == textwrap.dedent(shown).strip()
    assert len(source.splitlines()) <= 45


def test_every_short_example_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 12
    assert all(f"(short/{file.name})" in listed for file in EXAMPLES)
