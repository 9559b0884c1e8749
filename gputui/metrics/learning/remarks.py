"""What to put into a profile so that lines which were not learned become metrics."""

from __future__ import annotations

import re

from gputui.metrics.learning.candidates import Candidate
from gputui.metrics.learning.tokens import read_line
from gputui.metrics.learning.words import Meaning

_SHOWN_CHARACTERS = 120


def remark(candidate: Candidate) -> str:
    """A sentence on a shape that was not learned, with the pattern of a profile that would read it."""
    text = candidate.text.strip()[:_SHOWN_CHARACTERS]
    often = f"{candidate.lines} lines like {text!r} (since line {candidate.since_line}) are not stored"
    key = f"metrics: {{source: output, patterns: ['{_pattern(candidate)}']}}"
    return f"{often}: nothing in them surely counts steps. A profile can say it: {key}"


def _pattern(candidate: Candidate) -> str:
    """An expression with a group for the step, which the person may have to move, and one for each metric."""
    line = read_line(candidate.text, candidate.header)
    pieces: list[str] = []
    for column in line.columns if line is not None else ():
        name = re.sub(r"\W", "_", column.name)
        if column.meaning in (Meaning.STEP, Meaning.EPOCH):
            pieces.append(rf"{re.escape(column.name)}\D*(?P<step>\d+)")
        elif column.meaning is Meaning.METRIC and name.isidentifier():
            pieces.append(rf"{re.escape(column.name.rsplit('/', 1)[-1])}\W*(?P<{name}>[-+.\w]+)")
    if not any("<step>" in piece for piece in pieces):
        pieces.insert(0, r"(?P<step>\d+)")
    return ".*".join(pieces).replace("'", ".")
