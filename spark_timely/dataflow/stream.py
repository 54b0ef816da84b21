"""How a dataflow is written down: streams, and the operators that make streams of them.

Everything that can be refused is refused here, naming the operator: before a query is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_timely.dataflow.row_operators import RowOperators
from spark_timely.dataflow.time_operators import TimeOperators

if TYPE_CHECKING:
    import os

    from spark_timely.dataflow.scope import Probe
    from spark_timely.log import Log

__all__ = ["Stream"]


class Stream(RowOperators, TimeOperators):
    """A stream of a dataflow: rows, each at a time, and a frontier. Made by `Dataflow.replay` and by operators.

    Examples
    --------
    >>> from spark_timely.dataflow.aggregates import count
    >>> from spark_timely.testing import rows_of, stream_of
    >>> rows_of(stream_of({"_time": [1, 1, 2], "n": [5, 20, 30]}).filter("n > 15").aggregate(n=count()))
    [{'_time': 1, 'n': 1}, {'_time': 2, 'n': 1}]
    """

    def capture(
        self, log: str | os.PathLike[str] | Log, /, *, stream: str = "main", replaces: str | None = None
    ) -> None:
        """Append the rows of complete times to a log, exactly once, and move its frontier along.

        The log keeps a fingerprint of the plan that its rows are made by: operators, how they are connected, the ids of
        the logs that are read, columns, keys, SQL, parameters, and the names of functions. A dataflow of the same name
        with another plan is refused, so that no output is made by two plans. `Dataflow.explain` shows fingerprints.

        From its first step on the dataflow alone moves the output. Where somebody else advances it, closes it or
        appends to it, or an input is put back to an earlier state, the output stops with `DataLossError`: else times
        would be complete without their rows. An output that is advanced before its first step begins there.

        Parameters
        ----------
        log : path or Log
            Made when the dataflow is started, unless it is there.
        stream : str
            Which stream of the log the dataflow owns.
        replaces : str, optional
            Where the plan was changed on purpose: the fingerprint of the plan before. The rows in the log stay as they
            are, later times are computed by the new plan, and copies of the dataflow with the old one are refused from
            the first micro-batch on. Of no effect where the log has no plan, or this one, already.
            It consents to the other code alone.
            Where an output was moved, or an input put back or another log made in its place, on purpose: what the error
            names. The rows in the log stay as they are, and the dataflow continues at the output's frontier with the
            inputs as they are. This holds for what that error named and nothing else; a step later it has no effect.

        Raises
        ------
        InvalidUsageError
            If the dataflow captures into this stream already, a column cannot be kept, or `replaces` is no fingerprint.
        CyclicSummaryError
            If the log is one that this stream is made from.

        Examples
        --------
        ::

            flow.replay("/data/flights").filter("delay > 15").capture("/data/late")
        """
        self._scope.add_sink(self.view, log, stream, replaces)

    def spool(
        self, log: str | os.PathLike[str] | Log, /, *, stream: str = "main", replaces: str | None = None
    ) -> Stream:
        """Capture into a log of its own, and go on with what is replayed from it, in the same dataflow.

        What was computed is read again, not computed again, by all that is made from it; and rows that a function gives
        at later times wait in the log until their times are complete.

        Parameters
        ----------
        log : path or Log
            Made at once, unless it is there.
        stream : str
            Which stream of the log the dataflow owns.
        replaces : str, optional
            As in `capture`. Outputs that are made from a spool have its plan in theirs.

        Examples
        --------
        ::

            hours = flow.replay("/data/flights").aggregate(by="origin", n=st.count()).spool("/data/hours")
            hours.filter("n > 100").capture("/data/busy")
            hours.delay(st.windows("1 day")).aggregate(by="origin", n=st.sum("n")).capture("/data/days")
        """
        return self._scope.spool(self.view, log, stream, replaces)

    def probe(self) -> Probe:
        """Return what tells how far the outputs made from this stream are.

        Examples
        --------
        ::

            probe = flow.replay("/data/flights").probe()
            probe.frontier
        """
        return self._scope.probe_of(self.view)
