"""The footer and the help, made from the table of actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.tui.actions import Action, Context, actions_in, key_word, refused_here
from gputui.tui.layout.columns import between, fit_line, fitting, wrap

_IN_TIME = ("time_back", "time_forth", "live")


@dataclass(frozen=True, slots=True)
class FooterPart:
    """One action in the footer: the cells from ``start`` up to ``end`` are its own."""

    name: str
    start: int
    end: int
    spans: tuple[Span, ...]


def footer_parts(context: Context, width: int) -> list[FooterPart]:
    """The most useful keys that fit; the palette and the way out are always there."""
    made = [(action.name, spans := _footer_spans(action, context), _width(spans)) for action in _worth_a_place(context)]
    tail = [each for each in made if each[0] in ("palette", "leave", "cancel")]
    room = width - 1 - _width(_line_spans(context)) - sum(size for _, _, size in tail)
    chosen = []
    for each in made:
        if each not in tail and each[2] <= room:
            chosen.append(each)
            room -= each[2]
    parts = []
    x = 1
    for name, spans, size in [*chosen, *tail]:
        parts.append(FooterPart(name, x, x + size, tuple(spans)))
        x += size
    return parts


def _worth_a_place(context: Context) -> list[Action]:
    """What the footer tells, if there is room. Looking back it is how to move in time and to return, right behind help
    and the way on or back; what this view refuses altogether is left to the help."""
    refused = refused_here(context)
    here = actions_in(context.scope)
    shown = [
        action
        for action in here
        if action.is_shown(context) and (refused is None or action.why_not(context) != refused)
    ]
    if context.past_at is None:
        return shown
    return [*shown[:2], *(action for action in here if action.name in _IN_TIME), *shown[2:]]


def footer_line(context: Context, width: int) -> Line:
    """The keys, and at the right end how far the line is behind; what is not possible now is dim. Keys that do not fit
    are in the help."""
    left: list[Span] = [(" ", "text"), *(span for part in footer_parts(context, width) for span in part.spans)]
    return between(left, _line_spans(context), width)


def footer_action(context: Context, width: int, x: int) -> str | None:
    """The name of the action in the footer's cell ``x``."""
    return next((part.name for part in footer_parts(context, width) if part.start <= x < part.end), None)


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
    """Every action of a screen with its keys; one that is not possible now says why."""
    lines: list[Line] = []
    keys = {
        action.name: " ".join(key_word(key, is_ascii=context.is_ascii) for key in context.keys_of(action))
        for action in actions_in(context.scope)
    }
    key_width = min(16, max((cell_width(text) for text in keys.values()), default=0))
    for action in actions_in(context.scope):
        why_not = action.why_not(context)
        style = "text" if why_not is None else "dim"
        head: list[Span] = [(f" {keys[action.name]:<{key_width}}  ", "key" if why_not is None else "dim")]
        text = action.tooltip if why_not is None else f"{action.tooltip}. Not now: {why_not}"
        for number, part in enumerate(wrap(text, width - key_width - 4)):
            margin: list[Span] = head if number == 0 else [(" " * (key_width + 3), "text")]
            lines.append(fit_line([*margin, (part, style)], width))
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
