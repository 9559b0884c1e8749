"""The protocol of exports: a sink takes a run's lines and notes in pieces, and continues after it was killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from gputui.core.redaction import BY_LOOK
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.queries import StoredLine

Position = Mapping[str, Any]
"""How far a sink has written, as plain JSON."""

PROJECT = "gputui"
"""The experiment or project in trackers."""

NOTE = "gputui."
"""The prefix of names that gputui adds."""


class ExportError(Exception):
    """The export failed. The text has the reason and a remedy."""


class TargetTakenError(ExportError):
    """The target has content that an export does not replace by default."""


class StudyOfRun(Struct, frozen=True):
    """The study of a trial, and its start (UTC unix seconds)."""

    study_id: str
    trial: int
    created_at: float
    folder: Path


class About(Struct, frozen=True):
    """The exported run. ``params`` are those of the launch without secrets; ``metrics`` are the requested names, empty
    for all; ``key`` is unique to this run and target, and constant."""

    run_id: str
    name: str
    profile: str
    created_at: float
    params: Mapping[str, Any]
    metrics: tuple[str, ...]
    key: str
    study: StudyOfRun | None = None

    def values(self, line: StoredLine) -> dict[str, float]:
        """The wanted metrics of a line."""
        numbers = line.numbers()
        return {name: numbers[name] for name in self.metrics if name in numbers} if self.metrics else numbers

    def point(self, line: StoredLine) -> tuple[int, float, dict[str, float]] | None:
        """(step, unix seconds, values) of a line; None without a step or values. Values of ranks other than the first
        are named ``rank<N>/``, because trackers have no ranks."""
        if line.step is None or not (values := self.values(line)):
            return None
        if line.rank:
            values = {f"rank{line.rank}/{name}": value for name, value in values.items()}
        return line.step, self.created_at if line.at is None else line.at, values


class Begun(Struct, frozen=True):
    """A sink is ready. ``is_new``: it is empty, so everything must be written from the first line."""

    position: Position
    is_new: bool


class Sink(Protocol):
    """A target. Every method may raise ExportError or OSError; then a new process begins again.

    ``written`` counts what this object has written: lines of a file, or steps of a tracker.
    """

    written: int

    def refuse_taken(self) -> None:
        """Raise ExportError if the target has content that is not this run's."""

    def origin(self) -> Position:
        """The position of a new sink; `begin` with it takes over the target."""

    def begin(self, position: Position) -> Begun:
        """Open the target and remove what was written after ``position``."""

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        """Write items, and return when a crash cannot lose them. ``has_more``: another piece follows at once."""

    def finish(self, state: str, ended_at: float) -> Position:
        """There is nothing more for now: the run is over, or ``state`` says otherwise. A new process may `begin` again
        if the run is resumed."""


def cleaned(value: Any) -> Any:
    """Plain JSON without secrets and without invalid Unicode, such as a file name in another encoding."""
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
    if note.kind == "attempt":
        parts = [f"attempt {note.attempt} begins"]
        if data["resumed_from"]:
            parts.append(f"from {data['resumed_from']}")
        if data["changed"]:
            parts.append("with " + ", ".join(f"{name}={value}" for name, value in data["changed"].items()))
        text = " ".join(parts)
    elif note.kind == "incident":
        at = "" if data["step"] is None else f" at step {data['step']}"
        text = f"attempt {note.attempt} ended{at}: {data['summary']} ({data['kind']})"
    elif note.kind == "decision":
        text = f"{data['verdict']}: {data['reason']}"
    else:
        text = f"{data['state']}: {data['cause']}"
    return str(cleaned(text))
