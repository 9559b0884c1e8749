"""A profile's metrics tried on an old log, with the lines that nearly match a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gputui.metrics.contract import ParsedLine, Rejected, excerpt
from gputui.metrics.line_format import LineFormat
from gputui.metrics.printed import printed_text
from gputui.store.metrics.stored_lines import NOT_METRICS, as_float

NEAR_SHOWN = 3  # more lines show no other mistake in the pattern
# A short beginning of a pattern matches many lines by chance; this share and number of literals do
# not.
_NEAR_SHARE = 0.3
_NEAR_LITERAL = 3
_NEAR_LINES = 2000  # a pattern that fits no line shows it in far fewer


class NearMatch(NamedTuple):
    """A line that matches the beginning of a pattern: ``fits`` is that part, ``expected`` the rest
    of the pattern, ``actual`` the rest of the line."""

    number: int
    text: str
    fits: str
    expected: str
    actual: str


@dataclass(slots=True)
class Trial:
    """The result of a log.

    Attributes:
        lines: How many lines are not blank.
        accepted: How many of the ``lines`` have metrics.
        rejected: The number, reason and beginning of each rejected line.
        points: The (step, value) of each metric in the order of lines.
        first_step: The step of the first line with metrics, None without any.
        last_step: The step of the last line with metrics, None without any.
        total_steps: As the newest line names it.
        backwards: The first (line number, step before, step) at which steps decrease.
        near: Lines that match most of a pattern.
        learned: What a format that learns has learned of it.
    """

    lines: int = 0
    accepted: int = 0
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None
    total_steps: float | None = None
    backwards: tuple[int, int, int] | None = None
    near: list[NearMatch] = field(default_factory=list)
    learned: Any = None

    def add(self, number: int, step: int | None, values: Mapping[str, Any]) -> None:
        """Add a line."""
        self.accepted += 1
        if step is None:
            return
        if self.last_step is not None and step < self.last_step and self.backwards is None:
            self.backwards = (number, self.last_step, step)
        if self.first_step is None:
            self.first_step = step
        self.last_step = step
        self.total_steps = as_float(values.get("total_steps"))
        for name, value in values.items():
            if name not in NOT_METRICS and (as_number := as_float(value)) is not None:
                self.points.setdefault(name, []).append((step, as_number))

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "metrics_lines": self.accepted,
            "rejected": [{"line": number, "reason": why, "text": text} for number, why, text in self.rejected],
            "first_step": self.first_step,
            "last_step": self.last_step,
            "steps_go_back_at_line": None if self.backwards is None else self.backwards[0],
            "metrics": [
                {"name": name, "count": len(points), "first": points[0][1], "last": points[-1][1]}
                for name, points in self.points.items()
            ],
            "near": [
                {"line": near.number, "text": near.text, "fits": near.fits, "expected": near.expected}
                for near in self.near
            ],
        }


def try_log(content: bytes, line_format: LineFormat, patterns: Sequence[str] = ()) -> Trial:
    """Parse a whole log as it would have been parsed while it was written."""
    if line_format.breaks_at_return:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = content.split(b"\n")
    if line_format.has_header:
        line_format.begin(lines[0])
    while not _has_learned(line_format, lines):
        line_format = line_format.restarted()
    line_format = line_format.restarted()
    trial = Trial()
    unmatched: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        trial.lines += 1
        parsed = line_format.parse(line)
        if isinstance(parsed, ParsedLine):
            trial.add(number, parsed.step, parsed.values)
        elif isinstance(parsed, Rejected):
            trial.rejected.append((number, parsed.reason, excerpt(line)))
        elif len(unmatched) < _NEAR_LINES:
            unmatched.append((number, printed_text(line)))
    trial.near = _near_matches(patterns, unmatched)
    trial.learned = line_format.learned
    return trial


def _has_learned(line_format: LineFormat, lines: Sequence[bytes]) -> bool:
    """Read a log that has ended; False if it shows that it must be read again from its beginning."""
    if not line_format.learns:
        return True
    for line in lines:
        line_format.parse(line)
        if line_format.has_news:
            return False
    line_format.conclude()
    return not line_format.has_news


def _near_matches(patterns: Sequence[str], lines: Sequence[tuple[int, str]]) -> list[NearMatch]:
    """Of (number, text) lines without a match, those that match most of a pattern: the best first,
    one for each place at which a pattern stops matching."""
    best: dict[str, tuple[float, NearMatch]] = {}
    for pattern in patterns:
        beginnings = list(_beginnings(pattern))
        for number, text in lines:
            fits = ((part, match) for part, beginning in beginnings if (match := beginning.search(text)))
            part, match = next(fits, ("", None))
            share = len(part) / len(pattern)
            if match is not None and share > best.get(part, (0.0, None))[0]:
                actual = text[match.end() :].strip()[:40]
                best[part] = (share, NearMatch(number, text.strip()[:160], part, pattern[len(part) :], actual))
    ranked = sorted(best.values(), key=lambda pair: -pair[0])
    return [near for _, near in ranked[:NEAR_SHOWN]]


def _beginnings(pattern: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """The beginnings of a pattern that compile and have enough literal text, longest first."""
    for end in range(len(pattern) - 1, 0, -1):
        part = pattern[:end]
        literal = re.sub(r"\(\?P<\w+>|\\.|[^A-Za-z0-9:=]", "", part)
        if end / len(pattern) < _NEAR_SHARE or len(literal) < _NEAR_LITERAL:
            return
        try:
            yield part, re.compile(part)
        except (re.error, RecursionError, OverflowError):
            continue
