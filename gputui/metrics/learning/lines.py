"""Read the metric lines of a program by shapes that are learned while it prints them.

In: "Epoch 2 [20/100] loss: 0.51", as bytes. Out: ``{"step": 120, "epoch": 2, "loss": 0.51}``, once two or three such
lines have shown what is what; the lines before are read again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gputui.core.text import SEQUENCE
from gputui.core.training_log import MAX_STEP
from gputui.metrics.contract import Parsed, ParsedLine, parse_values
from gputui.metrics.epochs import EpochCount
from gputui.metrics.learning.evidence import LogSoFar
from gputui.metrics.learning.learned_state import LearnedState, Running
from gputui.metrics.learning.learner import Learner
from gputui.metrics.learning.positions import ContinuedCount, Position
from gputui.metrics.learning.shapes import Counters, LearnedShape, ShapeReader
from gputui.metrics.learning.whole_lines import MAX_CHARACTERS, WholeLines, split_bar, split_prefix
from gputui.metrics.learning.words import HELD_OUT
from gputui.metrics.line_format import LineFormat
from gputui.metrics.printed import CUT_OFF

MAX_SHAPES = 32
# The newest steps whose names are not stored again: other ranks print them too, and bars are redrawn.
_RECENT_STEPS = 2
# A place this near to its total was the end of an epoch.
_END_OF_EPOCH = 0.75

_MAX_BYTES_OF_CHARACTER = 4
_BACKSPACES = re.compile("\x08+")
_EPOCH = "epoch"
_ROUND = ("1", "2", "25", "5")
_LEAST_BATCH = 2
_SHARE = re.compile(r"\d+/\d+ \(\s*\d+(?:\.\d+)?%\)")
# tqdm.write overwrites its bar with blanks, writes, and draws it again.
_CLEARED = " " * 10


class LearnedLines(LineFormat):
    """Metrics in the output of a program, by the shapes that were learned, and those that are learned meanwhile.

    Attributes:
        _learns: it looks for more shapes.
        _batch_size: the samples of a batch of the attempt, if they are known.
        _earlier_counts: the epochs of earlier attempts.
        _has_news: a shape was learned whose earlier lines were passed over.
        _learned: what `learned` has returned, None once a line has changed it.
        _running: the place in the output, for the next line.
        _steps: the steps of the lines with a metric.
        _headers: the epochs of the lines that only count.
    """

    breaks_at_return = True
    learns = True

    def __init__(
        self,
        learned: LearnedState = LearnedState(),  # noqa: B008
        *,
        batch_size: int | None = None,
        learns: bool = True,
    ) -> None:
        running = learned.running
        self._learns = learns
        self._batch_size = batch_size
        self._earlier_counts = learned.earlier_counts
        self._has_news = False
        self._learned: LearnedState | None = learned
        self._running = replace(running, recent={**running.recent}, ranks={**running.ranks})
        self._whole_lines = WholeLines(running.records)
        self._learner = Learner(learned.learning)
        self._steps = ContinuedCount(running.steps)
        self._headers = ContinuedCount(running.headers)
        self._shapes = ReadShapes({scale: EpochCount.of_state(state) for scale, state in running.counts.items()})
        for index, shape in enumerate(learned.shapes):
            position: Sequence[int | None] = ()
            if running.positions:
                position = running.positions[index]
            self._use(shape, position)

    @property
    def learned(self) -> LearnedState:
        if self._learned is None:
            running = replace(
                self._running,
                recent={place: [*names] for place, names in self._running.recent.items()},
                ranks={**self._running.ranks},
                steps=self._steps.state,
                headers=self._headers.state,
                positions=tuple(position.state for position in self._shapes.positions),
                counts={scale: count.state for scale, count in self._shapes.counts.items()},
                records=self._whole_lines.state,
            )
            self._learned = LearnedState(self._shapes.learned, running, self._learner.learning, self._earlier_counts)
        return self._learned

    @property
    def inherited(self) -> LearnedState:
        return self.learned.for_next_attempt

    @property
    def has_news(self) -> bool:
        return self._has_news

    def restarted(self) -> LearnedLines:
        counts = self._earlier_counts
        again = LearnedState(self._shapes.learned, Running(counts={**counts}), earlier_counts=counts)
        return LearnedLines(again, batch_size=self._batch_size, learns=self._learns)

    @property
    def remark(self) -> str | None:
        return next((count.remark for count in self._shapes.counts.values() if count.remark is not None), None)

    @property
    def remarks(self) -> Sequence[str]:
        """Lines that look like metrics and are not stored, with the key of the profile that would."""
        return self._learner.remarks(with_single=not self._shapes.has_metrics)

    def parse(self, line: bytes) -> Parsed:
        self._learned = None
        text = _text(line)
        was_cleared = self._running.is_cleared
        self._running.is_cleared = text.endswith(_CLEARED)
        bar, text = split_bar(text)
        if not bar:
            return self._read(text, was_cleared=was_cleared)
        return _together(self._read(bar, was_cleared=was_cleared), self._read(text, was_cleared=False))

    def _read(self, text: str, *, was_cleared: bool) -> Parsed:
        """The record of a line without what is glued to it."""
        whole_line = self._whole_lines.add(text)
        if whole_line is None:
            return None
        whole_text, rank = whole_line
        if whole_text == self._running.last_text or not whole_text.strip():
            return None
        self._running.last_text = whole_text
        for index, reader in enumerate(self._shapes.readers):
            match = reader.match(whole_text)
            if match is None:
                continue
            if was_cleared and self._shapes.has_bar and reader.shape.lacks_step:
                # The bar is drawn again at once, at the place that it has meanwhile.
                earlier = self._release()
                self._running.held_line = (index, whole_text, rank)
                return earlier
            record = self._record(index, match, rank)
            if reader.is_source:
                return self._release()
            return record
        if self._learns and len(self._shapes.readers) < MAX_SHAPES:
            for shape in self._learner.add(whole_text, rank, self._running, self._context()):
                self._confirm(shape)
        return None

    def parse_unterminated(self, line: bytes) -> Parsed:
        """A number at the end of the output may lack digits, so one is valid only if text follows."""
        _, text = split_bar(_text(line))
        text, _ = split_prefix(text)
        for reader in self._shapes.readers:
            match = reader.match(text)
            if match is not None:
                if reader.last_end(match) < len(text.rstrip()):
                    return self.parse(line)
                return CUT_OFF
        return None

    def conclude(self) -> None:
        """Learn what a run shows that printed few lines and has ended."""
        if self._learns:
            for shape in self._learner.conclude(self._context(is_over=True)):
                self._confirm(shape)

    def _context(self, *, is_over: bool = False) -> LogSoFar:
        return LogSoFar(self._shapes.has_metrics, self._shapes.counts_steps, is_over)

    def _confirm(self, shape: LearnedShape) -> None:
        if len(self._shapes.readers) < MAX_SHAPES and ShapeReader(shape).match(shape.example) is not None:
            self._learned = None
            self._use(replace(shape, counts_samples=_counts_samples(shape, self._batch_size)))
            self._has_news = True

    def _use(self, shape: LearnedShape, position: Sequence[int | None] = ()) -> None:
        """Read the lines of a shape, and note what the shapes together mean for a line without a step."""
        self._shapes.add(shape, position)
        self._learner.lacks_epoch = any(shape.lacks_epoch for shape in self._shapes.learned)

    def _release(self) -> Parsed:
        """The record of a line that was held, at the newest step."""
        held_line = self._running.held_line
        self._running.held_line = None
        if held_line is None:
            return None
        index, text, rank = held_line
        match = self._shapes.readers[index].match(text)
        if match is None:
            return None
        return self._record(index, match, rank)

    def _record(self, index: int, match: re.Match[str], rank: int | None) -> Parsed:
        """The record of a line: its step, the epoch and the total if they are known, and what is new at that step.
        ``rank`` stands before the line. None for a line that only counts, or of another rank."""
        reader = self._shapes.readers[index]
        counters = reader.counters(match)
        if counters is None:
            return None
        if rank is None:
            rank = counters.rank
        if not self._is_first_rank(index, rank):
            return None
        step = self._step(index, counters)
        if reader.is_source:
            return None
        self._running.part = reader.shape.part
        if step is None:
            return None
        if reader.shape.lacks_step:
            step = self._behind_training(index, step)
        values = self._new_values(self._place_key(index, step, counters), reader.values(match))
        if not values:
            return None
        record: dict[str, int | float] = {"step": step}
        epoch = self._epoch_of(reader.shape, counters)
        total = self._total_steps(index, counters)
        if epoch is not None:
            record[_EPOCH] = epoch
        if total is not None and step <= total:
            record["total_steps"] = total
        return parse_values(record | values)

    def _behind_training(self, index: int, step: int) -> int:
        """The step of a line without one of its own: where the training has made all its steps, and such a line was
        there at the last, a bar with fewer steps is that of another training behind it."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        nested = self._running.nested
        is_over = step == self._running.total and position.summarised is not None and position.summarised >= step
        is_held_out = any(part in name for name in shape.names for part in HELD_OUT)
        if nested is not None and is_over and not is_held_out:
            step += nested
        position.summarised = step
        return step

    def _place_key(self, index: int, step: int, counters: Counters) -> str:
        """A step, with its place in the epoch where several places are one step. A line without a place is at the
        newest one."""
        if counters.step is not None and self._shapes.positions[index].is_converted:
            return f"{step} {counters.epoch} {counters.step}"
        newest = next(reversed(self._running.recent), "")
        if newest.startswith(f"{step} "):
            return newest
        return f"{step}"

    def _new_values(self, place: str, values: Mapping[str, int | float]) -> dict[str, int | float]:
        """The values of a line without those of names that have one at its place already; none if only an epoch is
        left."""
        recent = self._running.recent
        names = recent.setdefault(place, [])
        while len(recent) > _RECENT_STEPS:
            del recent[next(iter(recent))]
        new = {name: value for name, value in values.items() if name == _EPOCH or name not in names}
        if not new.keys() - {_EPOCH}:
            return {}
        names += new
        return new

    def _is_first_rank(self, index: int, rank: int | None) -> bool:
        """Return whether a line is of the lowest rank that prints lines of its shape."""
        if rank is None:
            return True
        lowest = self._running.ranks[index] = min(rank, self._running.ranks.get(index, rank))
        return rank == lowest

    def _step(self, index: int, counters: Counters) -> int | None:
        """The step of a line, and what its counters say of the lines behind it."""
        shape = self._shapes.readers[index].shape
        if shape.is_held_out:
            if counters.step == counters.step_total:
                return self._running.newest
            return None
        if counters.step is not None:
            step = self._place(index, counters)
            if step is not None and not (self._shapes.readers[index].is_source and self._shapes.has_steps):
                self._running.newest = step
                self._running.total = None
                if counters.epoch is None and not shape.restarts:
                    self._running.total = self._total_steps(index, counters)
            return step
        if counters.epoch is None:
            if self._shapes.counts_steps:
                return self._running.newest
            return self._running.counted_epoch
        if self._shapes.readers[index].is_source:
            self._note_header(self._shapes.positions[index], counters)
            return None
        return self._step_of_epoch(index, counters.epoch, counters.epoch_total)

    def _place(self, index: int, counters: Counters) -> int | None:
        """The step of a line with a place: 120 of ``Epoch 2 [20/100]``."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        if shape.counts_samples and self._batch_size is not None:
            counters = counters.in_batches(self._batch_size)
        place = counters.step
        total = counters.step_total
        assert place is not None
        is_nameless = counters.epoch is None and not shape.restarts
        was_at_end = total is not None and (position.place or 0) >= _END_OF_EPOCH * total
        if is_nameless and was_at_end and position.has_restarted(place, total):
            self._shapes.readers[index] = ShapeReader(replace(shape, restarts=True))
            self._has_news = True
        step = position.step(counters, self._running.counted_epoch, restarts=shape.restarts, may_nest=shape.may_nest)
        self._running.nested = place if step is None else None
        if step is None or step > MAX_STEP:
            return None
        is_end = place == total and counters.epoch == counters.epoch_total
        step = self._steps.count(position, step, is_end=is_end, repeats=self._repeats(position, shape))
        if step <= MAX_STEP:
            return step
        return None

    def _step_of_epoch(self, index: int, epoch: int, epochs: int | None) -> int | None:
        """The step of a line that has only an epoch: the newest, of which it is a summary. Where no step was made since
        the last such line, the epochs are a training of their own behind it."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        newest = self._running.newest
        if not self._shapes.counts_steps or newest is None:
            step = self._steps.count(position, epoch, is_end=epoch == epochs, repeats=self._repeats(position, shape))
            if step <= MAX_STEP:
                return step
            return None
        if position.summarised is None:
            newest += shape.is_apart
        elif position.summarised == newest and epoch != position.last:
            newest += max(1, epoch - (position.last or 0))
        if newest > MAX_STEP:
            return None
        position.last = epoch
        position.summarised = newest
        self._running.newest = newest
        self._steps.highest = max(newest, self._steps.highest or 0)
        return newest

    def _note_header(self, position: Position, counters: Counters) -> None:
        """Note the epoch of the lines below."""
        epoch = counters.epoch
        epochs = counters.epoch_total
        assert epoch is not None
        self._headers.count(position, epoch, is_end=epoch == epochs)
        self._running.epoch = epoch
        self._running.epochs = epochs
        self._running.epochs_before = position.base

    def _repeats(self, position: Position, shape: LearnedShape) -> bool:
        """Return whether a line just before the first one of a shape had a metric of it."""
        return position.last is None and any(
            name in names for names in self._running.recent.values() for name in shape.names if name != _EPOCH
        )

    def _epoch_of(self, shape: LearnedShape, counters: Counters) -> int | None:
        """The epoch that a line names, or a header before it if its lines are of epochs."""
        has_own_step = counters.step is not None and not shape.restarts
        if counters.epoch is not None or has_own_step or (counters.step is None and self._shapes.counts_steps):
            return counters.epoch
        return self._running.epoch

    def _total_steps(self, index: int, counters: Counters) -> int | None:
        """The steps of the run at the end of the training of a line, as far as it is known."""
        shape = self._shapes.readers[index].shape
        position = self._shapes.positions[index]
        if shape.is_held_out:
            return None
        if counters.step is None and self._shapes.counts_steps:
            return self._running.total
        epochs = counters.epoch_total
        if counters.epoch is None and self._running.epochs is not None:
            epochs = self._running.epochs_before + self._running.epochs
        if counters.step is None:
            total = epochs
        elif counters.epoch is None and not shape.restarts:
            total = counters.step_total
        else:
            total = _steps_of(epochs, position)
        if total is None:
            return None
        return position.base + total


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


def _together(bar: Parsed, line: Parsed) -> Parsed:
    """The record of a bar and of the line behind it; that of the line, if it has another step."""
    if not isinstance(bar, ParsedLine) or not isinstance(line, ParsedLine):
        if line is None:
            return bar
        return line
    if bar.step != line.step:
        return line
    return parse_values({**bar.values, **line.values})


def _steps_of(epochs: int | None, position: Position) -> int | None:
    """The steps of so many epochs."""
    # Whether the last of epochs from 0 is the total, or the one before it, is unknown.
    if epochs is None or not position.count.length or position.count.first == 0:
        return None
    return epochs * position.count.length


def _text(line: bytes) -> str:
    """The text of a line without escape sequences; "" if it is too long to be read: half of it may end in half a
    number."""
    if len(line) > _MAX_BYTES_OF_CHARACTER * MAX_CHARACTERS:
        return ""
    text = line.decode("utf-8", "replace")
    if "\x1b" in text or not text.isascii():
        text = SEQUENCE.sub("", text)
    if len(text) > MAX_CHARACTERS:
        return ""
    if "\x08" in text:
        return _BACKSPACES.sub("", text)
    return text


def _counts_samples(shape: LearnedShape, batch_size: int | None) -> bool:
    """Return whether places count samples, and not steps: they stand with their share of the epoch, as the examples of
    PyTorch print it, are multiples of the batch, and not of a round number, as people choose for the steps between two
    lines."""
    if batch_size is None or batch_size < _LEAST_BATCH or not shape.stride or _SHARE.search(shape.example) is None:
        return False
    return shape.stride % batch_size == 0 and str(shape.stride).rstrip("0") not in _ROUND
