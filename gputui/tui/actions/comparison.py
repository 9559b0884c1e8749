"""What can be done with runs beside each other, and what changes a run."""

from __future__ import annotations

from gputui.tui.actions.model import Action, act
from gputui.tui.actions.reasons import can_go_on, can_remove, can_start_over, changes_run, needs_run
from gputui.tui.actions.scopes import BOTH, COMPARE

COMPARE_ACTIONS: tuple[Action, ...] = (
    # the comparison
    act(
        "compare",
        "c",
        "compare",
        "Marked runs over each other, or this one and its like",
        BOTH,
        needs_run,
        shown=False,
    ),
    act("compare_open", "enter", "open", "Open the page of the run", COMPARE, needs_run),
    act("compare_back", "escape backspace", "back", "Back: out of the crosshair; then home", COMPARE),
    act("metric_next", "tab full_stop", "metric", "The next metric", COMPARE),
    act("metric_previous", "shift+tab semicolon", "metric before", "The metric before", COMPARE, shown=False),
    act("metric_find", "slash", "find", "Choose the metric by a part of its name", COMPARE),
    act("hide", "space", "hide", "Hide the run's curve, or show it again", COMPARE, needs_run),
    act("leave_out", "d delete", "leave out", "Take the run out of the comparison", COMPARE, needs_run, shown=False),
    act("order", "o", "sort", "Sort by the best value, the last, steps, time, a parameter; or as chosen", COMPARE),
    act("reverse", "O", "reverse", "The other way round", COMPARE, shown=False),
    act("params", "i", "parameters", "All parameters in which the runs differ", COMPARE, needs_run, shown=False),
    act("group", "b", "group", "Group by a parameter in which the runs differ", COMPARE),
    # what changes a run
    act("clone", "N", "again", "Launch another run like this one, with changes", BOTH, changes_run, shown=False),
    act("resume", "u", "resume", "Go on from the newest valid checkpoint", BOTH, can_go_on, shown=False),
    act("restart", "X", "restart", "Begin again from the start", BOTH, can_start_over, shown=False),
    act(
        "remove",
        "delete",
        "remove",
        "Forget the run: its history, logs and checkpoints",
        BOTH,
        can_remove,
        shown=False,
    ),
)
