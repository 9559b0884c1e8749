"""The step, the epoch and the number of steps of a line, from the counters that its shape prints.

In: "Epoch 2 [20/100]", as counters. Out: step 120 of 1000, if an epoch is known to have 100 steps and a run ten epochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gputui.core.training_log import MAX_STEP
from gputui.metrics.epochs import EpochCount
from gputui.metrics.learning.learned_state import Running
from gputui.metrics.learning.positions import ContinuedCount, Position
from gputui.metrics.learning.shapes import Counters, LearnedShape, ShapeReader
from gputui.metrics.learning.words import HELD_OUT

EPOCH = "epoch"

# A place this near to its total was the end of an epoch: some scripts print every tenth step only.
_END_OF_EPOCH = 0.75


class ReadShapes:
    """The shapes whose lines are read, and what they mean together.

    Attributes:
        readers: one for each shape.
        positions: where the lines of each shape are, in the order of the readers.
        counts: the epochs that shapes which count alike have, by `LearnedShape.scale`.
        has_metrics: some shape has lines with values.
        has_steps: some shape of these has lines with a step.
        counts_steps: some shape, with values or without, has lines with a step.
        has_bar: some shape has lines with a step and without values.
    """

    def __init__(self, counts: dict[str, EpochCount]) -> None:
        self.readers: list[ShapeReader] = []
        self.positions: list[Position] = []
        self.counts = counts
        self.has_metrics = False
        self.has_steps = False
        self.counts_steps = False
        self.has_bar = False

    @property
    def learned(self) -> tuple[LearnedShape, ...]:
        return tuple(reader.shape for reader in self.readers)

    def add(self, shape: LearnedShape, position: Sequence[int | None]) -> None:
        """Read the lines of one more shape, from a position on."""
        self.readers.append(ShapeReader(shape))
        self.positions.append(Position(self.counts.setdefault(shape.scale, EpochCount()), position))
        shapes = self.learned
        with_step = [shape for shape in shapes if shape.has("step") and not shape.is_held_out]
        self.has_metrics = any(not shape.is_source for shape in shapes)
        self.has_steps = any(not shape.is_source for shape in with_step)
        self.counts_steps = bool(with_step)
        self.has_bar = any(shape.is_source for shape in with_step)


class StepFinder:
    """Finds the steps of lines, one line after another.

    Attributes:
        running: where the reading is.
        is_corrected: a shape counts otherwise than was thought, so that its lines so far are to be read again.
        _batch_size: the samples of a batch of the attempt, None if they are not known.
        _steps: the count of steps of the lines with a metric.
        _headers: the count of epochs of the lines that only count.
    """

    def __init__(self, shapes: ReadShapes, running: Running, batch_size: int | None) -> None:
        self.running = running
        self.is_corrected = False
        self._shapes = shapes
        self._batch_size = batch_size
        self._steps = ContinuedCount(running.steps)
        self._headers = ContinuedCount(running.headers)

    @property
    def state(self) -> Running:
        """Where the reading is, for the next reader."""
        return replace(
            self.running,
            recent={place: [*names] for place, names in self.running.recent.items()},
            ranks={**self.running.ranks},
            steps=self._steps.state,
            headers=self._headers.state,
            positions=tuple(position.state for position in self._shapes.positions),
            counts={scale: count.state for scale, count in self._shapes.counts.items()},
        )

    def behind_training(self, index: int, step: int) -> int:
        """The step of a line without one of its own: where the training has made all its steps, and such a line was
        there at the last, a bar with fewer steps is that of another training behind it."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        nested = self.running.nested
        is_over = step == self.running.total and position.summarised is not None and position.summarised >= step
        is_held_out = any(part in name for name in shape.names for part in HELD_OUT)
        if nested is not None and is_over and not is_held_out:
            step += nested
        position.summarised = step
        return step

    def place_key(self, index: int, step: int, counters: Counters) -> str:
        """A step, with its place in the epoch where several places are one step. A line without a place is at the
        newest one."""
        if counters.step is not None and self._shapes.positions[index].is_converted:
            return f"{step} {counters.epoch} {counters.step}"
        newest = next(reversed(self.running.recent), "")
        if newest.startswith(f"{step} "):
            return newest
        return f"{step}"

    def step(self, index: int, counters: Counters) -> int | None:
        """The step of a line, and what its counters say of the lines behind it."""
        reader = self._shapes.readers[index]
        if reader.shape.is_held_out:
            is_last = counters.step == counters.step_total
            return self.running.newest if is_last else None
        if counters.step is not None:
            step = self._step_at(index, counters)
            only_counts_beside_others = reader.is_source and self._shapes.has_steps
            if step is not None and not only_counts_beside_others:
                self._note_newest(index, step, counters)
            return step
        if counters.epoch is not None and reader.is_source:
            self._note_header(self._shapes.positions[index], counters.epoch, counters.epoch_total)
            return None
        if counters.epoch is not None:
            return self._step_of_epoch(index, counters.epoch, counters.epoch_total)
        if self._shapes.counts_steps:
            return self.running.newest
        return self.running.counted_epoch

    def _note_newest(self, index: int, step: int, counters: Counters) -> None:
        self.running.newest = step
        self.running.total = None
        if counters.epoch is None and not self._shapes.readers[index].shape.restarts:
            self.running.total = self.total_steps(index, counters)

    def _step_at(self, index: int, counters: Counters) -> int | None:
        """The step of a line with a place: 120 of ``Epoch 2 [20/100]``."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        if shape.counts_samples and self._batch_size is not None:
            counters = counters.in_batches(self._batch_size)
        place = counters.step
        total = counters.step_total
        assert place is not None
        names_no_epoch = counters.epoch is None and not shape.restarts
        was_at_end = total is not None and (position.place or 0) >= _END_OF_EPOCH * total
        if names_no_epoch and was_at_end and position.has_restarted(place, total):
            # It counts within each epoch, which earlier lines did not show.
            self._shapes.readers[index] = ShapeReader(replace(shape, restarts=True))
            self.is_corrected = True
        step = position.step(counters, self.running.counted_epoch, restarts=shape.restarts, may_nest=shape.may_nest)
        self.running.nested = place if step is None else None
        if step is None or step > MAX_STEP:
            return None
        is_end = place == total and counters.epoch == counters.epoch_total
        return _valid(self._steps.count(position, step, is_end=is_end, repeats=self._repeats(position, shape)))

    def _step_of_epoch(self, index: int, epoch: int, epochs: int | None) -> int | None:
        """The step of a line that has only an epoch: the newest, of which it is a summary. Where no step was made since
        the last such line, the epochs are a training of their own behind it."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        newest = self.running.newest
        if not self._shapes.counts_steps or newest is None:
            is_end = epoch == epochs
            return _valid(self._steps.count(position, epoch, is_end=is_end, repeats=self._repeats(position, shape)))
        if position.summarised is None:
            newest += shape.is_apart
        elif position.summarised == newest and epoch != position.last:
            newest += max(1, epoch - (position.last or 0))
        if newest > MAX_STEP:
            return None
        position.last = epoch
        position.summarised = newest
        self.running.newest = newest
        self._steps.highest = max(newest, self._steps.highest or 0)
        return newest

    def _note_header(self, position: Position, epoch: int, epochs: int | None) -> None:
        """Note the epoch of the lines below."""
        self._headers.count(position, epoch, is_end=epoch == epochs)
        self.running.epoch = epoch
        self.running.epochs = epochs
        self.running.epochs_before = position.base

    def _repeats(self, position: Position, shape: LearnedShape) -> bool:
        """Return whether a line just before the first one of a shape had a metric of it."""
        return position.last is None and any(
            name in names for names in self.running.recent.values() for name in shape.names if name != EPOCH
        )

    def epoch(self, shape: LearnedShape, counters: Counters) -> int | None:
        """The epoch that a line names, or a header before it if its lines are of epochs."""
        if counters.epoch is not None:
            return counters.epoch
        counts_over_epochs = not shape.restarts if counters.step is not None else self._shapes.counts_steps
        return None if counts_over_epochs else self.running.epoch

    def total_steps(self, index: int, counters: Counters) -> int | None:
        """The steps of the run at the end of the training of a line, as far as it is known."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        if shape.is_held_out:
            return None
        if counters.step is None and self._shapes.counts_steps:
            return self.running.total
        if counters.step is not None and counters.epoch is None and not shape.restarts:
            total = counters.step_total
        elif counters.step is not None:
            total = _steps_of(self._epochs(counters), position)
        else:
            total = self._epochs(counters)
        if total is None:
            return None
        return position.base + total

    def _epochs(self, counters: Counters) -> int | None:
        """How many epochs there are, by a line or the header before it."""
        if counters.epoch is None and self.running.epochs is not None:
            return self.running.epochs_before + self.running.epochs
        return counters.epoch_total


def _steps_of(epochs: int | None, position: Position) -> int | None:
    """The steps of so many epochs."""
    # Whether the last of epochs from 0 is the total, or the one before it, is unknown.
    if epochs is None or not position.count.length or position.count.first == 0:
        return None
    return epochs * position.count.length


def _valid(step: int) -> int | None:
    return step if step <= MAX_STEP else None
