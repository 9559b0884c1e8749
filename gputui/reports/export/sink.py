"""What a sink is: it takes a run's lines and notes in pieces, and continues after it was killed."""

from __future__ import annotations

import hashlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gputui.core.redaction import BY_LOOK, redact_params
from gputui.reports.export.formats import Format
from gputui.runs.spec import known_spec
from gputui.store.metrics import queries
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.queries import StoredLine
from gputui.store.runs import Run, find_run, has_live_trials

Position = Mapping[str, Any]
"""How far a sink has written, as plain JSON; empty for a new one."""

PROJECT = "gputui"
"""The experiment or project in trackers."""

NOTE = "gputui."
"""The prefix of names that gputui adds."""

STORY_SENTENCES = 100
"""The newest notes, which a tracker's description has."""


class ExportError(Exception):
    """The export failed. The text has the reason and a remedy."""


class TargetTakenError(ExportError):
    """The target has content that an export does not replace by default."""


class Subject(Struct, frozen=True):
    """The exported run.

    ``params`` are those of the launch without secrets; ``wanted`` are the requested metrics, empty
    for all; ``key`` is unique to this run and target, and constant; ``connection`` reads the store.
    ``study_created_at``: of a trial, the creation of its study; ``environment``: a tracker's settings.
    """

    connection: sqlite3.Connection
    run: Run
    params: Mapping[str, Any]
    wanted: tuple[str, ...]
    key: str
    study_created_at: float | None = None
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)

    def metrics(self) -> tuple[str, ...]:
        """The names to write that exist now."""
        return self.wanted or tuple(queries.metric_names(self.connection, self.run.run_id))

    def lines(self) -> Iterator[StoredLine]:
        return queries.lines(self.connection, self.run.run_id)

    def is_last_of_study(self) -> bool:
        """Whether no other trial of its study is alive now. Raises sqlite3.Error."""
        study_id, run_id = self.run.study_id, self.run.run_id
        return study_id is None or not has_live_trials(self.connection, study_id, besides=run_id)

    def values(self, line: StoredLine) -> dict[str, float]:
        """The wanted metrics of a line."""
        found = line.numbers()
        return {name: found[name] for name in self.wanted if name in found} if self.wanted else found

    def point(self, line: StoredLine) -> tuple[int, float, dict[str, float]] | None:
        """(step, unix seconds, values) of a line; None without a step or values. Values of ranks
        other than the first are named ``rank<N>/``, because trackers have no ranks."""
        if line.step is None or not (values := self.values(line)):
            return None
        if line.rank:
            values = {f"rank{line.rank}/{name}": value for name, value in values.items()}
        return line.step, self.run.created_at if line.at is None else line.at, values


def read_subject(
    connection: sqlite3.Connection,
    run_id: str,
    name: Format,
    target: str,
    wanted: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Subject:
    """The run for one export. Raises RunLookupError or sqlite3.Error."""
    run = find_run(connection, run_id)
    spec = known_spec(run)
    params = redact_params(dict(run.params if spec is None else spec.params))
    query = "SELECT created_at FROM studies WHERE study_id = ?"
    study = connection.execute(query, (run.study_id,)).fetchone()
    words = "\0".join((run.run_id, repr(run.created_at), name, target, *wanted))
    key = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    created_at = None if study is None else study[0]
    return Subject(connection, run, params, wanted, key, created_at, environment or {})


class Sink(ABC):
    """A target. Every method may raise ExportError or OSError; then another one begins again.

    ``written`` counts what this object has written: lines of a file, or steps of a tracker.
    """

    def __init__(self, subject: Subject, target: str) -> None:
        """Make a sink for an absolute target, without touching that."""
        self._subject, self._target = subject, target
        self.written = 0

    @abstractmethod
    def refuse_taken(self) -> None:
        """Raise ExportError if the target has content that is not this run's."""

    @abstractmethod
    def begin(self, position: Position) -> bool:
        """Open the target and remove what was written after ``position``. Returns whether it is
        empty: everything must be written from the first line."""

    @abstractmethod
    def write(self, items: Sequence[Item], has_more: bool) -> None:
        """Write items, and return when a crash cannot lose them. ``has_more``: another piece
        follows at once."""

    @abstractmethod
    def position(self) -> Position:
        """How far it has written."""

    def finish(self, state: str, ended_at: float) -> None:  # noqa: B027
        """There is nothing more for now: the run is over, or ``state`` says otherwise. Another sink
        may `begin` again if the run is resumed."""

    def close(self) -> None:  # noqa: B027
        """Release what is open, also after an error."""


def cleaned(value: Any) -> Any:
    """Plain JSON without secrets and without invalid Unicode, such as a file name in another
    encoding."""
    return _unicode(BY_LOOK.value(value))


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {name: _unicode(item) for name, item in value.items()}
    return [_unicode(item) for item in value] if isinstance(value, list | tuple) else value


def sentence(note: Note) -> str:
    """A note as a sentence."""
    data = note.data
    match note.kind:
        case "attempt":
            changes = ", ".join(f"{name}={value}" for name, value in data["changed"].items())
            start = f" from {data['resumed_from']}" if data["resumed_from"] else ""
            text = f"attempt {note.attempt} begins{start}" + (f" with {changes}" if changes else "")
        case "incident":
            at = "" if data["step"] is None else f" at step {data['step']}"
            text = f"attempt {note.attempt} ended{at}: {data['summary']} ({data['kind']})"
        case "decision":
            text = f"{data['verdict']}: {data['reason']}"
        case _:
            text = f"{data['state']}: {data['cause']}"
    return str(cleaned(text))
