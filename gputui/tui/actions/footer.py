"""The footer and the help, made from the table of actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gputui.charts.cells import cell_width, clip
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.tui.actions import Action, Context, actions_in, key_word, refused_here
from gputui.tui.actions.groups import HEADINGS, footer_place, footer_rank, heading_of
from gputui.tui.layout.columns import between, fit_line, fitting, wrap

_IN_TIME = ("time_back", "time_forth", "live")
TWO_COLUMNS = 60
"""From this width on the help has two columns."""

_PARTING: Span = ("│ ", "dim")
_PARTING_WIDTH = 1
"""It takes the second of the two blanks behind the action before it."""


@dataclass(frozen=True, slots=True)
class FooterPart:
    """One action in the footer: the cells from ``start`` up to ``end`` are its own."""

    name: str
    start: int
    end: int
    spans: tuple[Span, ...]


def footer_parts(context: Context, width: int) -> list[FooterPart]:
    """The keys in three parts: what is done here, where to go, how to find one's way. What does not fit is dropped from
    the right; how to find, to get help and to leave is always there."""
    made = [(action, spans := _footer_spans(action, context), _width(spans)) for action in _worth_a_place(context)]
    # The last one has no blanks behind it.
    room = width + 1 - _width(_line_spans(context)) - 2 * _PARTING_WIDTH
    fits = set()
    for action, _, size in sorted(made, key=lambda each: footer_rank(each[0].name)):
        room -= size
        if room < 0 and footer_rank(action.name) > 0:
            break
        fits.add(action.name)
    chosen: list[tuple[str, list[Span], int]] = []
    part_before: int | None = None
    for action, spans, size in made:
        if action.name not in fits:
            continue
        part = footer_place(action.name)[0]
        if part_before not in (None, part):
            name, drawn, taken = chosen[-1]
            chosen[-1] = (name, [*drawn[:-1], (drawn[-1][0][:-1], drawn[-1][1])], taken - 1)
            chosen.append(("", [_PARTING], 2))
        part_before = part
        chosen.append((action.name, spans, size))
    if chosen:
        name, drawn, taken = chosen[-1]
        chosen[-1] = (name, [*drawn[:-1], (drawn[-1][0].rstrip(), drawn[-1][1])], taken - 2)
    parts = []
    x = 1
    for name, spans, size in chosen:
        parts.append(FooterPart(name, x, x + size, tuple(spans)))
        x += size
    return parts


def _worth_a_place(context: Context) -> list[Action]:
    """What the footer tells, in its order. Looking back it is how to move in time and to return, right behind the way
    on or back; what this view refuses altogether is left to the help."""
    refused = refused_here(context)
    here = actions_in(context.scope)
    shown = [
        action
        for action in here
        if action.is_shown(context) and (refused is None or action.why_not(context) != refused)
    ]
    if context.past_at is not None:
        shown = [each for each in shown if each.name not in _IN_TIME]
        shown[1:1] = [action for action in here if action.name in _IN_TIME]
    return sorted(shown, key=lambda each: footer_place(each.name))


def footer_line(context: Context, width: int) -> Line:
    """The keys, and at the right end how far the line is behind; what is not possible now is dim. Keys that do not fit
    are in the help."""
    left: list[Span] = [(" ", "text"), *(span for part in footer_parts(context, width) for span in part.spans)]
    return between(left, _line_spans(context), width)


def footer_action(context: Context, width: int, x: int) -> str | None:
    """The name of the action in the footer's cell ``x``."""
    return next((part.name or None for part in footer_parts(context, width) if part.start <= x < part.end), None)


def _line_spans(context: Context) -> list[Span]:
    return [] if context.line is None else [(f"▲ {context.line} ", "warn")]


def _width(spans: Sequence[Span]) -> int:
    return sum(cell_width(text) for text, _ in spans)


def _footer_spans(action: Action, context: Context) -> list[Span]:
    possible = action.why_not(context) is None
    return [
        (context.key_word(action), "key" if possible else "dim"),
        (f" {action.label}  ", "text" if possible else "dim"),
    ]


def help_lines(context: Context, width: int) -> list[Line]:
    """The keys of a page in two columns under headings, how to move last; what is not possible now in one line."""
    groups: dict[str, list[Line]] = {heading: [] for heading in HEADINGS}
    refused: list[str] = []
    column = (width - 3) // 2 if width >= TWO_COLUMNS else width
    here = actions_in(context.scope)
    key_width = min(11, max((cell_width(_keys(action, context)) for action in here), default=0))
    for action in here:
        keys = _keys(action, context)
        if action.why_not(context) is not None:
            refused.append(f"{context.key_word(action)} {action.label}")
            continue
        for number, words in enumerate(wrap(re.split("[:;] ", action.tooltip)[0], column - key_width - 2)):
            margin = f"{'' if number else clip(keys, key_width):<{key_width}}  "
            groups[heading_of(action.name)].append(fit_line([(margin, "key"), (words, "text")], column))
    blocks = [[fit_line([(heading, "title")], column), *lines] for heading, lines in groups.items() if lines]
    foot: list[Line] = [fit_line([("Not now: " + " · ".join(refused), "dim")], width)] if refused else []
    if column == width:
        return [*(line for block in blocks for line in block), *foot]
    left, right = _halves(blocks)
    gap: Span = ("   ", "text")
    empty = fit_line([], column)
    rows = [
        [*((left[y] if y < len(left) else []) or empty), gap, *(right[y] if y < len(right) else [])]
        for y in range(max(len(left), len(right)))
    ]
    return [*rows, *foot]


def _keys(action: Action, context: Context) -> str:
    return " ".join(key_word(key, is_ascii=context.is_ascii) for key in context.keys_of(action))


def _halves(blocks: list[list[Line]]) -> tuple[list[Line], list[Line]]:
    """The blocks in two columns of about the same height, in their order."""
    sizes = [len(block) + 1 for block in blocks]
    cut = min(range(1, len(blocks) + 1), key=lambda at: max(sum(sizes[:at]), sum(sizes[at:])))
    left, right = blocks[:cut], blocks[cut:]
    return _joined(left), _joined(right)


def _joined(blocks: list[list[Line]]) -> list[Line]:
    lines: list[Line] = []
    for block in blocks:
        lines += [[], *block] if lines else block
    return lines


def message_lines(text: str, kind: str, width: int, most: int = 3) -> list[Line]:
    """What the program has to say, in a few lines above the footer."""
    style = {"info": "accent", "warning": "warn", "error": "bad"}.get(kind, "text")
    mark = {"info": "·", "warning": "▲", "error": "✗"}.get(kind, " ")
    parts = wrap(clean(text), width - 4)[:most]
    return [
        fitting([[(f" {mark if number == 0 else ' '} ", style), (part, style)]], width)
        for number, part in enumerate(parts)
    ]
