"""Learn the shapes of a program's metric lines while it prints them, and read the lines of those."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from zlib import crc32

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.metrics.contract import LineFormat, Parsed, parse_values
from gputui.metrics.learning.blocks import Blocks
from gputui.metrics.learning.evidence import (
    NEWEST,
    Candidate,
    Context,
    has_metric,
    is_counter,
    is_promising,
    learn,
    learn_counter,
    names_epoch,
)
from gputui.metrics.learning.prefixes import split_prefix
from gputui.metrics.learning.remarks import remark
from gputui.metrics.learning.shapes import Counters, LearnedShape, Position, ShapeReader
from gputui.metrics.learning.tokens import Line, header_cells, leading_cells, read_line
from gputui.metrics.learning.words import SIGNS, has_metric_piece
from gputui.metrics.printed import CUT_OFF, printed_text

MAX_SHAPES = 32
MAX_CANDIDATES = 24
MAX_COUNTERS = 12
MAX_HEADERS = 4
MAX_HEADER_CHARACTERS = 400
MAX_REMARKS = 3
MAX_RANKS = 16
# The characters without a new shape after which only lines that come again are looked at.
LEARNING_CHARACTERS = 4_000_000
_BEGINNING_CHARACTERS = 48
_MAX_DULL = 2048
# The newest steps whose names are not stored again: other ranks print them too, and bars are redrawn.
_RECENT_STEPS = 2
# A place this near to its total was the end of an epoch.
_END_OF_EPOCH = 0.75

_DIGITS = re.compile(r"\d+")
_WORDS = re.compile(r"[A-Za-z#]+")
_BACKSPACES = re.compile("\x08+")
_BAR = re.compile(r"\d%\s?\|")
_EPOCH = "epoch"


class Running(Struct, frozen=True):
    """Where the reading is.

    ``newest`` is the newest step, ``total`` the steps of the run, ``epoch`` and ``epochs`` those of the last header,
    ``part`` that of the data which the last metric line names, ``recent`` the names that are stored of the newest
    steps, ``ranks`` the lowest of each shape. A rank may repeat ``last_text``; ``blocks`` are the records of each rank
    that have begun.
    """

    lines: int = 0
    characters: int = 0
    newest: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    part: str | None = None
    recent: tuple[tuple[int, tuple[str, ...]], ...] = ()
    positions: Mapping[int, tuple[int | None, ...]] = field(default_factory=dict)
    ranks: Mapping[int, int] = field(default_factory=dict)
    last_text: str = ""
    blocks: tuple[tuple[int | None, tuple[str, ...]], ...] = ()
    headers: tuple[str, ...] = ()


class Learned(Struct, frozen=True):
    """What was learned, where the reading is, and the lines that may become shapes yet."""

    shapes: tuple[LearnedShape, ...] = ()
    running: Running = Running()
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    counters: Mapping[str, Candidate] = field(default_factory=dict)

    @property
    def for_next_attempt(self) -> Learned:
        """What the output of the next attempt is read with: it counts on the same scale, and may repeat steps."""
        positions = {index: (None, None, None, *state[3:]) for index, state in self.running.positions.items()}
        return Learned(self.shapes, Running(positions=positions))


class LearnedLines(LineFormat):
    """Metrics in the output of a program, by the shapes that were learned, and those that are learned meanwhile.

    ``has_news``: a shape was learned whose earlier lines were passed over, so that the output should be read again
    from its beginning with `restarted`.
    """

    breaks_at_return = True

    def __init__(self, learned: Learned = Learned(), *, learns: bool = True) -> None:  # noqa: B008
        self._has_news = False
        self._learns = learns
        running = learned.running
        self._readers: list[ShapeReader] = []
        self._positions: list[Position] = []
        for index, shape in enumerate(learned.shapes):
            self._readers.append(ShapeReader(shape))
            self._positions.append(Position(running.positions.get(index, ())))
        self._candidates = dict(learned.candidates)
        self._counters = dict(learned.counters)
        self._ranks = dict(running.ranks)
        self._last_text = running.last_text
        self._blocks = {rank: Blocks(state) for rank, state in running.blocks}
        self._headers = list(running.headers)
        self._lines, self._characters = running.lines, running.characters
        self._newest, self._total = running.newest, running.total
        self._epoch, self._epochs = running.epoch, running.epochs
        self._part = running.part
        self._recent = {step: set(names) for step, names in running.recent}
        # Lines without metrics, by what stays if their digits go.
        self._dull: dict[str, str] = {}
        self._beginnings: dict[str, str] = {}
        # The candidates of lines, by the same.
        self._keys: dict[str, str] = {}
        self._learned: Learned | None = learned
        self._note_shapes()

    @property
    def learned(self) -> Learned:
        if self._learned is None:
            running = Running(
                self._lines,
                self._characters,
                self._newest,
                self._total,
                self._epoch,
                self._epochs,
                self._part,
                tuple((step, tuple(sorted(names))) for step, names in self._recent.items()),
                {index: position.state for index, position in enumerate(self._positions)},
                dict(self._ranks),
                self._last_text,
                tuple((rank, blocks.state) for rank, blocks in self._blocks.items() if blocks.state),
                tuple(self._headers),
            )
            self._learned = Learned(self._shapes, running, dict(self._candidates), dict(self._counters))
        return self._learned

    @property
    def inherited(self) -> Learned:
        return self.learned.for_next_attempt

    @property
    def has_news(self) -> bool:
        return self._has_news

    def restarted(self) -> LearnedLines:
        return LearnedLines(Learned(self._shapes), learns=self._learns)

    @property
    def remarks(self) -> Sequence[str]:
        """Lines that look like metrics and are not stored, with the key of the profile that would."""
        often = [candidate for candidate in self._candidates.values() if candidate.lines > 1]
        often.sort(key=lambda candidate: -candidate.lines)
        return [remark(candidate) for candidate in often[:MAX_REMARKS]]

    def parse(self, line: bytes) -> Parsed:
        self._learned = None
        self._lines += 1
        text, rank = split_prefix(_text(line))
        blocks = self._blocks.get(rank)
        if blocks is None:
            blocks = self._blocks[rank] = Blocks()
            if len(self._blocks) > MAX_RANKS:
                del self._blocks[next(iter(self._blocks))]
        whole = blocks.add(text)
        if whole is None or whole == self._last_text or not whole.strip():
            return None
        self._last_text = whole
        for index, reader in enumerate(self._readers):
            match = reader.match(whole)
            if match is not None:
                return self._record(index, match, rank)
        if self._learns and len(self._readers) < MAX_SHAPES:
            self._learn(whole, rank)
        return None

    def parse_unterminated(self, line: bytes) -> Parsed:
        """A number at the end of the output may lack digits, so one is valid only if text follows."""
        text, _ = split_prefix(_text(line))
        for reader in self._readers:
            match = reader.match(text)
            if match is not None:
                return self.parse(line) if reader.last_end(match) < len(text.rstrip()) else CUT_OFF
        return None

    def conclude(self) -> None:
        """Learn what a run shows that printed few lines and has ended."""
        if not self._learns:
            return
        for key, candidate in list(self._candidates.items()):
            line = read_line(candidate.text, candidate.header)
            if line is not None and len(candidate.rows) > 1:
                self._judge(key, line, candidate, is_over=True)

    @property
    def _shapes(self) -> tuple[LearnedShape, ...]:
        return tuple(reader.shape for reader in self._readers)

    # --- lines of learned shapes ---

    def _record(self, index: int, match: re.Match[str], rank: int | None) -> Parsed:
        reader = self._readers[index]
        shape = reader.shape
        counters = reader.counters(match)
        if counters is None or not self._is_first_rank(index, counters.rank if rank is None else rank):
            return None
        step = self._step(index, counters)
        if not shape.is_source:
            self._part = shape.part
        if shape.is_source or step is None:
            return None
        values = reader.values(match)
        stored = self._recent.setdefault(step, set())
        values = {name: value for name, value in values.items() if name == _EPOCH or name not in stored}
        if not values.keys() - {_EPOCH}:
            return None
        stored.update(values)
        while len(self._recent) > _RECENT_STEPS:
            del self._recent[next(iter(self._recent))]
        epoch = self._epoch_of(shape, counters)
        named: dict[str, int | float] = {"step": step}
        if epoch is not None:
            named[_EPOCH] = epoch
        total = self._total_steps(index, counters)
        if total is not None:
            named["total_steps"] = total
        return parse_values({**named, **values})

    def _is_first_rank(self, index: int, rank: int | None) -> bool:
        """Return whether a line is of the lowest rank that prints lines of its shape."""
        if rank is None:
            return True
        lowest = self._ranks[index] = min(rank, self._ranks.get(index, rank))
        return rank == lowest

    def _step(self, index: int, counters: Counters) -> int | None:
        """The step of a line, and what its counters say of the lines behind it."""
        shape = self._readers[index].shape
        if shape.is_held_out:
            return self._newest if counters.step == counters.step_total else None
        if counters.step is not None:
            step = self._place(index, counters)
            if step is not None and not (shape.is_source and self._has_steps):
                self._newest = step
                self._total = None if shape.restarts or counters.epoch is not None else counters.step_total
            return step
        if counters.epoch is None:
            return self._newest if self._counts_steps else self._epoch
        if shape.is_source:
            self._epoch, self._epochs = counters.epoch, counters.epoch_total
            return None
        if self._counts_steps:
            return self._newest or 0
        return counters.epoch

    def _place(self, index: int, counters: Counters) -> int | None:
        shape, position = self._readers[index].shape, self._positions[index]
        place, total = counters.step, counters.step_total
        assert place is not None
        is_nameless = counters.epoch is None and not shape.restarts
        was_at_end = total is not None and (position.place or 0) >= _END_OF_EPOCH * total
        if is_nameless and was_at_end and position.has_restarted(place, total):
            self._readers[index] = ShapeReader(replace(shape, restarts=True))
            self._has_news = True
        return position.step(counters, self._epoch, restarts=shape.restarts)

    def _epoch_of(self, shape: LearnedShape, counters: Counters) -> int | None:
        """The epoch that a line names, or a header before it if its lines are of epochs."""
        has_own_step = counters.step is not None and not shape.restarts
        if counters.epoch is not None or has_own_step or (counters.step is None and self._counts_steps):
            return counters.epoch
        return self._epoch

    def _total_steps(self, index: int, counters: Counters) -> int | None:
        shape = self._readers[index].shape
        if shape.is_held_out:
            return None
        epochs = self._epochs if counters.epoch is None else counters.epoch_total
        if counters.step is None:
            return self._total if self._counts_steps else epochs
        if counters.epoch is None and not shape.restarts:
            return counters.step_total
        position = self._positions[index]
        # Whether the last of epochs from 0 is the total, or the one before it, is unknown.
        if epochs is None or not position.epoch_length or position.first_epoch == 0:
            return None
        return epochs * position.epoch_length

    # --- other lines ---

    def _learn(self, text: str, rank: int | None) -> None:
        words = {word.lower() for word in _WORDS.findall(text)}
        has_sign = not words.isdisjoint(SIGNS) or has_metric_piece(text.lower()) or _BAR.search(text) is not None
        is_row = bool(self._headers) and text.lstrip()[:1].isdigit()
        if words and not has_sign and not is_row:
            return
        dull = _DIGITS.sub("0", text)
        if dull in self._dull or self._rests(dull):
            return
        if self._characters > LEARNING_CHARACTERS:
            beginning = dull[:_BEGINNING_CHARACTERS]
            if beginning not in self._beginnings:
                _note(self._beginnings, beginning)
                return
        self._characters += len(text)
        line = self._read(text)
        if line is None:
            _note(self._dull, dull)
            return
        key = f"{crc32(line.shape.encode()):08x}"
        is_metrics, counts = is_promising(line), is_counter(line) and not has_metric(line)
        if is_metrics:
            _note(self._keys, dull, key)
            if self._rests(dull):
                return
            candidate = self._add(self._candidates, MAX_CANDIDATES, key, line, rank)
            self._part = line.columns[-1].part
            self._judge(key, line, candidate)
        if counts:
            self._add(self._counters, MAX_COUNTERS, key, line, rank)
            if names_epoch(line) and self._lacks_epoch:
                self._confirm_counter(key)
        if not (is_metrics or counts):
            _note(self._dull, dull)

    def _rests(self, dull: str) -> bool:
        """Number a line of a candidate that rests."""
        key = self._keys.get(dull, "")
        candidate = self._candidates.get(key)
        if candidate is None or not candidate.is_resting:
            return False
        del self._candidates[key]
        self._candidates[key] = replace(candidate, lines=candidate.lines + 1)
        return True

    def _read(self, text: str) -> Line | None:
        """A line that is no header of a table; with its header, if it is a row of one."""
        line = read_line(text)
        if line is None:
            self._note_header(text)
            return None
        cells = leading_cells(line.tokens)
        if cells > 1:
            for header in reversed(self._headers):
                for names in header_cells(header):
                    if len(names) == cells:
                        return read_line(text, names)
        return line

    def _note_header(self, text: str) -> None:
        words = {word.lower() for word in _WORDS.findall(text)}
        header = text.strip()
        if words.isdisjoint(SIGNS) or len(header) > MAX_HEADER_CHARACTERS or not header_cells(header):
            return
        if header in self._headers:
            self._headers.remove(header)
        self._headers = [*self._headers, header][-MAX_HEADERS:]

    def _add(self, candidates: dict[str, Candidate], most: int, key: str, line: Line, rank: int | None) -> Candidate:
        """Count a line of a candidate, and forget the one that came least lately."""
        counts = {key: counter.counted for key, counter in self._counters.items()}
        if self._newest is not None:
            counts[NEWEST] = self._newest
        if self._epoch is not None:
            counts[_EPOCH] = self._epoch
        begun = Candidate(line.text, line.header, self._lines)
        candidate = candidates.pop(key, begun).with_line(line, counts, self._part, rank)
        candidates[key] = candidate
        if len(candidates) > most:
            del candidates[next(iter(candidates))]
        return candidate

    def _judge(self, key: str, line: Line, candidate: Candidate, *, is_over: bool = False) -> None:
        lesson = learn(line, candidate, Context(self._has_metrics, self._counts_steps, is_over))
        if lesson is None:
            return
        del self._candidates[key]
        if lesson.source is not None and lesson.source in self._counters:
            self._confirm_counter(lesson.source)
        self._confirm(lesson.shape)
        if self._lacks_epoch:
            for counter_key, counter in list(self._counters.items()):
                counter_line = read_line(counter.text)
                if counter_line is not None and names_epoch(counter_line):
                    self._confirm_counter(counter_key)

    def _confirm_counter(self, key: str) -> None:
        candidate = self._counters.pop(key)
        line = read_line(candidate.text)
        shape = None if line is None else learn_counter(line, candidate)
        if shape is not None:
            self._confirm(shape)

    def _confirm(self, shape: LearnedShape) -> None:
        reader = ShapeReader(shape)
        if len(self._readers) >= MAX_SHAPES or reader.match(shape.example) is None:
            return
        self._readers.append(reader)
        self._positions.append(Position())
        self._characters = 0
        self._has_news = True
        self._note_shapes()

    def _note_shapes(self) -> None:
        """What the shapes together mean for a line without a step."""
        with_step = [shape for shape in self._shapes if shape.has("step") and not shape.is_held_out]
        self._has_metrics = any(not shape.is_source for shape in self._shapes)
        self._has_steps = any(not shape.is_source for shape in with_step)
        self._counts_steps = bool(with_step)
        # Places without an epoch, and lines without a counter, take that of a header.
        self._lacks_epoch = any(
            not shape.is_source and not shape.has("epoch") and not shape.is_held_out for shape in self._shapes
        )


def _note(texts: dict[str, str], text: str, key: str = "") -> None:
    texts[text] = key
    if len(texts) > _MAX_DULL:
        del texts[next(iter(texts))]


def _text(line: bytes) -> str:
    text = printed_text(line)
    return _BACKSPACES.sub("", text) if "\x08" in text else text
