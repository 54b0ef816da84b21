"""What an earlier version has left of an index goes once nobody writes there; nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_timely.trace.folder import delete_former

DAY_S = 86_400.0
NAMES = ("run-1.arrow", f"spine-{1:020d}.json", f"spine-{2:020d}.json")


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """An index that was written at second 0, but for one file at second 1000."""
    folder = tmp_path / "by-1"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(name)
        os.utime(folder / name, (0, 0))
    os.utime(folder / NAMES[0], (1000, 1000))
    return folder


def test_index_goes_a_day_after_its_newest_file(former: Path) -> None:
    delete_former(str(former), 1000 + DAY_S)
    assert {each.name for each in former.iterdir()} == set(NAMES)
    delete_former(str(former), 1001 + DAY_S)
    assert not former.exists()
    delete_former(str(former), 1001 + DAY_S)  # nothing is there: nothing to do


def test_what_is_no_file_of_an_index_stays(former: Path) -> None:
    (former / "run-folder").mkdir()
    (former / "run-folder" / "mine").write_text("mine")
    os.symlink(former / "run-folder" / "mine", former / "run-link")
    for name in ("run-folder", "run-link"):
        os.utime(former / name, (0, 0), follow_symlinks=False)
    delete_former(str(former), 1001 + DAY_S)
    assert {each.name for each in former.iterdir()} == {"run-folder", "run-link"}
    assert (former / "run-folder" / "mine").read_text() == "mine"


def test_folder_that_is_a_link_is_left(former: Path) -> None:
    link = former.parent / "by-2"
    os.symlink(former, link)
    delete_former(str(link), 1001 + DAY_S)
    assert {each.name for each in former.iterdir()} == set(NAMES)
