"""What an action is, and what decides whether it is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView
from gputui.store.runs import Run

Scope = Literal["overview", "run", "profiles", "launch", "alerts", "gpu", "compare", "processes", "studies"]


@dataclass(frozen=True, slots=True)
class Context:
    """What decides whether an action is possible and how it is told: where we are, the run in question, whether this is
    a mere view, the moment that is looked back at (UTC unix seconds, None is live), in the launch form what is still
    wrong; on the page of alerts the one under the cursor; how the line does, keys that differ from the table's; where
    in the overview the cursor is, or which section of a run's page is in focus, the GPU in question, which are in
    quarantine; on the page of processes the PID under the cursor; on that of studies the state of the study."""

    scope: Scope
    run: Run | None = None
    is_readonly: bool = False
    past_at: float | None = None
    obstacle: str | None = None
    alert: AlertView | None = None
    is_ascii: bool = False
    line: str | None = None
    section: str = "runs"
    gpu: GpuView | None = None
    quarantined: frozenset[str] = frozenset()
    pid: int | None = None
    study: str | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def keys_of(self, action: Action) -> tuple[str, ...]:
        """The keys that lead to an action here: those of the table, or those that the person chose."""
        return self.keys.get(action.name, action.keys)

    def key_word(self, action: Action) -> str:
        """The first of them, as it is printed."""
        return key_word(self.keys_of(action)[0], is_ascii=self.is_ascii)


WhyNot = Callable[[Context], str | None]


class Action(NamedTuple):
    """One thing to do. ``why_not`` answers with a sentence when it is not possible now. ``shown`` puts it into the
    footer, on a run's page only while one of ``sections`` is in focus, where there are any; the help and the palette
    hold all. ``former`` is a name that a settings file may still have for it."""

    name: str
    keys: tuple[str, ...]
    label: str
    tooltip: str
    scopes: tuple[Scope, ...]
    why_not: WhyNot
    shown: bool
    in_palette: bool
    sections: tuple[str, ...] = ()
    former: str = ""

    def is_shown(self, context: Context) -> bool:
        """Whether the footer tells it here, if there is room."""
        return self.shown and (context.scope != "run" or not self.sections or context.section in self.sections)


def act(
    name: str,
    keys: str,
    label: str,
    tooltip: str,
    scopes: tuple[Scope, ...],
    why_not: WhyNot = lambda context: None,
    *,
    shown: bool = True,
    in_palette: bool = True,
    sections: str = "",
    former: str = "",
) -> Action:
    """An action as the table writes it; ``keys`` and ``sections`` are parted by spaces."""
    return Action(
        name, tuple(keys.split()), label, tooltip, scopes, why_not, shown, in_palette, tuple(sections.split()), former
    )


_KEY_WORDS = {
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "comma": ",",
    "semicolon": ";",
    "full_stop": ".",
    "exclamation_mark": "!",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "asterisk": "*",
    "enter": "↵",
    "escape": "esc",
    "backspace": "bksp",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "delete": "del",
}
_ASCII_KEY_WORDS = {"enter": "ret", "up": "up", "down": "down", "left": "left", "right": "right"}


def key_word(key: str, *, is_ascii: bool = False) -> str:
    """A key as it is printed: ``↵``, ``^p``, ``⇧tab``."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    marks = {"ctrl": "^", "shift": "S-" if is_ascii else "⇧", "alt": "M-"}
    words = _ASCII_KEY_WORDS if is_ascii and name in _ASCII_KEY_WORDS else _KEY_WORDS
    return "".join(marks.get(each, f"{each}+") for each in modifiers) + words.get(name, name)
