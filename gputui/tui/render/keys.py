"""The footer and the help, made from the table of actions."""

from __future__ import annotations

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.tui.actions import Action, Context, actions_in, key_word
from gputui.tui.render.columns import fit_line, fitting, wrap

_SECTION_KEYS = "1–5"


def footer_line(context: Context, width: int) -> Line:
    """The most useful keys; what is not possible now is dim. Those that do not fit are in the help."""
    shown = [action for action in actions_in(context.scope) if action.shown]
    last = [action for action in shown if action.name in ("palette", "leave", "cancel")]
    parts = [_footer_part(action, context) for action in shown if action not in last]
    tail = [_footer_part(action, context) for action in last]
    room = width - 1 - sum(cell_width(text) for part in tail for text, _ in part)
    line: list[Span] = [(" ", "text")]
    for part in parts:
        size = sum(cell_width(text) for text, _ in part)
        if size <= room:
            line += part
            room -= size
    return fit_line([*line, *(span for part in tail for span in part)], width)


def _footer_part(action: Action, context: Context) -> list[Span]:
    possible = action.why_not(context) is None
    return [
        (key_word(action.keys[0]), "key" if possible else "dim"),
        (f" {action.label}  ", "text" if possible else "dim"),
    ]


def help_lines(context: Context, width: int) -> list[Line]:
    """Every action of a screen with its keys; one that is not possible now says why."""
    lines: list[Line] = []
    keys = {action.name: " ".join(key_word(key) for key in action.keys) for action in actions_in(context.scope)}
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
