"""Everything that the palette finds: what can be done, and whatever has a name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.charts.safe_text import clean
from gputui.tui.actions import actions_in, find
from gputui.tui.dialogs.palette import Choice
from gputui.tui.dialogs.settings_items import ITEMS
from gputui.tui.layout.words import run_sign
from gputui.tui.theme.colors import THEMES

if TYPE_CHECKING:
    from gputui.tui.app import GputuiApp
    from gputui.tui.widgets.page import ActionScreen


def choices(app: GputuiApp, screen: ActionScreen) -> list[Choice]:
    """What is known at once: actions, what the page itself has, runs, GPUs, what can be copied, settings."""
    context = screen.context()
    found = [
        Choice(action.tooltip, context.key_word(action), partial(app.perform, action.name, screen),
               action.why_not(context), action.label)
        for action in actions_in(screen.SCOPE)
        if action.in_palette
    ]  # fmt: skip
    found += screen.choices()
    for row in app.snapshot.runs:
        run_id = row.run.run_id
        found.append(Choice(f"Open {clean(run_id)}", run_sign(row.run.state).word, partial(app.open_run, run_id)))
    for gpu in app.snapshot.gpus:
        who = gpu.run_id or ", ".join(process.user or "?" for process in (gpu.processes or ())[:2]) or "free"
        title = f"GPU {gpu.index} · {clean(gpu.name)[:40]}"
        found.append(Choice(title, clean(who)[:30], partial(app.open_gpu, gpu.uuid)))
    found += [Choice(f"Copy {what}", clean(text.strip().partition("\n")[0])[:40], partial(app.copy, what, text))
              for what, text in screen.copyable()]  # fmt: skip
    for item in ITEMS:
        for value in item.values:
            is_now = getattr(app.settings, item.name) == value
            title = f"Theme {value}: {THEMES[value].title}" if item.name == "theme" else (
                f"Set {item.label}: {item.word(value)}"
            )  # fmt: skip
            found.append(Choice(title, "as it is now" if is_now else "setting",
                                partial(app.change, **{item.name: value})))  # fmt: skip
    return found


def profile_choices(app: GputuiApp, screen: ActionScreen) -> Sequence[Choice]:
    """The profiles, to launch from. Slow the first time; for a thread."""
    from gputui.tui.pages.launch.plan import read_profiles

    why_not = find("launch").why_not(screen.context())
    return [
        Choice(f"Launch {clean(entry.name)}", "broken profile" if entry.profile is None else "profile",
               partial(app.launch_from, entry.name), why_not)
        for entry in read_profiles(app.workspace, Path.cwd())
    ]  # fmt: skip
