"""Read the metric lines of a program by shapes that are learned while it prints them.

In: "Epoch 2 [20/100] loss: 0.51", as bytes. Out: ``{"step": 120, "epoch": 2, "loss": 0.51}``, once two or three such
lines have shown what is what; the lines before are read again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gputui.core.text import SEQUENCE
from gputui.metrics.contract import Parsed, ParsedLine, parse_values
from gputui.metrics.epochs import EpochCount
from gputui.metrics.learning.evidence import LogSoFar
from gputui.metrics.learning.learned_state import LearnedState, Running
from gputui.metrics.learning.learner import Learner
from gputui.metrics.learning.shapes import LearnedShape, ShapeReader
from gputui.metrics.learning.step_finder import EPOCH, ReadShapes, StepFinder
from gputui.metrics.learning.whole_lines import MAX_CHARACTERS, WholeLines, split_bar, split_prefix
from gputui.metrics.line_format import LineFormat
from gputui.metrics.printed import CUT_OFF

MAX_SHAPES = 32  # each line is tried with all of them; a program prints some ten
# The newest steps whose names are not stored again: other ranks print them too, and bars are redrawn.
_RECENT_STEPS = 2

_MAX_BYTES_OF_CHARACTER = 4
_BACKSPACES = re.compile("\x08+")
# The digits, but for zeros behind them, of a number of steps that people choose between two lines.
_ROUND = ("1", "2", "25", "5")
_LEAST_BATCH = 2  # with batches of one, samples are steps
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
        self._shapes = ReadShapes({scale: EpochCount.of_state(state) for scale, state in running.counts.items()})
        self._steps = StepFinder(self._shapes, self._running, batch_size)
        for index, shape in enumerate(learned.shapes):
            position: Sequence[int | None] = ()
            if running.positions:
                position = running.positions[index]
            self._use(shape, position)

    @property
    def learned(self) -> LearnedState:
        if self._learned is None:
            running = replace(self._steps.state, records=self._whole_lines.state)
            self._learned = LearnedState(self._shapes.learned, running, self._learner.learning, self._earlier_counts)
        return self._learned

    @property
    def inherited(self) -> LearnedState:
        return self.learned.for_next_attempt

    @property
    def has_news(self) -> bool:
        return self._has_news or self._steps.is_corrected

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
        step = self._steps.step(index, counters)
        if reader.is_source:
            return None
        self._running.part = reader.shape.part
        if step is None:
            return None
        if reader.shape.lacks_step:
            step = self._steps.behind_training(index, step)
        values = self._new_values(self._steps.place_key(index, step, counters), reader.values(match))
        if not values:
            return None
        record: dict[str, int | float] = {"step": step}
        epoch = self._steps.epoch(reader.shape, counters)
        total = self._steps.total_steps(index, counters)
        if epoch is not None:
            record[EPOCH] = epoch
        if total is not None and step <= total:
            record["total_steps"] = total
        return parse_values(record | values)

    def _new_values(self, place: str, values: Mapping[str, int | float]) -> dict[str, int | float]:
        """The values of a line without those of names that have one at its place already; none if only an epoch is
        left."""
        recent = self._running.recent
        names = recent.setdefault(place, [])
        while len(recent) > _RECENT_STEPS:
            del recent[next(iter(recent))]
        new = {name: value for name, value in values.items() if name == EPOCH or name not in names}
        if not new.keys() - {EPOCH}:
            return {}
        names += new
        return new

    def _is_first_rank(self, index: int, rank: int | None) -> bool:
        """Return whether a line is of the lowest rank that prints lines of its shape."""
        if rank is None:
            return True
        lowest = self._running.ranks[index] = min(rank, self._running.ranks.get(index, rank))
        return rank == lowest


def _together(bar: Parsed, line: Parsed) -> Parsed:
    """The record of a bar and of the line behind it; that of the line, if it has another step."""
    if not isinstance(bar, ParsedLine) or not isinstance(line, ParsedLine):
        if line is None:
            return bar
        return line
    if bar.step != line.step:
        return line
    return parse_values({**bar.values, **line.values})


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
