"""Base class of the sinks: a run's lines and notes are written in pieces, and the next process
continues after a crash."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gputui.core.errors import ExplainedError
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item

Position = Mapping[str, Any]
"""How far a sink has written, as plain JSON; empty for a new one."""


class ExportError(ExplainedError):
    """The export failed. The text has the reason and a remedy."""

    is_refusal = True


class TargetTakenError(ExportError):
    """The target has content that an export does not replace by default."""


class Sink(ABC):
    """A target. Every method may raise ExportError or OSError; then a new Sink begins where this one
    has stored its position.

    ``written`` counts what this object has written: lines of a file, or steps of a tracker.
    """

    def __init__(self, subject: Subject, target: str) -> None:
        """Make a sink for an absolute target, without touching that."""
        self._subject = subject
        self._target = target
        self.written = 0

    @abstractmethod
    def refuse_taken(self) -> None:
        """Raise ExportError if the target has content that is not this run's."""

    @abstractmethod
    def begin(self, position: Position) -> bool:
        """Open the target and remove what was written after ``position``. Returns whether everything
        must be written, from the first line."""

    @abstractmethod
    def write(self, items: Sequence[Item], has_more: bool) -> None:
        """Write items, and return when a crash cannot lose them. ``has_more``: another piece
        follows at once."""

    @abstractmethod
    def position(self) -> Position:
        """The sink's own position."""

    def finish(self, state: str, ended_at: float) -> None:  # noqa: B027
        """There is nothing more for now: the run is over, or ``state`` says otherwise. Another sink
        may `begin` again if the run is resumed."""

    def close(self) -> None:  # noqa: B027
        """Release what is open, also after an error."""
