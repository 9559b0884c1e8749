"""The table of a run's checkpoints: name, size, age and validity."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.core.text import cell_width
from gputui.core.units import UNKNOWN, age, bytes_text, count
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.runs.checkpoint_names import is_step_named
from gputui.ui.tui.data.snapshot import Checkpoint, CheckpointList, RunPage
from gputui.ui.tui.layout.columns import Column, fit_line, place, row_line


def checkpoint_lines(page: RunPage, now: float, width: int) -> list[Line]:
    """A row per checkpoint, the newest first."""
    found = page.checkpoints
    if found is None:
        return [fit_line([("  Its profile names no place for checkpoints.", "dim")], width)]
    if found.is_elsewhere:
        return [fit_line([("  They are on its target and cannot be seen from here.", "dim")], width)]
    if not found.is_known:
        return [fit_line([("  Looking…", "dim")], width)]
    if not found.newest:
        return [fit_line([("  None has been written yet.", "dim")], width)]
    resumed = {
        attempt.resumed_from.rsplit("/", 1)[-1]: attempt.number for attempt in page.attempts if attempt.resumed_from
    }
    widest = max(cell_width(_where(each)) for each in found.newest)
    placed = place((replace(_NAME, width=min(max(_NAME.width, widest), _WIDEST_NAME)), *_OTHERS), width - 1)
    lines: list[Line] = [
        [(" ", "text"), *row_line(placed, (each, now, resumed.get(each.name)), width - 1)] for each in found.newest
    ]
    hidden = found.count - len(found.newest)
    return [*lines, fit_line([(f"  … {count(hidden)} older ones", "dim")], width)] if hidden else lines


def checkpoint_note(found: CheckpointList | None, now: float) -> str:
    """``12, newest step 8 000, 3 min old`` for the heading."""
    if found is None or not found.newest:
        return ""
    newest = found.newest[0]
    words = [str(found.count), f"newest {_where(newest)}"]
    if newest.modified_at is not None:
        old = age(now - newest.modified_at)
        words.append(old if old == "now" else f"{old} old")
    return ", ".join(words)


_Row = tuple[Checkpoint, float, int | None]


def _where(found: Checkpoint) -> str:
    if found.step is None:
        return found.name
    # Two files that are overwritten in turns may have the same step.
    return f"step {count(found.step)}" if is_step_named(found.name) else f"{found.name} ~{count(found.step)}"


def _state(item: _Row, width: int) -> list[Span]:
    found, _, attempt = item
    words: list[Span] = []
    if found.refused:
        words.append((f"✗ {found.refused}", "dim"))
    elif found.is_gone:
        words.append(("· removed since", "dim"))
    elif found.is_valid is None:
        words.append(("· not checked", "dim"))
    elif found.is_valid:
        words.append(("✓ whole", "good"))
    else:
        words.append((f"✗ {found.why}", "bad"))
    if found.attempt is not None:
        words.append((f", attempt {found.attempt}", "dim"))
    if attempt is not None:
        words.append((f"  ← attempt {attempt} went on from here", "dim"))
    if found.is_valid and not attempt and not found.refused:
        words.append((f": {found.why}", "dim"))
    return words


def _age(item: _Row, width: int) -> list[Span]:
    modified = item[0].modified_at
    return [(UNKNOWN if modified is None else age(item[1] - modified), "text")]


_NAME: Column[_Row] = Column("checkpoint", 12, lambda item, width: [(_where(item[0]), "text")])
_WIDEST_NAME = 28
_OTHERS: tuple[Column[_Row], ...] = (
    Column("size", 8, lambda item, width: [(bytes_text(item[0].size_bytes), "text")], ">", gap=1),
    Column("age", 6, _age, ">"),
    Column("", 8, _state, grow=1),
)
