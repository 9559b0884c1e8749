"""The protocol of all readers of metrics files, and the attempt of a line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gputui.metrics.batch import BATCH_BYTES, Batch, SourceState
from gputui.metrics.custody import Custody

_ANY_ATTEMPT = 2**63


class Boundary(NamedTuple):
    """The start of an attempt's lines."""

    generation: int
    byte_offset: int
    attempt: int


class SourceReader(Protocol):
    """Reads one source. It is stateless: the given state is the read position, and the returned state is valid once it
    is committed."""

    is_busy: bool
    """Whether the last `read` returned None because it needs another call."""
    custody: Custody | None
    """Decides which files may be read; None for all."""

    @property
    def device(self) -> int | None:
        """The device of the file that was seen last; None before."""

    @property
    def is_cut(self) -> bool:
        """Whether the last search for files ended early."""

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """The new lines after ``state``, or None. ``ended``: nothing more will be written, so an unfinished last line
        is final. Raises OSError if the file cannot be read."""

    def end_state(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """The state after everything that exists now, where the next attempt begins. With ``at_most``, the state at
        this offset, or at the start if the file is shorter."""

    def close(self) -> None:
        """Close open files."""


def owning_attempt(boundaries: Sequence[Boundary], position: tuple[int, int]) -> tuple[int | None, int | None]:
    """The attempt of the line at ``position`` (generation, offset), and the offset in this generation at which the next
    attempt begins; None if there is none. ``boundaries`` are sorted."""
    index = bisect_right(boundaries, (*position, _ANY_ATTEMPT))
    attempt = boundaries[index - 1].attempt if index else None
    following = boundaries[index] if index < len(boundaries) else None
    same = following is not None and following.generation == position[0]
    return attempt, following.byte_offset if following is not None and same else None


def attempt_begin(boundaries: Sequence[Boundary], position: tuple[int, int]) -> tuple[int, int] | None:
    """The start of the attempt of the line at ``position``, or None."""
    index = bisect_right(boundaries, (*position, _ANY_ATTEMPT))
    return boundaries[index - 1][:2] if index else None
