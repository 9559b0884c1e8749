"""Keys as lines: the footer of a page with the message above it, and the page's help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import get_args

from msgspec.structs import replace

from gputui.core.text import cell_width, clean, fit
from gputui.metrics.draw.parts import Line, Span
from gputui.ui.tui.actions.checks import needs_write
from gputui.ui.tui.actions.context import Context
from gputui.ui.tui.actions.keys import key_word
from gputui.ui.tui.actions.marked import marked_count
from gputui.ui.tui.actions.table import TIME_ACTIONS, Action, Heading, actions_in
from gputui.ui.tui.layout.columns import (
    fit_line,
    fit_parts,
    justify,
    line_width,
    wrap,
    wrap_at_most,
)
from gputui.ui.views.words import SIGNS, Sign

_FILTERS = ("filter", "find")
_LAST = ("palette", "help", "leave", "cancel")
"""The end of the footer, at every width."""

FooterKey = tuple[str, str]
"""Keys of a dialog or of a line being typed, by Textual's names with spaces between them, and what they do."""

_ENDS = ("help", "leave", "cancel", "palette", *_FILTERS)
"""The actions at the end of the footer, in the order in which they get labels where not all have room."""

Density = tuple[str, int]
"""The gap between two keys of the footer, and how many of `_ENDS` may have labels."""

_NARROWEST = " ", 0

TWO_COLUMNS = 60
"""Least width of a help in two columns."""

_GAP: Span = ("   ", "text")


# --- the footer

_SHELL_COMMANDS = (
    ("gputui (?:study )?resume", "rerun", " (resume)"),
    ("gputui restart", "rerun", " (restart)"),
    ("gputui study extend", "rerun", " (extend)"),
    ("gputui stop", "stop", ""),
    ("gputui queue resume", "queue_toggle", ""),
    ("gputui gpus --clear", "clear_gpu", ""),
)
"""Commands that the agent's sentences name, the action that does the same here, and the choice in its menu."""


def key_spans(keys: Sequence[FooterKey], *, is_ascii: bool) -> Line:
    """``y yes  ↵ n no``."""
    spans: Line = []
    for names, label in keys:
        gap = "  " if spans else ""
        printed = " ".join(key_word(name, is_ascii=is_ascii) for name in names.split())
        spans += [(f"{gap}{printed}", "key"), (f" {label}", "text")]
    return spans


def footer_line(context: Context, width: int) -> Line:
    """The keys, dim if not possible now, and at the right end the lag of the connection."""
    keys: list[Span] = [(" ", "text"), *(span for _, spans in _parts(context, width) for span in spans)]
    return justify(keys, _connection_spans(context), width)


def footer_action(context: Context, width: int, x: int) -> str | None:
    """The name of the action in the footer's cell ``x``."""
    for name, spans in _parts(context, width):
        x -= line_width(spans)
        if x < 1:
            return name
    return None


def _parts(context: Context, width: int) -> list[tuple[str, list[Span]]]:
    """The actions that fit: those of the page, those that lead to others, and those at every width."""
    room = width - 1 - line_width(_connection_spans(context))
    parts: list[tuple[str, list[Span]]] = []
    for actions, density in _narrower_footers(_footer_actions(context)):
        parts = _footer_parts(actions, context, density)
        if sum(line_width(spans) for _, spans in parts) <= room:
            break
    return parts


def _narrower_footers(actions: list[Action]) -> Iterator[tuple[list[Action], Density]]:
    """The actions in full, then without the spare ones, then denser, then without the least useful ones."""
    yield actions, ("  ", len(_ENDS))
    actions = [action for action in actions if not action.is_spare]
    for labels in range(len(_ENDS), -1, -1):
        yield actions, ("  ", labels)
    yield actions, _NARROWEST
    for least in sorted(actions, key=_drop_rank)[::-1]:
        if _drop_rank(least) > 0:
            actions = [action for action in actions if action != least]
            yield actions, _NARROWEST


def _footer_parts(actions: Sequence[Action], context: Context, density: Density) -> list[tuple[str, list[Span]]]:
    """Each action with its key and label, and the gap behind it, which is a bar where another group begins."""
    gap, labels = density
    bare = _ENDS[labels:]
    parts: list[tuple[str, list[Span]]] = []
    for action, following in zip_longest(actions, actions[1:]):
        key, text = ("key", "text") if action.why_not(context) is None else ("dim", "dim")
        label = ""
        if action.name not in bare:
            label = f" {action.label}"
        spans: list[Span] = [(action.key_word(context), key), (label, text)]
        if following is not None and _group(action) != _group(following):
            spans.append((" │ ", "dim"))
        elif following is not None:
            spans.append((gap, "text"))
        parts.append((action.name, spans))
    return parts


def _footer_actions(context: Context) -> list[Action]:
    """The page's actions in the footer's order, but those that this view always refuses."""

    def rank(action: Action) -> tuple[int, int]:
        if action.name in _LAST:
            return _group(action), _LAST.index(action.name)
        return _group(action), -1

    refusal = needs_write(context)
    actions: list[Action] = []
    for action in actions_in(context.scope):
        if not (action.keys_in(context) and action.is_shown(context) and action.is_offered(context)):
            continue
        if refusal is not None and action.why_not(context) == refusal:
            continue
        if action.is_of_marked(context):
            actions.append(replace(action, label=f"{action.label} {marked_count(action.name, context)}"))
        elif action.name == "find" and context.section == "log":
            actions.append(replace(action, label="search"))
        else:
            actions.append(action)
    return sorted(actions, key=rank)


def _group(action: Action) -> int:
    """0: of the page; 1: to other pages and times; 2: find and leave."""
    if action.name in (*_LAST, *_FILTERS):
        return 2
    return int(action.heading in ("Go to", "Past") and action.name not in TIME_ACTIONS)


def _drop_rank(action: Action) -> int:
    """Rank of an action in a narrow footer: the highest are left out first, of equal ones the last; 0 stays."""
    if action.name == "studies":
        return 3
    if action.name in (*_LAST, *TIME_ACTIONS, "back"):
        return 0
    if action.name in _FILTERS:
        return 2
    return 1


def _connection_spans(context: Context) -> list[Span]:
    if context.connection_lag is None:
        return []
    return [(f"▲ {context.connection_lag} ", "warn")]


def message_lines(text: str, kind: str, width: int) -> list[Line]:
    """A message above the footer, in at most three lines. ``kind``: info, warning or error."""
    mark, style = SIGNS[kind]
    lines = []
    for part in wrap_at_most(clean(text), width - 4, 3):
        lines.append(fit_parts([[(f" {mark} ", style), (part, style)]], width))
        mark = " "
    return lines


def with_keys(text: str, context: Context, where: str = "") -> str:
    """The agent's sentence with keys in place of shell commands: ``gputui restart vit-1`` becomes ``r (restart)``.
    A command for another run than that of the page stays.

    Args:
        context: the page with the keys.
        where: what follows each key, such as ``on the overview``.
    """
    actions = {action.name: action for action in actions_in(context.scope) if action.keys_in(context)}
    run_id = r"\S+-\d+" if context.run is None else re.escape(context.run.run_id)
    # An option behind the subject would be more than the key does.
    subject = rf"(?: (?:GPU-[\w-]+|GPU \d+|\d+|{run_id}))?+(?! --| \S+-\d)"
    for command, name, choice in _SHELL_COMMANDS:
        if name in actions:
            key = f"{actions[name].key_word(context)}{choice}{where}"
            text = key.join(re.split(command + subject, text))
    return text


# --- the help


def help_lines(context: Context, width: int, signs: Sequence[Sign] = ()) -> list[Line]:
    """The keys of a page under their headings, dim where not possible now, and below them its signs; in two columns
    of similar height where there is room."""
    column = width
    if width >= TWO_COLUMNS:
        column = (width - cell_width(_GAP[0])) // 2
    keys_width = min(15, max(10, column // 4))
    lines = _in_columns(_key_blocks(context, column, keys_width), column, width)
    if not signs:
        return lines
    rows = [_row(sign.glyph, sign.word, keys_width, column, (sign.style, "text")) for sign in signs]
    heading = fit_line([("Signs and colours", "title")], width)
    return [*lines, [], heading, *_in_columns(rows, column, width, gap=0)]


def _in_columns(blocks: list[list[Line]], column: int, width: int, gap: int = 1) -> list[Line]:
    """The blocks below each other, ``gap`` lines apart, in as many columns as have room."""
    if column == width:
        return _stacked(blocks, gap)
    heights = [len(block) + gap for block in blocks]
    cut = min(range(1, len(blocks) + 1), key=lambda at: max(sum(heights[:at]), sum(heights[at:])))
    pairs = zip_longest(_stacked(blocks[:cut], gap), _stacked(blocks[cut:], gap))
    return [[*(first or fit_line([], column)), _GAP, *(second or [])] for first, second in pairs]


def _key_blocks(context: Context, width: int, keys_width: int) -> list[list[Line]]:
    """A block of lines for each heading; actions with one phrase share a line."""
    groups: dict[Heading, dict[str, list[Action]]] = {heading: {} for heading in get_args(Heading)}
    for action in actions_in(context.scope):
        if action.keys_in(context):
            groups[action.heading].setdefault(re.split("[:;] ", action.phrase)[0], []).append(action)
    blocks = []
    for heading, group in groups.items():
        lines = [fit_line([(heading, "title")], width)]
        for phrase, actions in group.items():
            # The first key of each action, then their second ones.
            tiers = zip_longest(*(action.keys_in(context) for action in actions))
            keys = " ".join(key_word(key, is_ascii=context.is_ascii) for tier in tiers for key in tier if key)
            is_possible = any(action.why_not(context) is None for action in actions)
            styles = ("key", "text") if is_possible else ("dim", "dim")
            lines += _row(keys, phrase, keys_width, width, styles)
        if group:
            blocks.append(lines)
    return blocks


def _row(name: str, phrase: str, name_width: int, width: int, styles: tuple[str, str]) -> list[Line]:
    """A phrase beside its key or sign, in as many lines as it needs."""
    parts = wrap(phrase, width - name_width - 2)
    names = [fit(name, name_width), *[" " * name_width] * (len(parts) - 1)]
    return [
        fit_line([(f"{cell}  ", styles[0]), (part, styles[1])], width) for cell, part in zip(names, parts, strict=True)
    ]


def _stacked(blocks: list[list[Line]], gap: int) -> list[Line]:
    return [line for block in blocks for line in (*[[]] * gap, *block)][gap:]
