"""What may be asked about the collections of an instance, while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_timely.compute.drive.failures import failure_behind
from spark_timely.compute.introspection import RELATIONS
from spark_timely.errors import MissingError, NotBeyondError

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_timely.compute.command import Export
    from spark_timely.compute.drive.context import Context
    from spark_timely.compute.drive.hosted import Hosted
    from spark_timely.errors import OperatorError
    from spark_timely.time.antichain import Antichain
    from spark_timely.time.domain import TimeDomain, TimeLike

__all__ = ["Facts"]


class Facts:
    """Facts of an instance's collections, for any thread.

    Parameters
    ----------
    context : Context
    hosted : mapping of int to Hosted
        The dataflows that are hosted, by number, as they are at any time.
    """

    def __init__(self, context: Context, hosted: Mapping[int, Hosted]) -> None:
        self._context, self._hosted = context, hosted

    def exports(self) -> dict[str, Export]:
        """Return the exports of all dataflows that are there, by id."""
        with self._context.lock:
            return self._context.exports()

    def relations(self) -> dict[str, str]:
        """Return the relations of the introspection that are collections, by id."""
        with self._context.lock:
            return self._context.relations()

    def has(self, id_: str) -> bool:
        """Return whether there is a collection of an id."""
        with self._context.lock:
            return self._context.instance.has(id_)

    def path_of(self, id_: str) -> str | None:
        """Return the path of the log of an export; None if it keeps no rows."""
        with self._context.lock:
            export = self._context.exports().get(id_)
            return None if export is None else self._context.place.path_of(export)

    def frontier(self, id_: str) -> Antichain:
        """Return how far a collection is, as it was reported last; the minimum where nothing was."""
        with self._context.lock:
            reported = self._context.instance.collection(id_).reported
            return self.domain_of(id_).minimum_frontier if reported is None else reported

    def allowed(self, id_: str) -> Antichain:
        """Return how far a collection may be compacted."""
        with self._context.lock:
            return self._context.instance.allowed(id_)

    def schema_of(self, id_: str) -> pa.Schema:
        """Return the columns of a collection that keeps rows."""
        context = self._context
        with context.lock:
            context.instance.collection(id_)
            relation = context.relations().get(id_)
            if relation is not None:
                return RELATIONS[relation]
            path = context.place.path_of(context.exports()[id_])
            if path is None:
                msg = f"could not tell the columns of {id_!r}: found that it keeps no rows"
                raise MissingError(msg, hint="ask for an index, or a log")
            return context.opened(path).schema

    def domain_of(self, id_: str) -> TimeDomain:
        """Return what times a collection has.

        Raises
        ------
        MissingError
            If there is none.
        """
        with self._context.lock:
            self._context.instance.collection(id_)
            for running in self._context.runs():
                if id_ in running.dataflow.export_ids:
                    return running.dataflow.domain
            return self._context.created().domain

    def failure_of(self, id_: str, attempt: str) -> OperatorError | None:
        """Return the error of what needs an export that has failed before it had any time; None if it has not."""
        with self._context.lock:
            least = self.domain_of(id_).minimum_frontier
            return failure_behind(self._context, self._hosted, id_, least, attempt)

    def time_of(self, target: str, at: TimeLike | None) -> tuple[int, ...]:
        """Return the time of a peek: as given, or the newest that is complete.

        Raises
        ------
        NotBeyondError
            If none is given, and none is complete.
        OperatorError
            If it is because of a failure that none is complete.
        """
        context = self._context
        with context.lock:
            if not context.instance.has(target):
                log = context.opened(target)
                domain, upper = log.domain, log.frontier()
            elif target in context.relations():
                return context.created().domain.minimum
            else:
                there = context.instance.collection(target)
                domain = self.domain_of(target)
                upper = domain.minimum_frontier if there.upper is None else there.upper
            if at is None and upper.less_equal(domain.minimum):
                failed = failure_behind(context, self._hosted, target, upper, f"could not peek {target!r}")
                if failed is not None:
                    raise failed
        if at is not None:
            return domain.parse_time(at)
        if upper.is_empty:
            return tuple(kind.hi for kind in domain.types)
        newest = upper.elements[0][0] - 1
        if domain.arity > 1 or newest < domain.minimum[0]:
            msg = f"could not peek {target!r}: found no time that is complete, upper={domain.render_frontier(upper)}"
            raise NotBeyondError(msg, hint="give at=… to wait for it", time=domain.minimum, frontier=upper.to_json())
        return (newest,)

    def shown(self, relation: str) -> pa.Table:
        """Return the rows of a relation of the introspection."""
        with self._context.lock:
            return self._context.instance.introspection.table(relation)

    def why(self, id_: str) -> str:
        """Say what a collection waits for, from it to the first cause."""
        with self._context.lock:
            lines: list[str] = []
            seen: set[str] = set()
            waiting: list[tuple[str, str]] = [("", id_)]
            while waiting:  # one turn per collection and import
                line, export = waiting.pop()
                if line:
                    lines.append(line)
                if export and export not in seen:
                    seen.add(export)
                    waiting += reversed(self._why(export))
            return "\n".join(lines)

    def _why(self, id_: str) -> list[tuple[str, str]]:
        """Return the lines of a collection, each with the import that is behind."""
        instance = self._context.instance
        view = instance.collection(id_)
        domain = self.domain_of(id_)
        upper = domain.minimum_frontier if view.upper is None else view.upper
        as_of = domain.render_frontier(view.as_of)
        lines = [(f"{id_}: upper={domain.render_frontier(upper)}, as_of={as_of}", "")]
        text = self._context.errors.get(view.run)
        running = instance.run(view.run)
        hosted = self._hosted.get(view.run)
        if text:
            return [*lines, (f"{id_}: it has failed: {text}", "")]
        if running is None:
            return lines
        if not running.started:
            others = instance.working()
            after = f"its turn to hydrate, after {', '.join(others[:8])}"
            return [
                *lines,
                (
                    f"{id_}: it waits " + (f"for {after}" if others else "to be scheduled, or for its turn to hydrate"),
                    "",
                ),
            ]
        if hosted is None:
            return [*lines, (f"{id_}: it is about to begin", "")]
        # Before its as_of is complete it gives nothing.
        behind = hosted.behind(upper.join(view.as_of))
        if not behind:
            lines.append((f"{id_}: it has work to do", ""))
        for name, frontier in behind.items():  # one turn per import
            source = next(each for each in hosted.dataflow.imports if each.name == name)
            at = domain.render_frontier(frontier)
            if source.export is not None:
                lines.append((f"{id_}: import {name!r} is at {at}", source.export))
            else:
                said = f"nothing more is complete in log {source.path!r}"
                lines.append((f"{id_}: import {name!r} is at {at}: {said}", ""))
        return lines
