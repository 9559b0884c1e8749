"""What every form of export can do: take a run's lines and notes piece by piece, and go on after it was killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gputui.redaction import BY_LOOK
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.queries import StoredLine

Position = Mapping[str, Any]
"""What a sink remembers of what it has written, as plain JSON."""

PROJECT = "gputui"
"""The experiment or project of trackers that runs go to."""

NOTE = "gputui."
"""Begins the names of what gputui adds."""


class ExportError(Exception):
    """It cannot be exported; the text says why and what to do."""


class TargetTakenError(ExportError):
    """The target holds something already, which an export does not replace unasked."""


@dataclass(frozen=True, slots=True)
class StudyOfRun:
    """The study that a run is a trial of, and when it began (UTC unix seconds). ``folder`` is the study's own."""

    study_id: str
    trial: int
    created_at: float
    folder: Path


@dataclass(frozen=True, slots=True)
class About:
    """The run that is written. ``params`` are the launch's, secrets taken out; ``metrics`` are the names wanted, empty
    for all; ``key`` is unique to this run and target and stays the same. ``study`` is None if it is no trial."""

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
        """(step, unix seconds, values) of a line, None if it has no step or nothing wanted. Values of ranks other
        than the first go under ``rank<N>/``: trackers know no ranks."""
        if line.step is None or not (values := self.values(line)):
            return None
        if line.rank:
            values = {f"rank{line.rank}/{name}": value for name, value in values.items()}
        return line.step, self.created_at if line.at is None else line.at, values


@dataclass(frozen=True, slots=True)
class Begun:
    """A sink is ready. ``is_anew``: it holds nothing, so that everything is to be written from the first line."""

    position: Position
    is_anew: bool


class Sink(Protocol):
    """One target. Every method raises ExportError or OSError; what fails is begun again by a new process.

    ``written`` counts what this object has written: lines of a file, or steps for a tracker.
    """

    written: int

    def refuse_taken(self) -> None:
        """Raise ExportError where something lies at the target that is not this run's."""

    def origin(self) -> Position:
        """The position of a sink that was never begun; `begin` with it takes the target for its own."""

    def begin(self, position: Position) -> Begun:
        """Open the target and take back what was written after ``position``."""

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        """Write, and return once nothing of it is lost if this process or the machine dies. ``has_more``: the next
        piece follows at once."""

    def finish(self, state: str, ended_at: float) -> Position:
        """There is no more for now: the run is over, or ``state`` says that it is not. A new process may `begin` it
        again, where the run is resumed."""


def cleaned(value: Any) -> Any:
    """Plain JSON without what looks like a secret, and without what is not Unicode, such as a file's name in another
    encoding: none of the forms can hold that."""
    return _unicode(BY_LOOK.value(value))


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {name: _unicode(item) for name, item in value.items()}
    return [_unicode(item) for item in value] if isinstance(value, list | tuple) else value


def sentence(note: Note) -> str:
    """A note in words."""
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
