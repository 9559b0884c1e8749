"""Actions, and the context that decides whether one is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.actions.key_names import key_word

Scope = Literal[
    "overview", "run", "profiles", "launch", "alerts", "gpu", "compare", "processes", "studies", "study_files"
]


class Context(Struct, frozen=True):
    """The state of a page that decides whether an action is possible, and how keys are printed.

    Attributes:
        scope: the page that is shown.
        run: the run that an action would apply to: the page's, or the one under the cursor.
        section: the section of the page in focus.
        gpu: the GPU that an action would apply to.
        alert: the alert under the cursor.
        pid: the process under the cursor.
        study: the state of the study that is shown.
        quarantined: UUIDs of the GPUs in quarantine.
        is_readonly: whether this view changes nothing.
        past_at: the past moment that is shown, in words; None for live.
        blocked_by: why the launch form cannot be started; None if it can.
        connection_lag: the lag of a slow connection, in words; None if there is none.
        is_ascii: whether only ASCII characters are shown.
        keys: keys from the settings, by action.
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
    past_at: str | None = None
    blocked_by: str | None = None

    connection_lag: str | None = None
    is_ascii: bool = False
    keys: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def keys_of(self, action: Action) -> tuple[str, ...]:
        """The keys of an action here: those of the settings, else those of the table."""
        return self.keys.get(action.name, action.keys)

    def key_word(self, action: Action) -> str:
        """The first key of an action, as it is printed."""
        return key_word(self.keys_of(action)[0], is_ascii=self.is_ascii)


WhyNot = Callable[[Context], str | None]
"""Why an action is not possible now, as a sentence; None if it is."""


def is_possible(context: Context) -> None:
    """The `WhyNot` of an action that is always possible."""


class Action(Struct, frozen=True):
    """One action.

    Attributes:
        name: the method ``do_<name>`` carries it out.
        keys: Textual's names of its keys.
        label: one or two words for the footer.
        tooltip: a phrase for the help and the palette.
        scopes: the pages that have it.
        why_not: why it is not possible now.
        shown: whether the footer has it, if there is room; the help has every action.
        in_palette: whether the palette has it.
        sections: the focused sections of a run's page for which the footer has it; empty for all.
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

    def is_shown(self, context: Context) -> bool:
        """Whether the footer has it here, if there is room."""
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
) -> Action:
    """An action as a row of the table; spaces separate ``keys``, and ``sections``."""
    return Action(
        name, tuple(keys.split()), label, tooltip, scopes, why_not, shown, in_palette, tuple(sections.split())
    )
