"""Changes to the project that a test should notice: `make mutants`."""

from __future__ import annotations

LINES_FILE = "MUTANTS_LINES_FILE"
"""The variable that tells the plugin `lines` where to write."""
LINES_FOLDERS = "MUTANTS_LINES_FOLDERS"
"""The variable that tells it which folders are meant, separated by commas."""
