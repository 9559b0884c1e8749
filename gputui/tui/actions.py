"""Everything a person can do, declared once: keys, words, and why not now. Bindings, footer, help and palette are made
from this table; what an action does is a method ``do_<id>`` of the screen or the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gputui.store.views import RunView
from gputui.tui.render.words import OVER, run_sign

Scope = Literal["overview", "run", "launch"]
EVERYWHERE: tuple[Scope, ...] = ("overview", "run", "launch")


@dataclass(frozen=True, slots=True)
class Context:
    """What decides whether an action is possible: where we are, the run in question, whether this is a mere view."""

    scope: Scope
    run: RunView | None = None
    has_runs: bool = False
    is_readonly: bool = False
    can_launch: bool = True
    is_wide: bool = False


WhyNot = Callable[[Context], str | None]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. ``why_not`` answers with a sentence when it is not possible now. ``shown`` puts it into the
    footer; the help and the palette hold all."""

    name: str
    keys: tuple[str, ...]
    label: str
    tooltip: str
    scopes: tuple[Scope, ...]
    why_not: WhyNot = lambda context: None
    shown: bool = True
    in_palette: bool = True


def _needs_run(context: Context) -> str | None:
    return None if context.run is not None else "There is no run to choose."


def _changes_run(context: Context) -> str | None:
    return "This view is read only." if context.is_readonly else _needs_run(context)


def _can_stop(context: Context) -> str | None:
    problem = _changes_run(context)
    if problem is None and context.run is not None:
        if context.run.state in OVER:
            return f"{context.run.run_id} is {run_sign(context.run.state).word} already."
        if context.run.state == "stopping":
            return f"{context.run.run_id} is stopping already."
    return problem


def _can_go_on(context: Context) -> str | None:
    problem = _changes_run(context)
    if problem is None and context.run is not None and context.run.state not in OVER:
        return f"{context.run.run_id} is {run_sign(context.run.state).word}; only a run that is over can go on."
    return problem


def _can_start_over(context: Context) -> str | None:
    problem = _changes_run(context)
    if problem is None and context.run is not None and context.run.state in ("queued", "recovering", "stopping"):
        return f"{context.run.run_id} is {run_sign(context.run.state).word}; it cannot begin again now."
    return problem


def _can_remove(context: Context) -> str | None:
    problem = _changes_run(context)
    if problem is None and context.run is not None and context.run.state not in OVER:
        return f"{context.run.run_id} is {run_sign(context.run.state).word}; stop it first."
    return problem


def _can_open_launch(context: Context) -> str | None:
    return "This view is read only." if context.is_readonly else None


def _can_launch(context: Context) -> str | None:
    return None if context.can_launch else "There is something to correct first."


ACTIONS: tuple[Action, ...] = (
    Action("help", ("question_mark", "f1"), "help", "What is possible here, and how", EVERYWHERE),
    # --- the overview
    Action("up", ("up", "k"), "up", "The run above", ("overview",), _needs_run, shown=False, in_palette=False),
    Action("down", ("down", "j"), "down", "The run below", ("overview",), _needs_run, shown=False, in_palette=False),
    Action("first", ("home", "g"), "first", "The first run", ("overview",), _needs_run, shown=False, in_palette=False),
    Action("last", ("end", "G"), "last", "The last run", ("overview",), _needs_run, shown=False, in_palette=False),
    Action("open", ("enter", "l", "right"), "open", "Open the page of the run", ("overview",), _needs_run),
    Action("launch", ("n",), "new", "Launch a run from a profile", ("overview", "run"), _can_open_launch),
    Action("fold", ("a",), "all/each", "All GPUs together with their history, or each GPU in a row", ("overview",)),
    Action("filter", ("slash",), "filter", "Show only runs in which the words occur", ("overview",)),
    # --- a run's page
    Action("back", ("escape", "h", "left"), "back", "Back to the overview", ("run",)),
    Action("section_next", ("tab",), "section", "The next section of the page", ("run",), in_palette=False),
    Action(
        "section_previous", ("shift+tab",), "section back", "The section before", ("run",), shown=False, in_palette=False
    ),
    Action("section_charts", ("1",), "charts", "Loss, learning rate, throughput, gradient norm", ("run",), shown=False),
    Action("section_ranks", ("2",), "ranks", "How each rank does", ("run",), shown=False),
    Action("section_log", ("3",), "log", "The end of the log", ("run",), shown=False),
    Action("section_timeline", ("4",), "timeline", "Attempts, incidents and decisions", ("run",), shown=False),
    Action("section_params", ("5",), "parameters", "Parameters as launched and now", ("run",), shown=False),
    Action("log_next", ("r",), "rank", "The log of the next rank", ("run",)),
    Action("log_previous", ("R",), "rank before", "The log of the rank before", ("run",), shown=False),
    Action("follow", ("f",), "follow", "Follow the end of the log again", ("run",)),
    Action("scroll_up", ("up", "k"), "up", "Scroll the log up", ("run",), shown=False, in_palette=False),
    Action("scroll_down", ("down", "j"), "down", "Scroll the log down", ("run",), shown=False, in_palette=False),
    Action("page_up", ("pageup",), "page up", "Scroll the log up a page", ("run",), shown=False, in_palette=False),
    Action("page_down", ("pagedown",), "page down", "Scroll it down a page", ("run",), shown=False, in_palette=False),
    Action("log_axis", ("y",), "log y", "Loss on a logarithmic or a linear axis", ("run",)),
    # --- what changes a run
    Action("stop", ("s",), "stop", "Stop the run: it checkpoints and leaves", ("overview", "run"), _can_stop),
    Action(
        "resume", ("u",), "resume", "Go on from the newest valid checkpoint", ("overview", "run"), _can_go_on, shown=False
    ),
    Action(
        "restart", ("x",), "restart", "Begin again from the start", ("overview", "run"), _can_start_over, shown=False
    ),
    Action(
        "remove", ("delete",), "remove", "Forget the run: its history, logs and checkpoints", ("overview", "run"),
        _can_remove, shown=False,
    ),
    # --- the launch form
    Action("start", ("enter",), "launch", "Launch the run", ("launch",), _can_launch),
    Action("cancel", ("escape",), "back", "Back without launching", ("launch",)),
    Action("next_profile", ("ctrl+n",), "next profile", "The next profile", ("launch",)),
    Action("previous_profile", ("ctrl+p",), "profile before", "The profile before", ("launch",), shown=False),
    # --- everywhere
    Action("palette", ("ctrl+p", "colon"), "palette", "Find anything by typing a part of it", ("overview", "run"),
           in_palette=False),
    Action("leave", ("q", "ctrl+c"), "leave", "Leave the screen; runs go on", ("overview", "run")),
)  # fmt: skip


def actions_in(scope: Scope) -> list[Action]:
    """What there is to do on a screen, in the order of the table."""
    return [action for action in ACTIONS if scope in action.scopes]


def find(name: str) -> Action:
    """The action of this name. Raises KeyError."""
    for action in ACTIONS:
        if action.name == name:
            return action
    raise KeyError(name)


_KEY_WORDS = {
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "enter": "↵",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "delete": "del",
    "ctrl+p": "^p",
    "ctrl+n": "^n",
    "ctrl+c": "^c",
    "shift+tab": "⇧tab",
}


def key_word(key: str) -> str:
    """A key as it is printed."""
    return _KEY_WORDS.get(key, key)
