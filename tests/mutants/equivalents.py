"""The changes that are argued to make no difference: `equivalents.toml`, beside this module."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

from tests.mutants.changes import Change


@functools.cache
def arguments() -> dict[tuple[str, str, str, str], str]:
    """Return why, by the key of each change."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {
        (each["path"], each["where"], each["was"].strip("\n"), each["becomes"].strip("\n")): each["why"]
        for each in tomllib.loads(text).get("change", [])
    }


def why(change: Change) -> str:
    """Return why a change makes no difference, or nothing where nobody says so."""
    return arguments().get(change.key, "")
