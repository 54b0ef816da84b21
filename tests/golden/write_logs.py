"""Write golden things that are not there yet: `bash scripts/run.sh -m tests.golden.write_logs [NAME …]`.

What is there is never written again. Each is written at its place, packed, and continued, and what could be read of it
before and after is kept beside the archive.
"""

from __future__ import annotations

import sys

from tests.golden.lasting import LOGS, archive_of, pack, place_of, plain, shown


def main(names: list[str]) -> None:
    """Write those that are named, or all that are not there."""
    from tests.golden import lasting_plain, lasting_spark

    things = {thing.name: (thing, False) for thing in lasting_plain.THINGS}
    things |= {thing.name: (thing, True) for thing in lasting_spark.THINGS}
    unknown = sorted(set(names) - set(things))
    there = [name for name in names if archive_of(name).exists()]
    if unknown or there:
        sys.exit(f"could not write golden things: found unknown={unknown}, written already={there}")
    todo = names or [name for name in things if not archive_of(name).exists()]
    gone = [name for name in todo if things[name][0].write is None]
    if gone:
        sys.exit(f"could not write golden things: found {gone}, which no version writes any more")
    session = lasting_spark.session() if any(things[name][1] for name in todo) else None
    for name in todo:
        thing, with_spark = things[name]
        given = (session,) if with_spark else ()
        with place_of(name) as folder:
            assert thing.write is not None
            thing.write(*given, folder)
            stands = thing.read(*given, folder)
            pack(name, folder)
            thing.proceed(*given, folder)
            after = thing.read(*given, folder)
        if stands == after:
            sys.exit(f"could not write golden thing {name!r}: found nothing changed by its continuation")
        text = shown({"stands": plain(stands), "after": plain(after)})
        (LOGS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {archive_of(name).stat().st_size:,} bytes")  # noqa: T201 - a program


if __name__ == "__main__":
    main(sys.argv[1:])
