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
]  # fmt: skip
Heading = Literal["Runs", "This page", "Go to", "Past", "Everywhere", "Move"]
"""A heading of the help."""


class Context(Struct, frozen=True):
    """The state of a page that decides whether an action is possible, and how keys are printed.

    Attributes:
        run: the run that an action would apply to: the page's, or the one under the cursor.
        section: the section of the page in focus.
        study: the state of the study that is shown, or under the cursor.
        quarantined: UUIDs of the GPUs in quarantine.
        has_studies: whether there is a study to open.
        is_readonly: whether this view changes nothing.
        past_at: the past moment that is shown, in words; None for live.
        blocked_by: why the launch form cannot be started; None if it can.
        connection_lag: the lag of a slow connection, in words; None if there is none.
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
    has_studies: bool = False

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
        """The first key of an action, as it is printed; empty if only the palette has it."""
        return "".join(key_word(key, is_ascii=self.is_ascii) for key in self.keys_of(action)[:1])


WhyNot = Callable[[Context], str | None]
"""Why an action is not possible now, as a sentence; None if it is."""


class Action(Struct, frozen=True):
    """One action, carried out by a method ``do_<name>``.

    Attributes:
        keys: Textual's names of its keys; none if only the palette has it.
        label: a word for the footer.
        tooltip: a phrase for the palette.
        help: the same for the help; actions with one phrase share a line.
        in_footer: whether the footer has it, if there is room; the help has every key.
        sections: the focused sections of a run's page for which the footer has it; empty for all.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    tooltip: str
    scopes: tuple[Scope, ...]
    why_not: WhyNot
    heading: Heading
    help: str
    in_footer: bool
    in_palette: bool
    sections: tuple[str, ...]

    def is_shown(self, context: Context) -> bool:
        """Whether the footer has it here, if there is room."""
        if self.name == "studies":
            return context.has_studies
        return self.in_footer and (context.scope != "run" or not self.sections or context.section in self.sections)
