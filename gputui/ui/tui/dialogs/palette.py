"""The palette: finds actions, runs, GPUs, profiles and settings by a part of their name."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.message import Message

from gputui.core.text import cell_width, clean, clip
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.actions import actions_in
from gputui.ui.tui.dialogs.settings import ITEMS
from gputui.ui.tui.layout.columns import between, fit_line, selected
from gputui.ui.tui.layout.gpu_words import is_free
from gputui.ui.tui.layout.words import run_sign
from gputui.ui.tui.shell import Shell
from gputui.ui.tui.theme.colors import THEMES
from gputui.ui.tui.widgets.dialog import Content, Dialog
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen, Choice

if TYPE_CHECKING:
    from gputui.profiles.profile_file import ProfileEntry


Thing = TypeVar("Thing")

_PREFIX, _WORD, _INSIDE, _BESIDE, _LETTERS = range(5)
MOST_GAPS = 2
"""More left-out stretches than these find what nobody meant."""


class Found(Message):
    """A thread has found more choices."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__()
        self.choices = choices


class PaletteScreen(Dialog[Choice]):
    """A line of text and the choices that match; Enter takes the one under the cursor."""

    WIDTH = 76
    PANE_ID = "palette"
    CLOSES_BESIDE = True
    ROWS: ClassVar = 12

    def __init__(self, choices: Sequence[Choice], more: Callable[[], Sequence[Choice]] | None = None) -> None:
        """``more`` is called in a thread; its choices follow the others."""
        super().__init__()
        self._choices = list(choices)
        self._more = more
        self.edit: LineEdit = LineEdit()
        self._place = 0
        self._top = 0
        self._room = 1

    def on_mount(self) -> None:
        more = self._more
        if more is None:
            return

        def work() -> None:
            with suppress(OSError):
                self.post_message(Found(more()))

        threading.Thread(target=work, name="palette", daemon=True).start()

    def on_found(self, message: Found) -> None:
        current = self._current()
        self._choices += message.choices
        if current is not None:
            self._place = self._found().index(current)
        self.draw()

    def _found(self) -> list[Choice]:
        return ranked(self._choices, self.edit.text, lambda each: (each.searched, each.hint, each.why_not is None))

    def _current(self) -> Choice | None:
        found = self._found()
        return found[self._place] if self._place < len(found) else None

    def click(self, row: int) -> None:
        """Take the clicked choice."""
        place = self._top + row - 1
        found = self._found()
        if row >= 1 and place < min(len(found), self._top + self._room):
            self.dismiss(found[place])

    def scroll(self, by: int) -> None:
        self._place = min(max(0, self._place + by), max(0, len(self._found()) - 1))

    def edited(self) -> None:
        self._place = 0

    def press(self, key: str) -> bool:
        if key == "enter":
            self.dismiss(self._current())
        elif key in ("down", "ctrl+n", "tab"):
            self.scroll(1)
        elif key in ("up", "ctrl+p", "shift+tab"):
            self.scroll(-1)
        elif key in ("pagedown", "pageup"):
            self.scroll(self._room if key == "pagedown" else -self._room)
        else:
            return False
        return True

    def content(self, width: int) -> Content:
        found = self._found()
        room = self._room = max(1, min(self.ROWS, self.app.size.height - 5))
        top = self._top = max(0, self._place - room + 1)
        lines: list[Line] = [[("› ", "cursor"), *self.edit.spans(width - 2)]]
        for number, choice in enumerate(found[top : top + room], top):
            current = number == self._place
            style = "dim" if choice.why_not else "text"
            title = ("▸ " if current else "  ") + choice.title
            # Of an action that is not possible now, the reason gives way to the title.
            beside = choice.why_not or choice.hint
            room = max(width - cell_width(title) - 2, width // 3) if choice.why_not else width
            line = between([(title, style)], [(" " + clip(beside, room), "dim")], width)
            lines.append(selected(line) if current else line)
        if not found:
            lines.append(fit_line([("  No matches.", "dim")], width))
        lines += [fit_line([], width)] * (room + 1 - len(lines))
        return Content("Find", lines, f"{len(found)} of {len(self._choices)}")


# --- what can be chosen


def choices(shell: Shell, screen: ActionScreen) -> list[Choice]:
    """The choices that are known at once: actions, those of the page, runs, GPUs, texts to copy, settings."""
    context = screen.context()
    found = [
        Choice(action.tooltip, context.key_word(action), partial(shell.perform, action.name),
               action.why_not(context), action.label)
        for action in actions_in(screen.SCOPE)
        if action.in_palette
    ]  # fmt: skip
    found += screen.choices()
    for row in shell.snapshot.runs:
        run_id = row.run.run_id
        found.append(Choice(f"Open {clean(run_id)}", run_sign(row.run.state).word, partial(shell.open_run, run_id)))
    for gpu in shell.snapshot.gpus:
        users = gpu.run_ids or [process.user or "?" for process in (gpu.processes or ())[:2]]
        who = ", ".join(users) or ("free" if is_free(gpu) else "in use")
        title = f"GPU {gpu.index} · {clean(gpu.name)[:40]}"
        found.append(Choice(title, clean(who)[:30], partial(shell.open_gpu, gpu.uuid)))
    found += [Choice(f"Copy {what}", clean(text.strip().partition("\n")[0])[:40], partial(shell.copy, what, text))
              for what, text in screen.copyable()]  # fmt: skip
    for item in ITEMS:
        for value in item.values:
            is_now = getattr(shell.settings, item.name) == value
            theme = THEMES[value].title if value in THEMES else "as the terminal can"
            title = f"Theme {value}: {theme}" if item.name == "theme" else (
                f"Set {item.label}: {item.word(value)}"
            )  # fmt: skip
            found.append(Choice(title, "as it is now" if is_now else "setting",
                                partial(shell.change, **{item.name: value})))  # fmt: skip
    return found


def launch_choice(shell: Shell, entry: ProfileEntry, why_not: str | None) -> Choice:
    """The choice of a profile to launch."""
    hint = "broken profile" if entry.profile is None else "profile"
    return Choice(f"Launch {clean(entry.name)}", hint, partial(shell.launch_from, entry.name), why_not)


# --- matching: words in any order, also with letters left out


def cost(typed: str, title: str, beside: str = "") -> int | None:
    """How badly ``typed`` matches a title, 0 for best; None for no match. Each typed word must be found, from best to
    worst: at the beginning of the title, at that of a word, inside a word, in the text ``beside`` it, or as letters in
    order."""
    name, other = title.lower(), beside.lower()
    total = 0
    for word in typed.lower().split():
        place = name.find(word)
        if place == 0:
            total += _PREFIX
        elif place > 0:
            starts = not name[place - 1].isalnum() or f" {word}" in name
            total += _WORD if starts else _INSIDE
        elif word in other:
            total += _BESIDE
        else:
            gaps = _gaps(word, name)
            if gaps is None:
                return None
            total += _LETTERS + gaps
    return total


def ranked(things: Sequence[Thing], typed: str, words: Callable[[Thing], tuple[str, str, bool]]) -> list[Thing]:
    """The things that match, the best first; among equals, possible ones first, then in order. ``words`` gives a
    thing's title, the text beside it, and whether it is possible now."""
    if not typed.strip():
        return sorted(things, key=lambda thing: not words(thing)[2])
    found = []
    for place, thing in enumerate(things):
        title, beside, possible = words(thing)
        price = cost(typed, title, beside)
        if price is not None:
            found.append((price, not possible, place, thing))
    found.sort(key=lambda each: each[:3])
    return [each[3] for each in found]


def _gaps(letters: str, text: str) -> int | None:
    """The least number of gaps between ``letters`` in order from the beginning of a word; None above `MOST_GAPS`."""
    starts = [match.start() for match in re.finditer(rf"\b{re.escape(letters[0])}", text)]
    least = min((_gaps_from(start, letters, text) for start in starts), default=math.inf)
    return int(least) if least <= MOST_GAPS else None


def _gaps_from(place: int, letters: str, text: str) -> float:
    gaps = 0.0
    for letter in letters[1:]:
        following = text.find(letter, place + 1)
        if following < 0:
            return math.inf
        gaps += following != place + 1
        place = following
    return gaps
