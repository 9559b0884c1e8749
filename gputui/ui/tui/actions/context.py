"""The state of a page, on which it depends what a person can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView
from gputui.store.run_states import predicate
from gputui.store.runs import Run

Scope = Literal[
    "overview", "run", "profiles", "launch", "alerts", "gpu", "compare", "processes", "studies", "study_files"
]  # fmt: skip


class Context(Struct, frozen=True):
    """The state of a page that decides whether an action is possible, and how keys are printed.

    Attributes:
        scope: the page.
        run: the run that an action applies to; None if the cursor is on none.
        marked: the runs that the `BULK_ACTIONS` apply to instead of ``run``.
        section: the part of the page that has the keyboard.
        gpu: the GPU that an action applies to; None if the cursor is on none.
        alert: the alert that an action applies to; None if the cursor is on none.
        pid: the process that an action applies to; None if the cursor is on none.
        study: the state of the study that actions apply to; None without one.
        quarantined: the UUIDs of the GPUs in quarantine.
        has_studies: whether the home has any study.
        is_readonly: whether the screen changes nothing.
        past_at: the past moment in words; None at the present.
        blocked_by: why the form cannot be started, as a sentence.
        connection_lag: how far the terminal is behind, in words; None while it keeps up.
        is_ascii: whether only ASCII characters are shown.
        lacks_traceback: whether the log shown has no traceback.
        keys: the keys of the settings that differ from the table's, by action.
    """

    scope: Scope
    run: Run | None = None
    marked: tuple[Run, ...] = ()
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
    lacks_traceback: bool = False
    keys: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def study_phrase(self) -> str:
        """The state of the study as a predicate: ``is paused``."""
        return predicate(self.study or "unknown")

    @property
    def is_study_row(self) -> bool:
        """True if the cursor of the overview is on the row of a study."""
        return self.scope == "overview" and self.study is not None
