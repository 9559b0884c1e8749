"""On which screens an action is possible, by name."""

from __future__ import annotations

from gputui.tui.actions.model import Scope

WATCHED: tuple[Scope, ...] = ("overview", "run", "gpu", "processes", "compare")
OVERVIEW: tuple[Scope, ...] = ("overview",)
PAGE: tuple[Scope, ...] = ("run",)
BOTH: tuple[Scope, ...] = ("overview", "run")
PAGES: tuple[Scope, ...] = ("run", "gpu", "processes")
TABLES: tuple[Scope, ...] = ("overview", "processes")
PROCESSES: tuple[Scope, ...] = ("processes",)
GPU: tuple[Scope, ...] = ("gpu",)
ALL: tuple[Scope, ...] = ("overview", "alerts", "compare", *PAGES)
FORM: tuple[Scope, ...] = ("launch",)
ALERTS: tuple[Scope, ...] = ("alerts",)
COMPARE: tuple[Scope, ...] = ("compare",)
CHARTS: tuple[Scope, ...] = ("run", "compare")
