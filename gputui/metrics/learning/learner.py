"""Learn the shapes of lines that no shape matches yet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from msgspec.structs import replace

from gputui.metrics.learning.candidates import NEWEST, Candidate, has_metric, is_counter, is_promising, names_epoch
from gputui.metrics.learning.columns import PrintedLine, header_cells, leading_cells, read_line
from gputui.metrics.learning.evidence import LogSoFar, learn, learn_counter
from gputui.metrics.learning.learned_state import Learning, Running
from gputui.metrics.learning.patterns import pattern_of
from gputui.metrics.learning.shapes import LearnedColumn, LearnedShape
from gputui.metrics.learning.words import SIGNS, Sense, has_metric_piece, meaning, normal_name

MAX_CANDIDATES = 24  # a program prints fewer kinds of lines with numbers
MAX_COUNTERS = 12  # and still fewer kinds that only count
MAX_HEADERS = 4  # the header of a table stands just above its rows
MAX_HEADER_CHARACTERS = 400  # two lines of a wide terminal
MAX_REMARKS = 3  # more do not fit below the charts of a run
SHOWN_CHARACTERS = 120  # a line of a terminal
# The characters without a new shape after which only lines that come again are looked at.
LEARNING_CHARACTERS = 4_000_000
_BEGINNING_CHARACTERS = 48  # beyond them, lines of one kind differ in their texts
_MAX_NOTED = 2048  # a hundred kilobytes; then all are forgotten and noted anew

_DIGITS = re.compile(r"\d+")
_WORDS = re.compile(r"[A-Za-z#]+")
_BAR = re.compile(r"\d%\s?\|")
_EPOCH = "epoch"
# The key of a line that says nothing.
_NO_KEY = ""
# What the number that counts is called, the best first.
_COUNTING = {Sense.STEP: 0, Sense.EPOCH: 1}


class Learner:
    """Collects lines of the same shape until it is sure what they say. ``lacks_epoch``: a learned shape takes the epoch
    of a header, so that a header is a shape at once."""

    def __init__(self, learning: Learning) -> None:
        self._candidates = dict(learning.candidates)
        self._counters = dict(learning.counters)
        self._headers = list(learning.headers)
        self._characters = learning.characters
        self.lacks_epoch = False
        # By texts without their digits: the candidate of each line, or _NO_KEY; then the beginnings of lines.
        self._keys: dict[str, str] = {}
        self._beginnings: dict[str, str] = {}

    @property
    def learning(self) -> Learning:
        return Learning(self._characters, dict(self._candidates), dict(self._counters), tuple(self._headers))

    def remarks(self, *, with_single: bool) -> Sequence[str]:
        """Lines that look like metrics and are not stored, with the key of the profile that would; ``with_single``
        also those without another of their shape."""
        candidates = [candidate for candidate in self._candidates.values() if with_single or candidate.lines > 1]
        candidates.sort(key=lambda candidate: -candidate.lines)
        remarks = (_remark(candidate) for candidate in candidates)
        return [remark for remark in remarks if remark is not None][:MAX_REMARKS]

    def add(self, text: str, rank: int | None, running: Running, context: LogSoFar) -> list[LearnedShape]:
        """Take a line, and return the shapes that it makes sure."""
        if not self._has_sign(text):
            return []
        digitless = _DIGITS.sub("0", text)
        last_key = self._keys.get(digitless)
        if last_key == _NO_KEY or self._rests(last_key, context) or self._is_new(digitless):
            return []
        self._characters += len(text)
        line = self._read(text)
        if line is None:
            _note(self._keys, digitless, _NO_KEY)
            return []
        only_counts = is_counter(line) and not has_metric(line)
        if not only_counts and not is_promising(line):
            _note(self._keys, digitless, _NO_KEY)
            return []
        key = f"{crc32(line.shape.encode()):08x}"
        _note(self._keys, digitless, key)
        if is_promising(line):
            if self._rests(key, context):
                return []
            candidate = self._collect(self._candidates, MAX_CANDIDATES, key, line=line, rank=rank, running=running)
            running.part = line.columns[-1].part or running.part
            shapes = self._judge(key, line, candidate, context)
            if shapes or not only_counts:
                return shapes
        self._collect(self._counters, MAX_COUNTERS, key, line=line, rank=rank, running=running)
        if names_epoch(line) and self.lacks_epoch:
            return self._take_counter(key)
        return []

    def conclude(self, context: LogSoFar) -> list[LearnedShape]:
        """The shapes that few lines show, once the output has ended."""
        shapes = []
        for key, candidate in list(self._candidates.items()):
            line = read_line(candidate.text, candidate.header)
            if line is not None and len(candidate.rows) > 1:
                shapes += self._judge(key, line, candidate, context)
        return shapes

    def _has_sign(self, text: str) -> bool:
        """Return whether a line is worth a look: a word of metrics or counters, a bar, or a row of a table."""
        lower_words = {word.lower() for word in _WORDS.findall(text)}
        if not lower_words or not lower_words.isdisjoint(SIGNS) or has_metric_piece(text.lower()):
            return True
        return _BAR.search(text) is not None or (bool(self._headers) and text.lstrip()[:1].isdigit())

    def _rests(self, key: str | None, context: LogSoFar) -> bool:
        """Number a line of a candidate that rests. Lines that only count do so while nobody needs their count: there is
        no other candidate, or learned lines have steps."""
        if key is None:
            return False
        candidates = self._candidates
        is_needed = self.lacks_epoch or (bool(self._candidates) and not context.has_steps)
        if key in self._counters and not is_needed:
            candidates = self._counters
        candidate = candidates.get(key)
        if candidate is None or not candidate.is_resting:
            return False
        del candidates[key]
        candidates[key] = replace(candidate, lines=candidate.lines + 1)
        return True

    def _is_new(self, digitless: str) -> bool:
        """Return whether a line begins as none before, after much that led to nothing."""
        beginning = digitless[:_BEGINNING_CHARACTERS]
        if self._characters <= LEARNING_CHARACTERS or beginning in self._beginnings:
            return False
        _note(self._beginnings, beginning)
        return True

    def _read(self, text: str) -> PrintedLine | None:
        """A line that is no header of a table; with its header, if it is a row of one."""
        line = read_line(text)
        if line is None:
            self._note_header(text)
            return None
        names = self._names_of_cells(leading_cells(line.tokens))
        if names is None:
            return line
        return read_line(text, names)

    def _names_of_cells(self, count: int) -> Sequence[str] | None:
        """The names of so many cells of a row, by the newest header that has as many. A header may have more, of
        columns without numbers: ``cp`` of "epoch  train_loss  cp  dur"."""
        if count < 2:
            return None
        readings = [names for header in reversed(self._headers) for names in header_cells(header)]
        for names in readings:
            if len(names) == count:
                return names
        for names in readings:
            known_names = [name for name in names if meaning(normal_name(tuple(name.split()))) is not Sense.UNKNOWN]
            if len(known_names) == count:
                return known_names
        return None

    def _note_header(self, text: str) -> None:
        lower_words = {word.lower() for word in _WORDS.findall(text)}
        header = text.strip()
        if lower_words.isdisjoint(SIGNS) or len(header) > MAX_HEADER_CHARACTERS or not header_cells(header):
            return
        if header in self._headers:
            self._headers.remove(header)
        self._headers = [*self._headers, header][-MAX_HEADERS:]

    def _collect(
        self,
        candidates: dict[str, Candidate],
        most: int,
        key: str,
        line: PrintedLine,
        rank: int | None,
        running: Running,
    ) -> Candidate:
        """Count a line of a candidate, and forget the one that came least lately."""
        counts = {counter_key: counter.counted for counter_key, counter in self._counters.items()}
        if running.newest is not None:
            counts[NEWEST] = running.newest
        if running.counted_epoch is not None:
            counts[_EPOCH] = running.counted_epoch
        begun = Candidate(line.text, line.header)
        candidate = candidates.pop(key, begun).with_line(line, counts, running.part, rank)
        candidates[key] = candidate
        if len(candidates) > most:
            del candidates[next(iter(candidates))]
        return candidate

    def _judge(self, key: str, line: PrintedLine, candidate: Candidate, context: LogSoFar) -> list[LearnedShape]:
        """The shape of a candidate, if it is sure, and those that give it its step or epoch."""
        lesson = learn(line, candidate, context)
        if lesson is None:
            return []
        self._characters = 0
        del self._candidates[key]
        shape, step_counter = lesson
        shapes = [shape]
        if step_counter is not None:
            shapes += self._take_counter(step_counter)
        if shape.lacks_epoch:
            for counter_key, counter in list(self._counters.items()):
                counter_line = read_line(counter.text)
                if counter_line is not None and names_epoch(counter_line):
                    shapes += self._take_counter(counter_key)
        return shapes

    def _take_counter(self, key: str) -> list[LearnedShape]:
        candidate = self._counters.pop(key, None)
        if candidate is None or (line := read_line(candidate.text)) is None:
            return []
        shape = learn_counter(line, candidate)
        if shape is None:
            return []
        return [shape]


def _note(texts: dict[str, str], text: str, key: str = _NO_KEY) -> None:
    """Note a text, and forget the oldest of many."""
    texts[text] = key
    if len(texts) > _MAX_NOTED:
        del texts[next(iter(texts))]


def _remark(candidate: Candidate) -> str | None:
    """A sentence on a shape that was not learned, and how it would be; None without a metric in it."""
    line = read_line(candidate.text, candidate.header)
    if line is None or not has_metric(line):
        return None
    text = candidate.text.strip()[:SHOWN_CHARACTERS]
    pattern = _pattern(candidate, line)
    remark = f"{candidate.lines} lines like {text!r} are not stored: nothing in them surely counts steps"
    if candidate.lines == 1:
        remark = f"the line {text!r} is not stored: one line of a form is not enough to be sure"
    if candidate.lines == 1 and pattern is None:
        return None
    if pattern is None:
        return f"{remark}. Print the step in them, such as step=10"
    return f"{remark}. A profile can say it: metrics: {{source: output, patterns: ['{pattern}']}}"


def _pattern(candidate: Candidate, line: PrintedLine) -> str | None:
    """An expression with a group for each metric and one for the number that grows, or in a single line counts by its
    name; None if none does."""
    growing = [column for index, column in enumerate(line.columns) if _grows(candidate, index)]
    if candidate.lines == 1:
        growing = [column for column in line.columns if column.meaning in _COUNTING]
    if not growing:
        return None
    step = min(growing, key=lambda column: _COUNTING.get(column.meaning, len(_COUNTING)))
    columns = [LearnedColumn(step.token, "step", "")]
    metrics = (column for column in line.columns if column.meaning is Sense.METRIC and column is not step)
    columns += [LearnedColumn(column.token, "value", column.name) for column in metrics]
    return pattern_of(candidate.text, columns).replace("'", ".")


def _grows(candidate: Candidate, index: int) -> bool:
    """Return whether a column of a candidate's lines is a whole number that grows with each."""
    numbers = [row.numbers[index][0] for row in candidate.rows]
    pairs = list(pairwise(numbers))
    return bool(pairs) and all(type(a) is int and type(b) is int and b > a for a, b in pairs)
