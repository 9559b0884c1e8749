"""The footer: the keys of a page in one line, and the message above them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from msgspec import Struct

from gputui.core.text import cell_width, clean
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.actions import Action, Context, actions_in, refused_here
from gputui.ui.tui.actions.groups import ALWAYS_SHOWN, drop_rank, footer_group, footer_order
from gputui.ui.tui.layout.columns import between, fitting, wrap

_TIME_ACTIONS = ("time_back", "time_forth", "live")
_MARGIN: Span = (" ", "text")
_BAR: Span = ("│ ", "dim")
_GAP = 2
"""Blanks behind an action; before a bar it is one, at the end none."""

_MESSAGE_STYLES = {"info": ("·", "accent"), "warning": ("▲", "warn"), "error": ("✗", "bad")}


class FooterPart(Struct, frozen=True):
    """The cells from ``start`` up to ``end``: an action's key and label, or a bar between two groups, which has no
    ``action``."""

    action: str | None
    start: int
    end: int
    spans: tuple[Span, ...]


def footer_line(context: Context, width: int) -> Line:
    """The keys, dim if not possible now, and at the right end the lag of the connection."""
    left: list[Span] = [_MARGIN, *(span for part in footer_parts(context, width) for span in part.spans)]
    return between(left, _connection_spans(context), width)


def footer_action(context: Context, width: int, x: int) -> str | None:
    """The name of the action in the footer's cell ``x``, None for a bar."""
    return next((part.action for part in footer_parts(context, width) if part.start <= x < part.end), None)


def footer_parts(context: Context, width: int) -> list[FooterPart]:
    """The actions that fit, in the groups of `FooterGroup`."""
    actions = _fitting_actions(context, width)
    parts: list[FooterPart] = []
    x = _width([_MARGIN])

    def add(action: str | None, spans: Sequence[Span]) -> None:
        nonlocal x
        parts.append(FooterPart(action, x, x + _width(spans), tuple(spans)))
        x = parts[-1].end

    for action, following in zip_longest(actions, actions[1:]):
        if following is None:
            add(action.name, _action_spans(action, context, gap=0))
        elif footer_group(action.name) == footer_group(following.name):
            add(action.name, _action_spans(action, context, gap=_GAP))
        else:
            add(action.name, _action_spans(action, context, gap=_GAP - 1))
            add(None, [_BAR])
    return parts


def message_lines(text: str, kind: str, width: int, most: int = 3) -> list[Line]:
    """A message above the footer, in at most ``most`` lines. ``kind``: info, warning or error."""
    mark, style = _MESSAGE_STYLES.get(kind, (" ", "text"))
    return [
        fitting([[(f" {' ' if number else mark} ", style), (part, style)]], width)
        for number, part in enumerate(wrap(clean(text), width - 4)[:most])
    ]


def _fitting_actions(context: Context, width: int) -> list[Action]:
    """Drop the least important actions until the rest fits; those of `ALWAYS_SHOWN` stay."""
    actions = _shown_actions(context)
    # Two bars take a cell more than the gaps that they replace; nothing follows the last action.
    room = width - _width([_MARGIN]) - _width(_connection_spans(context)) - 2 + _GAP
    kept = set()
    for action in sorted(actions, key=lambda each: drop_rank(each.name)):
        room -= _width(_action_spans(action, context, gap=_GAP))
        if room < 0 and action.name not in ALWAYS_SHOWN:
            break
        kept.add(action.name)
    return [action for action in actions if action.name in kept]


def _shown_actions(context: Context) -> list[Action]:
    """The page's actions in the footer's order. Actions that this view always refuses are left to the help. At a past
    moment the actions of time travel follow the first action."""
    here = actions_in(context.scope)
    refused = refused_here(context)
    shown = [
        action
        for action in here
        if action.is_shown(context) and (refused is None or action.why_not(context) != refused)
    ]
    if context.past_at is not None:
        shown = [action for action in shown if action.name not in _TIME_ACTIONS]
        shown[1:1] = [action for action in here if action.name in _TIME_ACTIONS]
    return sorted(shown, key=lambda each: footer_order(each.name))


def _action_spans(action: Action, context: Context, *, gap: int) -> list[Span]:
    is_possible = action.why_not(context) is None
    return [
        (context.key_word(action), "key" if is_possible else "dim"),
        (f" {action.label}{' ' * gap}", "text" if is_possible else "dim"),
    ]


def _connection_spans(context: Context) -> list[Span]:
    return [] if context.connection_lag is None else [(f"▲ {context.connection_lag} ", "warn")]


def _width(spans: Iterable[Span]) -> int:
    return sum(cell_width(text) for text, _ in spans)
