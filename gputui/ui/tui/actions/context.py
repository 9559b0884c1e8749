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

    Actions apply to the ``marked`` runs (those of `OF_MARKED`), to ``run``, ``gpu``, ``alert``, ``pid``, or to the
    study in the state ``study``.
    ``past_at``, ``blocked_by`` (why the form cannot be started) and ``connection_lag`` are words.
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
        return predicate(self.study or "unknown")

    @property
    def is_study_row(self) -> bool:
        """True if the cursor of the overview is on the row of a study."""
        return self.scope == "overview" and self.study is not None
