"""Imports of the screen's parts."""

from __future__ import annotations

import subprocess
import sys

PURE = (
    "gputui.store.runs", "gputui.store.json_shapes", "gputui.ui.tui.data.feed",
    "gputui.ui.tui.pages.overview.gpus", "gputui.ui.tui.pages.overview.runs", "gputui.ui.tui.pages.run.head",
    "gputui.ui.tui.pages.launch.view", "gputui.ui.tui.actions.key_lines",
)  # fmt: skip


def modules_after(*names: str) -> set[str]:
    code = f"import sys, {', '.join(names)}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_lines_are_made_without_textual() -> None:
    assert not {"textual", "rich", "pydantic", "plotext", "torch"} & modules_after(*PURE)


def test_the_screen_starts_without_what_only_launching_and_later_pages_need() -> None:
    """Imports before the first frame delay it."""
    loaded = modules_after("gputui.ui.tui.app")
    assert not {"pydantic", "plotext", "yaml", "psutil", "pynvml", "torch"} & loaded
    assert not any(name.startswith("gputui.agent") for name in loaded)
    pages = {"pages.run.page", "pages.compare.page", "pages.alerts.page", "pages.gpu.page", "pages.launch.page"}
    dialogs = {f"dialogs.{name}" for name in ("palette", "questions", "sheet", "settings")}
    assert not {f"gputui.ui.tui.{name}" for name in pages | dialogs} & loaded
    assert not {"gputui.recovery.watch.rules", "gputui.ui.tui.data.past"} & loaded
