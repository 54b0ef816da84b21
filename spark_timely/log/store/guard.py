"""Guard of one handle: follows the table of a log and reports what other programs changed in it.

Each `DeltaStore` has a `Guard`, gives it every entry that it reads, and asks it before rows are handed out. The guard
feeds two pure parts. The judge (`spark_timely.log.machine.judge`) finds entries by which others changed rows.
`spark_timely.log.machine.strange` checks files that others only rewrote, as they say. Both are made only where another
program's entry touched files: as long as all entries are ours, nothing is kept and nothing is read.

Invariants
----------
1. What is found is of the version that is asked about, and is the same for every handle, wherever it began to follow.
2. Nothing is said to be judged unless each entry up to there was.
3. A failure to read what judging needs is raised, and the same is tried at the next look.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_timely.log.files.format import EVENTS
from spark_timely.log.machine.judge import ForeignChange, Judge, Judgement, Numbers
from spark_timely.log.machine.strange import Strange
from spark_timely.masking import masked_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_timely.log.files.format import LogFormat
    from spark_timely.log.files.index import FileIndex, LiveFiles
    from spark_timely.log.machine.judge import Evidence, Step
    from spark_timely.time.antichain import BoolArray

logger = masked_logger(__name__)

NOTHING_OPEN: Final = Judgement((), ())
# By path of a log the version of the newest change of dead letters that was said in this process.
_SAID: Final[dict[str, int]] = {}


class Guard:
    """Follows a table's log, and tells what others changed in it.

    Parameters
    ----------
    path : str
        Of the log, for what is said.
    evidence : Evidence
    """

    def __init__(self, path: str, evidence: Evidence) -> None:
        self._path = path
        self._evidence = evidence
        self._judge: Judge | None = None
        self._strange: Strange | None = None
        # The version up to which nothing is open, as far as no judge is needed to tell; None: not looked for yet.
        self._calm: int | None = None
        # What is open where numbers alone can tell, of nobody knows whose work, and the version of which it is.
        self._lost: tuple[int, Judgement] | None = None

    def copied(self, evidence: Evidence) -> Guard:
        """Return the same in an object of its own, for another handle."""
        other = Guard(self._path, evidence)
        if self._strange is not None:
            other._strange = self._strange.copied()
        if self._judge is not None:
            other._judge = self._judge.copied()
            other._judge.strange = other._strange
        other._calm, other._lost = self._calm, self._lost
        return other

    def forget(self) -> None:
        """Forget everything: the table was read again."""
        self._judge, self._calm, self._lost = None, None, None
        if self._strange is not None:
            self._strange.forget()

    def follow(self, form: LogFormat, step: Step, live: LiveFiles) -> None:
        """Take notice of the entry behind the snapshot, before its files are taken in.

        Parameters
        ----------
        form : LogFormat
        step : Step
        live : LiveFiles
            Before the entry.
        """
        if self._judge is None and self._calm == step.version - 1:
            if step.entry.changes_nothing:
                self._calm = step.version
                if self._strange is not None:
                    self._strange.vouched(step, live)
                return
            self._judge = Judge.whole_at(form, step.version - 1, _indexes(live), raised=form.guarded_from or 0)
            self._judge.strange = self._strange = self._strange or Strange()
        self._calm, self._lost = None, None
        if self._judge is not None:
            self._judge.take([step])

    def look(self, form: LogFormat, version: int, live: LiveFiles) -> Judgement:
        """Return what others changed, and nobody undid, up to the snapshot.

        Parameters
        ----------
        form : LogFormat
        version : int
            Of the snapshot.
        live : LiveFiles

        Notes
        -----
        Cost: nothing where all entries since the last look are ours; the first look reads the newest entry, as a rule.
        """
        if form.guarded_from is None:
            return NOTHING_OPEN
        found, wrong = self._by_entries(form, version, live), self._by_looks(form, live)
        if not wrong or self._strange is None:
            return found
        # Where what entries tell may not be accepted nothing may.
        state = f"{found.state}\n{self._strange.state(live)}" if found.state or not found.open else ""
        every = tuple(sorted((*found.open, *wrong), key=lambda each: each.version))
        return found._replace(open=every, state=state, commits=None)

    def _by_looks(self, form: LogFormat, live: LiveFiles) -> tuple[ForeignChange, ...]:
        """Return what looks into files have found, of what is guarded."""
        if self._strange is None:
            return ()
        found = self._strange.open(form, live, self._evidence)
        return tuple(each for each in found if each.version > (form.guarded_from or 0))

    def look_into(
        self, form: LogFormat, version: int, live: LiveFiles, chosen: Callable[[FileIndex], BoolArray] | None = None
    ) -> None:
        """Look into the files of messages that others made, of which rows are wanted.

        What is found is open from then on, for this handle.

        Parameters
        ----------
        form, version, live
            As for `look`.
        chosen : callable, optional
            Says of which files rows are wanted; of all unless given.

        Notes
        -----
        Cost: nothing where all files are ours, or were looked into; else two or three columns of each that is wanted.
        """
        if form.guarded_from is None:
            return
        found = self._by_entries(form, version, live)
        if self._lost is not None or self._strange is None:
            return  # numbers have shown it already, or all files are ours
        self._strange.passed = frozenset(each.version for each in found.open if "message" in each.changes)
        self._strange.look(form, live, self._evidence, chosen)
        if self._strange.unread:
            self._count(form, version, live, self._strange)

    def _count(self, form: LogFormat, version: int, live: LiveFiles, strange: Strange) -> None:
        """Judge by numbers where the entries are cleaned up that made files into which nobody has looked."""
        numbers = Judge.count(form, version, _indexes(live), self._evidence)
        if numbers is not None and not any(numbers):
            strange.believed()
            return
        self._judge, self._calm = None, None
        self._lost = version, _by_numbers(version, numbers, ())

    def _by_entries(self, form: LogFormat, version: int, live: LiveFiles) -> Judgement:
        """Return what entries alone tell."""
        if self._calm == version:
            return NOTHING_OPEN
        if self._judge is None and (self._lost is None or self._lost[0] != version):
            self._begin(form, version, live)
        if self._lost is not None:
            return self._lost[1]
        if self._judge is None:
            return NOTHING_OPEN
        found = self._judge.look(self._evidence)
        for entry in found.housekeeping:
            if entry.version > _SAID.get(self._path, -1):
                _SAID[self._path] = entry.version
                logger.warning(
                    "log %r: another program changed dead letters, by %s in version %d",
                    self._path,
                    entry.operation,
                    entry.version,
                )
        return found

    def judged(self, form: LogFormat, version: int, live: LiveFiles) -> tuple[int | None, tuple[int, ...]]:
        """Return up to which version nothing was open, and which up to there made files that nobody looked into.

        None if that is not known.
        """
        if self.look(form, version, live).open and self._by_looks(form, live):
            return None, ()
        judged = self._calm if self._judge is None else self._judge.clear
        unlooked = () if judged is None or self._strange is None else self._strange.unlooked(judged, live)
        return judged, unlooked

    def _begin(self, form: LogFormat, version: int, live: LiveFiles) -> None:
        """Judge from the newest mark on; or, where entries are gone, by numbers."""
        raised = form.guarded_from or 0
        course = Judge.since_newest_mark(version, raised, self._evidence.step)
        calm = course.marked and all(step.entry.changes_nothing for step in course.steps)
        if calm and self._strange is None and not any(step.entry.unlooked for step in course.steps):
            self._calm = version
            return
        strange = self._strange = self._strange or Strange()
        if calm:
            self._calm = version
            strange.begin(course, version, raised)
            for step in course.steps:
                strange.vouched(step, live)
            return

        def files(at: int) -> Sequence[FileIndex] | None:
            return _indexes(live) if at == version else self._evidence.files(at)

        found = Judge.opened(form, course, replace(self._evidence, files=files), raised=raised)
        if isinstance(found, Judge):
            self._judge = found
            strange.begin(course, found.version, raised)
            found.strange = strange
        else:
            self._lost = version, _by_numbers(version, found, course.steps)


def with_token(found: Judgement, table_id: str) -> Judgement:
    """Return what is open with its token: of this table, and of nothing else that may be open in it."""
    if not found.state:
        return found
    token = hashlib.sha256(f"{table_id}\n{found.state}".encode()).hexdigest()[:16]
    return found._replace(open=tuple(replace(each, token=token) for each in found.open))


def _by_numbers(version: int, numbers: Numbers | None, steps: Sequence[Step]) -> Judgement:
    """Return what is open where no entry tells whose work it is, and numbers alone do, before some entries."""
    change = ForeignChange(version, "", None, {"message": (-1, -1)}, streams=None)
    if numbers is None or numbers.beyond:
        return Judgement((change,), ())  # of progress that is lost nothing can be accepted
    since = [step.version for step in steps if not step.entry.changes_nothing]
    said = [since, sorted(map(str, numbers.differing.items()))]
    state = hashlib.sha256(json.dumps(said).encode()).hexdigest()
    differing = tuple((stream, stream, seq, seq) for stream, seq in numbers.differing)
    return Judgement((change,), (), state, None if since else differing)


def _indexes(live: LiveFiles) -> list[FileIndex]:
    return [live.index(event) for event in EVENTS]
