"""The page of object stores gives the settings that its tests use."""

from __future__ import annotations

from pathlib import Path

from tests.stores.hadoop import package_settings, s3a_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "object-stores.md"


def test_page_has_the_settings_that_are_tested() -> None:
    lines = {tuple(line.split()) for line in PAGE.read_text().splitlines() if line.startswith("spark.")}
    assert lines == {*package_settings().items(), *s3a_settings("127.0.0.1:9000").items()}
