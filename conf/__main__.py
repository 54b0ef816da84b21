"""Render the tables of options: ``python -m spark_timely.conf [--write docs/reference/options.md]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spark_timely.conf.markdown import rendered
from spark_timely.conf.options import SINK_OPTIONS, SOURCE_OPTIONS


def main(arguments: list[str] | None = None) -> int:
    """Write the tables to standard output, or between their marks in a file.

    Parameters
    ----------
    arguments : list of str, optional
        The command line; that of the process if not given.

    Returns
    -------
    int
        Exit code: 0.
    """
    parser = argparse.ArgumentParser(prog="python -m spark_timely.conf", description="Render the tables of options.")
    parser.add_argument("--write", metavar="FILE", type=Path, help="rewrite the tables of this Markdown file")
    file: Path | None = parser.parse_args(arguments).write
    if file is None:
        empty = "".join(f"<!-- options: {name} -->\n<!-- end -->\n" for name in ("sink", "source"))
        sys.stdout.write(rendered(empty, sink=SINK_OPTIONS, source=SOURCE_OPTIONS))
    else:
        text = file.read_text(encoding="utf-8")
        file.write_text(rendered(text, sink=SINK_OPTIONS, source=SOURCE_OPTIONS), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
