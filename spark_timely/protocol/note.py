"""The note of a commit: a JSON document in the log that says who committed, which micro-batch, and from what.

Captures (`MicroBatch`), imports (`ImportMark`), dataflows and tasks (`OutputNote`) and compute instances (`Fence`) give
it its parts with each commit. They read the newest note of their stream when they start, to continue where it ended.

The text in `_reason` is for people; no program reads it. A note has two kinds of parts. What *lasts* is restated by
every later commit of the stream, so that the newest commit says all of it and no program reads older ones: the newest
micro-batch, for example. What *passes* is about one commit alone, as the number of its dead letters.

Invariants
----------
1. One commit has one note, on its first row; it is at most 64 kB and says which version of this form it has.
2. Every commit restates what lasts: `following` is called for each of them, `advance` and takeover included.
3. What belongs to an owner (the newest micro-batch, the mark of an import) is left out from the commit on by which
   another owner takes the stream over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar, cast

from spark_timely.errors import (
    DataLossError,
    InvalidUsageError,
    LogFormatError,
    OperatorError,
    StorageError,
    TimelyError,
    described,
    shown,
)
from spark_timely.masking import masked

if TYPE_CHECKING:
    from spark_timely.time.domain import TimeType

__all__ = [
    "Fence",
    "ImportMark",
    "InputNote",
    "MicroBatch",
    "Mover",
    "Note",
    "Opening",
    "OutputFailure",
    "OutputNote",
    "TaskNote",
]

NOTE_VERSION: Final = 1
MOST_BYTES: Final = 64 * 1024
"""Bytes of a note in UTF-8."""

_Part = TypeVar("_Part")
_MOST_DROPPED: Final = 64
_MOST_FAILURES: Final = 4
# Of an error's text: that of a job may have the stacks of several processes.
_MOST_CHARACTERS: Final = 4_000


@dataclass(frozen=True, slots=True)
class Opening:
    """Say where a stream has its first capability from. Passes.

    Attributes
    ----------
    source : str
        `#open` for a claim, else the stream whose capability was copied.
    seq : int
        For a claim: number of the commit of `#open` that gave the capability up; for a copy: number of the newest
        commit of the other stream at that moment.
    """

    source: str
    seq: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Say what the newest micro-batch of a stream was planned from. Lasts.

    Its number and step are in the columns `_batch` and `_step`.

    Attributes
    ----------
    seq : int
        Number of the commit that holds the micro-batch.
    offsets : str or None
        Hash of Spark's entry `offsets/<number>` in the query's checkpoint, all its lines: Spark writes it before it
        plans the micro-batch and never again. None where it cannot be read.
    before : str or None
        Hash of the entry of the micro-batch before, where this one begins; empty for the first one. None where it
        cannot be read.
    source : str
        Lines of that entry that say where each source ended, cut at 16 kB; empty where it cannot be read.
    digest : str or None
        Digest of the rows that came in, before anything was decided about them.
    n_input : int or None
        How many rows came in, where they were counted.
    query : str or None
        Id of the Spark query, as Spark's tasks know it, where it is not the owner's name.
    dead, advanced, skewed : int
        Dead letters; messages that were moved to the frontier; messages that are too far in the future.
    """

    seq: int = -1
    offsets: str | None = None
    before: str | None = None
    source: str = ""
    digest: str | None = None
    n_input: int | None = None
    query: str | None = None
    dead: int = 0
    advanced: int = 0
    skewed: int = 0


@dataclass(frozen=True, slots=True)
class Mover:
    """Say which row moved a bounded frontier. Lasts, until another row moves it.

    Attributes
    ----------
    time : int
        Of the row.
    frontier : int
        To where the frontier moved.
    seq : int
        Number of the commit that holds the row.
    at : int
        Wall clock by which it was judged, microseconds since the epoch, UTC.
    place : str
        Where the row came from, for people: a task's partition, a row of an append. Never a value of it.
    """

    time: int
    frontier: int
    seq: int
    at: int
    place: str = ""

    def ahead_of_clock(self, kind: TimeType) -> int | None:
        """Return how far the row lay after the wall clock, in units of its time; None for integers, without a clock.

        Parameters
        ----------
        kind : TimeType
            Of the log's times.

        Examples
        --------
        >>> from spark_timely.time.domain import TimeType
        >>> Mover(time=9, frontier=9, seq=1, at=0).ahead_of_clock(TimeType.TIMESTAMP)
        9
        """
        clock = kind.clock(self.at)
        return None if clock is None else self.time - clock


@dataclass(frozen=True, slots=True)
class ImportMark:
    """Say how far a log has a capture that is imported. Lasts.

    Attributes
    ----------
    name : str
        What the capture is called, for people.
    position, events : int
        Bytes and events of the capture.
    checksum : int
        CRC-32 of everything before the position.
    """

    name: str = ""
    position: int = 0
    events: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class OutputFailure:
    """Say why an output of a dataflow waits. Lasts until its next step.

    Attributes
    ----------
    output : str
        Name of the capture.
    operator : str
        Name of the operator that failed; that of the capture where no operator did.
    lower, upper : str or None
        Range of times that was computed, if any was.
    kind : str
        Class of the error.
    message : str
    hint : str or None
        What to do.
    run : str
        The run of the query in which it failed.
    """

    output: str
    operator: str
    lower: str | None
    upper: str | None
    kind: str
    message: str
    hint: str | None
    run: str

    @classmethod
    def of(cls, output: str, error: Exception, run: str) -> OutputFailure:
        """Return what is written of an error."""
        operator, lower, upper, hint = output, None, None, None
        if isinstance(error, OperatorError):
            operator = str(error.operator or output)
            lower, upper = (None if end is None else str(end) for end in (error.lower, error.upper))
        if isinstance(error, TimelyError):
            message, hint = error.message, error.hint
        else:
            message = f"could not run operator {output!r}: found {described(error)}"
        return cls(output, operator, lower, upper, type(error).__name__, masked(message)[:_MOST_CHARACTERS], hint, run)

    @property
    def error(self) -> TimelyError:
        """The failure as an error that can be raised."""
        stored = {"DataLossError": DataLossError, "StorageError": StorageError}.get(self.kind)
        if stored is not None:
            return stored(self.message, hint=self.hint, context={"operator": self.operator})
        return OperatorError(self.message, hint=self.hint, operator=self.operator, lower=self.lower, upper=self.upper)


@dataclass(frozen=True, slots=True)
class InputNote:
    """Say which log an output was made from, and which of its commits were there.

    Attributes
    ----------
    id : str
        Of the log.
    commits : dict of str to (int, str)
        By stream the newest commit at that moment: its number, and its identity as `StreamState.identity` has it. Of
        a log with very many streams only those that made commits last.
    """

    id: str
    commits: Mapping[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskNote:
    """Say how a continual task began, which all its later starts adopt. Lasts.

    Attributes
    ----------
    as_of : int or None
        The time at which the task began: its output is empty there, or holds what the inputs' contents gave. None: it
        began before all times, and nothing is skipped.
    snapshot : bool
        Whether the contents of the inputs at `as_of` went through the body.
    forgotten : dict of str to int
        Stream logs whose contents are declared to be what they had not forgotten, by their names in the body: from
        which time on.
    settings : dict of str to str
        What Spark evaluates the body under.
    gaps : tuple of (int or None, int)
        Times that were skipped with consent, each from a first to before a last; None is for the least time.
    """

    as_of: int | None = None
    snapshot: bool = False
    forgotten: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[tuple[int | None, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Name a start of a compute instance: a later one keeps an earlier one from writing. Lasts.

    Attributes
    ----------
    instance : str
        Id of the instance.
    epoch : int
        Grows with each start.
    owner : str
        Id of the start. A number alone is no identity: logs that were put back give one twice.
    """

    instance: str
    epoch: int
    owner: str

    def may_follow(self, before: Fence | None) -> bool:
        """Return whether this start may write where another, or this one, wrote last.

        Examples
        --------
        >>> Fence("one", 2, "b").may_follow(Fence("one", 1, "a")), Fence("one", 1, "a").may_follow(Fence("one", 1, "b"))
        (True, False)
        """
        if before is None or self == before:
            return True
        return self.instance == before.instance and self.epoch > before.epoch


@dataclass(frozen=True, slots=True)
class OutputNote:
    """Say what an output of a dataflow was made from. Lasts, its step excepted.

    Attributes
    ----------
    inputs : dict of str to InputNote
        The logs that everything up to the output's upper was made from, by path. Those of outputs of the same
        dataflow are not among them, but what they are made from is.
    step : dict or None
        Numbers of the step: tasks, distinct times, rows and bytes by operator. Passes.
    failures : tuple of OutputFailure
        Why the output waits, by run, the newest last; at most four runs are kept.
    dropped : tuple of str
        Runs of a query that may not append to the output any more, the newest last; at most 64 are kept.
    plan : str or None
        Fingerprint of the plan that the newest rows were made by; None before the first step.
    outline : str or None
        That plan in a few words, an operator a line, to say what differs from another.
    upper : tuple of times or None
        Elements of the frontier that the dataflow itself brought the output to, or that was consented to. None before
        the first step, which begins where the output is.
    others : int
        Messages that others have appended since the first step, or since a consent.
    consented : bool or None
        True from a consent until the next step: the inputs may be behind `upper`.
    begins : tuple of times or None
        Elements of the frontier at which the output begins, where its inputs had forgotten what is before, or somebody
        had moved it there: of events it has none of before, and all that a collection holds then stands there.
    task : TaskNote or None
        How the continual task began whose output it is; None of a dataflow's output, and before a task's first commit.
    fence : Fence or None
        The compute instance that writes the output, and its newest start. None: no instance writes it.
    """

    inputs: Mapping[str, InputNote] = field(default_factory=dict)
    step: Mapping[str, object] | None = None
    failures: tuple[OutputFailure, ...] = ()
    dropped: tuple[str, ...] = ()
    plan: str | None = None
    outline: str | None = None
    upper: tuple[tuple[int, ...], ...] | None = None
    others: int = 0
    consented: bool | None = None
    begins: tuple[tuple[int, ...], ...] | None = None
    task: TaskNote | None = None
    fence: Fence | None = None

    def consent(self, upper: tuple[tuple[int, ...], ...], found: Mapping[str, InputNote] | None = None, /) -> str:
        """Return what `replaces` names to continue from this state of the output with its inputs as they were found.

        It looks like the fingerprint of a plan, and holds for this state alone: for this frontier, what others
        appended, what the output was made from, and how its inputs differ from that. A step later it is another one,
        and so it is where an input differs in another way. What an input gains changes nothing.

        Parameters
        ----------
        upper : tuple of times
            Elements of the frontier that the output has.
        found : dict of str to InputNote, optional
            By path the inputs as they are. Their commits are those that differ from what the output was made from,
            with an empty identity where there is none of that number.

        Examples
        --------
        >>> note = OutputNote(plan="1:ab", upper=((30,),))
        >>> note.consent(((40,),)) == note.consent(((40,),)), note.consent(((40,),)) == note.consent(((50,),))
        (True, False)
        >>> note.consent(((30,),), {"in": InputNote("7d")}) == note.consent(((30,),), {"in": InputNote("8e")})
        False
        """
        scheme = (self.plan or "1").partition(":")[0]
        inputs = [{path: asdict(each) for path, each in logs.items()} for logs in (self.inputs, found or {})]
        state = json.dumps([self.plan, self.upper, upper, self.others, inputs], sort_keys=True)
        return f"{scheme}:{hashlib.sha256(state.encode()).hexdigest()[:32]}"

    @property
    def failure(self) -> OutputFailure | None:
        """The newest failure; None if the output does not wait for one."""
        return self.failures[-1] if self.failures else None

    def failed(self, failure: OutputFailure) -> OutputNote:
        """Return the note with one more failure."""
        others = [other for other in self.failures if other.run != failure.run]
        return replace(self, step=None, failures=tuple([*others, failure][-_MOST_FAILURES:]))

    def without(self, run: str) -> OutputNote:
        """Return the note that keeps a run from appending."""
        others = [other for other in self.dropped if other != run]
        return replace(self, step=None, dropped=tuple([*others, run][-_MOST_DROPPED:]))


@dataclass(frozen=True, slots=True)
class Note:
    """Hold what one commit says to programs.

    Attributes
    ----------
    opening : Opening or None
        Where the stream has its capability from; of opening commits only. Passes.
    claimed : str or None
        Which stream took a capability; of commits of `#open` only. Passes.
    attempt : str or None
        Random key of an append without a batch, by which the writer that made it knows it again. Passes.
    batch : MicroBatch or None
        The newest micro-batch of the owner. Lasts.
    greatest : int or None
        Greatest time of the stream's messages, rows too far in the future left out; None without any, and with times
        of several coordinates. Lasts.
    mover : Mover or None
        The row that moved the frontier of ``frontier=bounded`` last. Lasts.
    letters : int
        Dead letters of this commit, where no micro-batch says how many. Passes.
    resubmitted : tuple of (int, int)
        First and last numbers of the stream's commits whose dead letters were appended to it again. Lasts.
    former : tuple of str
        Former owners of the stream, in order. Lasts.
    gaps : tuple of (int, int)
        First and last number of micro-batches of the owner that are missing with consent. Lasts.
    lost : tuple of (str, int, int)
        The same of former owners, with their names. Lasts.
    differing : int
        How often a micro-batch was repeated with other rows than the log holds. Lasts.
    mark : ImportMark or None
        How far an import came. Lasts.
    output : OutputNote or None
        What a dataflow says of its output. Lasts, its step excepted.
    statements : str or None
        File with CDCv2's statements that are not used up; empty if there are none; None if the stream is not
        captured from CDCv2. Lasts.
    base : bool
        Whether the log has forgotten the commits of the stream before this one. Passes.
    content : str or None
        Digest of this commit's messages as they are stored, see `spark_timely.canonical.content`; None without
        messages, and where it was not computed. Passes.
    total : int
        Messages of the stream's commits since the log is guarded; of `#open` how many streams took a capability. Lasts.

    Examples
    --------
    >>> note = Note(greatest=7, mark=ImportMark("w0.bin", 36, 1, 7))
    >>> Note.parse(note.text()) == note
    True
    """

    opening: Opening | None = None
    claimed: str | None = None
    attempt: str | None = None
    batch: MicroBatch | None = None
    greatest: int | None = None
    former: tuple[str, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[str, int, int], ...] = ()
    differing: int = 0
    mark: ImportMark | None = None
    output: OutputNote | None = None
    statements: str | None = None
    base: bool = False
    mover: Mover | None = None
    letters: int = 0
    resubmitted: tuple[tuple[int, int], ...] = ()
    content: str | None = None
    total: int = 0

    def following(self, before: Note, *, owner: str | None = None) -> Note:
        """Return this note with what lasts of the note before it (invariant 2).

        Parameters
        ----------
        before : Note
            Of the stream's commit before.
        owner : str, optional
            The owner before, where the stream changes hands with this commit.

        Examples
        --------
        >>> first = Note(greatest=7, batch=MicroBatch(3))
        >>> Note(greatest=5).following(first) == first
        True
        >>> Note().following(first, owner="q1")
        Note(opening=None, claimed=None, attempt=None, batch=None, greatest=7, former=('q1',), gaps=(), lost=(), \
differing=0, mark=None, output=None, statements=None, base=False, mover=None, letters=0, resubmitted=(), \
content=None, total=0)
        """
        seen = [top for top in (before.greatest, self.greatest) if top is not None]
        kept = replace(
            self,
            greatest=max(seen, default=None),
            total=before.total + self.total,
            former=before.former,
            lost=before.lost,
            mover=before.mover if self.mover is None else self.mover,
            resubmitted=joined_spans(before.resubmitted, self.resubmitted),
            output=_restated(before.output) if self.output is None else self.output,
            statements=before.statements if self.statements is None else self.statements,
        )
        if owner is not None:
            former = (*(name for name in before.former if name != owner), owner)
            return replace(kept, former=former, lost=(*before.lost, *((owner, a, b) for a, b in before.gaps)))
        return replace(
            kept,
            batch=before.batch if self.batch is None else self.batch,
            gaps=(*before.gaps, *self.gaps),
            differing=before.differing + self.differing,
            mark=before.mark if self.mark is None else self.mark,
        )

    def text(self) -> str:
        """Return the note as canonical JSON.

        Raises
        ------
        InvalidUsageError
            If it is longer than 64 kB, the numbers of a dataflow's step left out.
        """
        text = self._encoded()
        if len(text.encode()) > MOST_BYTES and self.output is not None and self.output.step is not None:
            # Numbers for people; what they belong to is in the log.
            text = replace(self, output=replace(self.output, step=None))._encoded()
        size = len(text.encode())
        if size > MOST_BYTES:
            sizes = {name: len(json.dumps(value)) for name, value in json.loads(text).items()}
            largest = max(sizes, key=lambda name: sizes[name])
            msg = f"could not write the note of a commit: found {size} bytes, {sizes[largest]} of them in {largest!r}"
            raise InvalidUsageError(
                msg,
                hint=f"{_SMALLER.get(largest, 'use shorter names and paths')}; a note has at most {MOST_BYTES} bytes",
                context={"bytes": size, "part": largest},
            )
        return text

    def _encoded(self) -> str:
        facts: dict[str, object] = {"v": NOTE_VERSION}
        # What says nothing is left out.
        for name, value in asdict(self).items():
            if value not in (None, (), 0):
                facts[name] = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        if self.greatest is not None:
            facts["greatest"] = self.greatest
        return _dumped(facts)

    @classmethod
    def parse(cls, text: str | None) -> Note:
        """Read a note.

        Raises
        ------
        LogFormatError
            If there is none, or it is of a later version or makes no sense.
        """
        facts: dict[str, object] = {}
        try:
            found = json.loads(text or "")
            version = int(found.pop("v"))
            facts.update(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(text) from error
        if version != NOTE_VERSION:
            msg = f"could not read the note of a commit: found version={version}, this library reads {NOTE_VERSION}"
            raise LogFormatError(
                msg, hint="use the version of spark-timely that wrote it", context={"version": version}
            )
        try:
            return cls(
                opening=_part(Opening, facts.get("opening")),
                claimed=cast("str | None", facts.get("claimed")),
                attempt=cast("str | None", facts.get("attempt")),
                batch=_part(MicroBatch, facts.get("batch")),
                greatest=cast("int | None", facts.get("greatest")),
                former=tuple(cast("list[str]", facts.get("former", ()))),
                gaps=tuple((int(a), int(b)) for a, b in cast("list[list[int]]", facts.get("gaps", ()))),
                lost=tuple(
                    (str(name), int(a), int(b))
                    for name, a, b in cast("list[tuple[str, int, int]]", facts.get("lost", ()))
                ),
                differing=cast("int", facts.get("differing", 0)),
                mark=_part(ImportMark, facts.get("mark")),
                output=_output(facts.get("output")),
                statements=cast("str | None", facts.get("statements")),
                base=bool(facts.get("base", False)),
                mover=_part(Mover, facts.get("mover")),
                letters=cast("int", facts.get("letters", 0)),
                resubmitted=tuple((int(a), int(b)) for a, b in cast("list[list[int]]", facts.get("resubmitted", ()))),
                content=cast("str | None", facts.get("content")),
                total=cast("int", facts.get("total", 0)),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(text) from error


def sealed(text: str, seal: str) -> str:
    """Return the text of a note that says what all values of its commit are, as a hash."""
    return _dumped({**json.loads(text), _SEAL: seal})


def unsealed(text: str) -> tuple[str, str | None]:
    """Return what of a note stays when its commit becomes a base, and the hash that `sealed` put into it, if any.

    Also of what this library does not know: a later one may have written it.

    Examples
    --------
    >>> unsealed(sealed('{"base":true,"later":1,"v":2}', "9f3b"))
    ('{"later":1,"v":2}', '9f3b')
    """
    facts = json.loads(text)
    seal = facts.pop(_SEAL, None)
    facts.pop("base", None)
    return _dumped(facts), None if seal is None else str(seal)


def as_base(text: str) -> str:
    """Return the text of a note as that of the first commit that its stream still has."""
    return _dumped({**json.loads(text), "base": True})


def _dumped(facts: Mapping[str, object]) -> str:
    return json.dumps(facts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


# Unknown to `Note.parse`, for it is about the commit as a whole, and not of it.
_SEAL: Final = "seal"
_SMALLER = {
    "output": "shorten the paths of the inputs: the dataflow has too many for paths of this length",
    "resubmitted": "resubmit commits next to each other: the list of those that were is too long",
    "former": "capture into another stream: this one changed owners too often",
}


def joined_spans(*parts: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return spans of whole numbers, first and last, as few and in order.

    Examples
    --------
    >>> joined_spans([(1, 2), (7, 7)], [(3, 3)])
    ((1, 3), (7, 7))
    """
    spans: list[tuple[int, int]] = []
    for first, last in sorted(span for part in parts for span in part):  # some
        if spans and first <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(spans[-1][1], last))
        else:
            spans.append((first, last))
    return tuple(spans)


def _restated(output: OutputNote | None) -> OutputNote | None:
    return None if output is None else replace(output, step=None)


def _part(kind: type[_Part], facts: object) -> _Part | None:
    return None if facts is None else kind(**cast("dict[str, object]", facts))


def _output(facts: object) -> OutputNote | None:
    if facts is None:
        return None
    values = dict(cast("dict[str, object]", facts))
    failures = [OutputFailure(**failure) for failure in cast("list[dict[str, str]]", values.pop("failures", ()))]
    dropped = tuple(cast("list[str]", values.pop("dropped", ())))
    inputs = {path: _input(each) for path, each in cast("dict[str, dict[str, object]]", values.pop("inputs")).items()}
    upper, begins = (cast("list[list[int]] | None", values.pop(name, None)) for name in ("upper", "begins"))
    task = cast("dict[str, object] | None", values.pop("task", None))
    fence = _part(Fence, values.pop("fence", None))
    return OutputNote(
        inputs,
        failures=tuple(failures),
        dropped=dropped,
        upper=None if upper is None else tuple(tuple(element) for element in upper),
        begins=None if begins is None else tuple(tuple(element) for element in begins),
        task=None if task is None else _task(task),
        fence=fence,
        **values,  # type: ignore[arg-type]
    )


def _task(facts: dict[str, object]) -> TaskNote:
    gaps = tuple((first, last) for first, last in cast("list[tuple[int | None, int]]", facts.pop("gaps", ())))
    return TaskNote(gaps=gaps, **facts)  # type: ignore[arg-type]


def _input(facts: Mapping[str, object]) -> InputNote:
    commits = cast("dict[str, tuple[int, str]]", facts["commits"])
    return InputNote(cast("str", facts["id"]), {stream: (seq, identity) for stream, (seq, identity) in commits.items()})


def _unreadable(text: str | None) -> LogFormatError:
    msg = f"could not read the note of a commit: found {shown(text)}"
    return LogFormatError(msg, hint="restore the column '_note' of the log's progress rows")
