"""All that outlives a reader of output: the learned shapes, where it is, and what it may learn yet."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from gputui.metrics.learning.candidates import Candidate
from gputui.metrics.learning.shapes import LearnedShape


class Running(Struct):
    """Where the reading is.

    Attributes:
        newest: The newest step.
        total: The steps of the run, None if they are not known.
        nested: The place of a bar with fewer steps than the last one, since that was drawn.
        epoch: The one of the last header.
        epochs: How many that header says there are.
        epochs_before: The number of epochs of the trainings before.
        steps: The state of the `ContinuedCount` of steps.
        headers: The state of the `ContinuedCount` of epochs in headers.
        part: The part of the data which the last metric line names.
        recent: The names that are stored at the newest places, by place.
        ranks: The lowest rank that prints a shape, by the index of the shape.
        positions: The state of each `Position`, by shape.
        counts: The state of each `EpochCount`, by scale.
        last_text: The last line, which another rank may repeat.
        records: The lines of the records that have begun, of each rank.
        is_cleared: The last line overwrote a bar with blanks.
        held_line: The shape, text and rank of a line written above the bar that is drawn next.
    """

    newest: int | None = None
    nested: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    epochs_before: int = 0
    steps: tuple[int | None, ...] = ()
    headers: tuple[int | None, ...] = ()
    part: str | None = None
    recent: dict[str, list[str]] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    positions: tuple[tuple[int | None, ...], ...] = ()
    counts: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    last_text: str = ""
    records: tuple[tuple[int | None, tuple[str, ...]], ...] = ()
    is_cleared: bool = False
    held_line: tuple[int, str, int | None] | None = field(default=None, name="held")

    @property
    def counted_epoch(self) -> int | None:
        """The epoch of the last header, counted over all trainings."""
        if self.epoch is None:
            return None
        return self.epochs_before + self.epoch


class Learning(Struct, frozen=True):
    """The lines that may become shapes: ``candidates`` with metrics, ``counters`` that only count, and the last
    ``headers`` of tables. ``characters`` were looked at since the last shape was learned."""

    characters: int = 0
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    counters: Mapping[str, Candidate] = field(default_factory=dict)
    headers: tuple[str, ...] = ()


class LearnedState(Struct, frozen=True):
    """What the next reader of an output goes on with. ``earlier_counts`` are the ``counts`` of the attempt before, with
    which the output begins."""

    shapes: tuple[LearnedShape, ...] = ()
    running: Running = field(default_factory=Running)
    learning: Learning = Learning()
    earlier_counts: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)

    @property
    def for_next_attempt(self) -> LearnedState:
        """What the output of the next attempt is read with: it counts on the same scale, and may repeat steps."""
        counts = self.running.counts
        return LearnedState(self.shapes, Running(counts=counts), earlier_counts=counts)
