"""What every reader of a metrics file answers, whatever its format, and which attempt a line belongs to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gputui.metrics.batch import BATCH_BYTES, Batch, SourceState

_ANY_ATTEMPT = 2**63


class Boundary(NamedTuple):
    """Where an attempt's lines begin."""

    generation: int
    byte_offset: int
    attempt: int


class SourceReader(Protocol):
    """Reads one source. It changes nothing by itself: the state that it is given is the truth, the state that it
    answers counts once it is committed."""

    # It answered None because it is still looking, and is to be asked again.
    is_busy: bool

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """What is new after ``state``, or None. ``ended``: nothing more will be written, so that an unfinished last
        line is decided. Raises OSError if the file cannot be read."""

    def end_place(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """The state of a reader that had read all there is now: where the next attempt's lines will begin. With
        ``at_most``, of one that had read up to this offset; from the start where the file does not reach that far."""

    def close(self) -> None:
        """Let go of open files."""


def owning_attempt(boundaries: Sequence[Boundary], place: tuple[int, int]) -> tuple[int | None, int | None]:
    """Which attempt the line at ``place`` (generation, offset) belongs to, and the offset in the same generation at
    which the next attempt begins. ``boundaries`` are sorted; None if there is no such."""
    index = bisect_right(boundaries, (*place, _ANY_ATTEMPT))
    attempt = boundaries[index - 1].attempt if index else None
    following = boundaries[index] if index < len(boundaries) else None
    same = following is not None and following.generation == place[0]
    return attempt, following.byte_offset if following is not None and same else None


def attempt_place(boundaries: Sequence[Boundary], place: tuple[int, int]) -> tuple[int, int] | None:
    """Where the attempt began that the line at ``place`` belongs to; None if there is no such."""
    index = bisect_right(boundaries, (*place, _ANY_ATTEMPT))
    return boundaries[index - 1][:2] if index else None
