"""A run's output read as ingest reads it: again from its beginning, once something was learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from gputui.metrics.contract import Parsed, ParsedLine
from gputui.metrics.learning.learned_state import LearnedState
from gputui.metrics.learning.lines import LearnedLines

from .forms import Printed


class Watched(NamedTuple):
    """The records of an output, and its reader at the end."""

    records: list[dict[str, Any]]
    reader: LearnedLines


def output(printed: Iterable[Printed]) -> str:
    """What is printed, each on a line unless it redraws one."""
    parts = []
    for text, _ in printed:
        is_open = text.startswith("\r") and not text.endswith("\n")
        parts.append(text if is_open or text.endswith("\n") else text + "\n")
    return "".join(parts)


def lines_of(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def watch(
    text: str, learned: LearnedState | None = None, *, restart_every: int | None = None, batch_size: int | None = None
) -> Watched:
    """Read an output to its end. ``restart_every``: a new reader, with what is stored, after so many lines;
    ``batch_size``: the samples of a batch, if they are known."""
    lines: Sequence[bytes] = [line.encode() for line in lines_of(text)]
    begin = learned or LearnedState()
    for _ in range(100):
        reader = LearnedLines(begin, batch_size=batch_size)
        records = []
        for number, line in enumerate(lines, 1):
            records += _record(reader.parse(line))
            if reader.has_news:
                break
            if restart_every and number % restart_every == 0:
                stored = msgspec.json.encode(reader.learned)
                reader = LearnedLines(msgspec.json.decode(stored, type=LearnedState), batch_size=batch_size)
        else:
            reader.conclude()
            if not reader.has_news:
                return Watched(records, reader)
        begin = reader.restarted().learned
    raise AssertionError("it never ends to learn")


def _record(parsed: Parsed) -> list[dict[str, Any]]:
    if parsed is None:
        return []
    assert isinstance(parsed, ParsedLine), parsed
    return [dict(parsed.values)]
