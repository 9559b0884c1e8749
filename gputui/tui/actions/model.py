"""What an action is, and what decides whether it is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.tui.actions.key_words import key_word

Scope = Literal["overview", "run", "profiles", "launch", "alerts", "gpu", "compare", "processes", "studies"]


@dataclass(frozen=True, slots=True)
class Context:
    """What decides whether an action is possible, and how its keys are printed.

    Attributes:
        scope: the page that is shown.
        run: the run that an action would apply to: the page's, or the one under the cursor.
        section: the section of the page in focus.
        gpu: the GPU that an action would apply to.
        alert: the alert under the cursor.
        pid: the process under the cursor.
        study: the state of the study that is shown.
        quarantined: UUIDs of the GPUs in quarantine.
        is_readonly: whether this view may only look.
        past_at: the moment that is shown, UTC unix seconds; None for live.
        obstacle: what is wrong in the launch form; None for nothing.
        connection_lag: how far a slow connection is behind, in words; None if it is not.
        is_ascii: whether only ASCII characters are shown.
        keys: a person's own keys by the name of the action.
    """

    scope: Scope
    run: Run | None = None
    section: str = "runs"
    gpu: GpuView | None = None
    alert: AlertView | None = None
    pid: int | None = None
    study: str | None = None
    quarantined: frozenset[str] = frozenset()

    is_readonly: bool = False
    past_at: float | None = None
    obstacle: str | None = None

    connection_lag: str | None = None
    is_ascii: bool = False
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def keys_of(self, action: Action) -> tuple[str, ...]:
        """The keys that lead to an action here: a person's own, else those of the table."""
        return self.keys.get(action.name, action.keys)

    def key_word(self, action: Action) -> str:
        """The first of them, as it is printed."""
        return key_word(self.keys_of(action)[0], is_ascii=self.is_ascii)


WhyNot = Callable[[Context], str | None]
"""Why an action is not possible now, as a sentence; None if it is."""


def is_possible(context: Context) -> None:
    """The `WhyNot` of an action that is always possible."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    Attributes:
        name: of the method ``do_<name>`` that does it.
        keys: the names that Textual has for them.
        label: one or two words for the footer.
        tooltip: what it does, for the help and the palette.
        scopes: the pages that have it.
        why_not: why it is not possible now.
        shown: whether the footer has it, if there is room; the help has every action.
        in_palette: whether the palette has it.
        sections: the sections of a run's page during which the footer has it; empty for all.
        former: the name that an older settings file may have for it; empty for none.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    tooltip: str
    scopes: tuple[Scope, ...]
    why_not: WhyNot
    shown: bool
    in_palette: bool
    sections: tuple[str, ...]
    former: str

    def is_shown(self, context: Context) -> bool:
        """Whether it belongs into the footer here, if there is room."""
        return self.shown and (context.scope != "run" or not self.sections or context.section in self.sections)


def row(
    name: str,
    keys: str,
    label: str,
    tooltip: str,
    scopes: tuple[Scope, ...],
    why_not: WhyNot = is_possible,
    *,
    shown: bool = True,
    in_palette: bool = True,
    sections: str = "",
    former: str = "",
) -> Action:
    """An action as a row of the table; spaces separate ``keys``, and ``sections``."""
    return Action(
        name, tuple(keys.split()), label, tooltip, scopes, why_not, shown, in_palette, tuple(sections.split()), former
    )
