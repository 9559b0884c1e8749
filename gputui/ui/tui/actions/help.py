"""The help of a page: its keys under headings, in two columns if they fit."""

from __future__ import annotations

import re
from itertools import zip_longest

from gputui.core.text import cell_width, clip
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.actions import Action, Context, actions_in, key_word
from gputui.ui.tui.actions.groups import HEADINGS, heading_of
from gputui.ui.tui.layout.columns import fit_line, wrap

TWO_COLUMNS = 60
"""Least width of a help in two columns."""

_GAP: Span = ("   ", "text")
_KEYS_MOST = 11


def help_lines(context: Context, width: int) -> list[Line]:
    """The keys of a page under their headings; the last line lists those that are not possible now."""
    has_two_columns = width >= TWO_COLUMNS
    column = (width - cell_width(_GAP[0])) // 2 if has_two_columns else width
    blocks = _blocks(context, column)
    lines = _beside(blocks, column) if has_two_columns else [line for block in blocks for line in block]
    refused = [action for action in actions_in(context.scope) if action.why_not(context) is not None]
    if refused:
        words = " · ".join(f"{context.key_word(action)} {action.label}" for action in refused)
        lines.append(fit_line([(f"Not now: {words}", "dim")], width))
    return lines


def _blocks(context: Context, width: int) -> list[list[Line]]:
    """A block of lines for each heading with actions that are possible now."""
    here = actions_in(context.scope)
    key_width = min(_KEYS_MOST, max((cell_width(_keys(action, context)) for action in here), default=0))
    groups: dict[str, list[Line]] = {heading: [] for heading in HEADINGS}
    for action in here:
        if action.why_not(context) is None:
            groups[heading_of(action.name)] += _action_lines(action, context, key_width, width)
    return [[fit_line([(heading, "title")], width), *lines] for heading, lines in groups.items() if lines]


def _action_lines(action: Action, context: Context, key_width: int, width: int) -> list[Line]:
    first_clause = re.split("[:;] ", action.tooltip)[0]
    keys = clip(_keys(action, context), key_width)
    return [
        fit_line([(f"{'' if number else keys:<{key_width}}  ", "key"), (words, "text")], width)
        for number, words in enumerate(wrap(first_clause, width - key_width - 2))
    ]


def _keys(action: Action, context: Context) -> str:
    return " ".join(key_word(key, is_ascii=context.is_ascii) for key in context.keys_of(action))


def _beside(blocks: list[list[Line]], width: int) -> list[Line]:
    """The blocks in two columns of similar height, in order, separated by empty lines."""
    if not blocks:
        return []
    heights = [len(block) + 1 for block in blocks]
    cut = min(range(1, len(blocks) + 1), key=lambda at: max(sum(heights[:at]), sum(heights[at:])))
    columns = zip_longest(_stacked(blocks[:cut]), _stacked(blocks[cut:]))
    return [[*(left or fit_line([], width)), _GAP, *(right or [])] for left, right in columns]


def _stacked(blocks: list[list[Line]]) -> list[Line]:
    lines: list[Line] = []
    for block in blocks:
        lines += [[], *block] if lines else block
    return lines
