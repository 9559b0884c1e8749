"""Everything a person can do, declared once: keys, words, and why not now. Bindings, footer, help and palette are made
from this table; what an action does is a method ``do_<id>`` of the screen or the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gputui.store.alerts import AlertView
from gputui.store.views import GpuView, RunView
from gputui.tui.render.words import OVER, clock, run_sign

Scope = Literal["overview", "run", "launch", "alerts", "gpu", "compare", "processes"]


@dataclass(frozen=True, slots=True)
class Context:
    """What decides whether an action is possible and how it is told: where we are, the run in question, whether this is
    a mere view, the moment that is looked back at (UTC unix seconds, None is live), in the launch form what is still
    wrong; on the page of alerts the one under the cursor; how the line does, keys that differ from the table's; where
    in the overview the cursor is, the GPU in question, which are in quarantine; on the
    page of processes the PID under the cursor."""

    scope: Scope
    run: RunView | None = None
    is_readonly: bool = False
    past_at: float | None = None
    obstacle: str | None = None
    alert: AlertView | None = None
    is_ascii: bool = False
    line: str | None = None
    section: str = "runs"
    gpu: GpuView | None = None
    quarantined: frozenset[str] = frozenset()
    pid: int | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def keys_of(self, action: Action) -> tuple[str, ...]:
        """The keys that lead to an action here: those of the table, or those that the person chose."""
        return self.keys.get(action.name, action.keys)

    def key_word(self, action: Action) -> str:
        """The first of them, as it is printed."""
        return key_word(self.keys_of(action)[0], is_ascii=self.is_ascii)


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
    why_not: WhyNot
    shown: bool
    in_palette: bool


def refused_here(context: Context) -> str | None:
    """Why this view changes nothing at all; every action that changes something asks this first."""
    if context.is_readonly:
        return "This view is read only."
    if context.past_at is not None:
        return f"You look at {clock(context.past_at)}, and this would change the present; L returns to it."
    return None


def _needs_run(context: Context) -> str | None:
    return None if context.run is not None else "There is no run to choose."


def _can_open(context: Context) -> str | None:
    if context.section == "gpus" and context.gpu is not None:
        return None
    if context.section == "events":
        is_gone = context.run is None and context.gpu is None
        return "This event is about no run or GPU that is still there." if is_gone else None
    return _needs_run(context)


def _needs_gpu(context: Context) -> str | None:
    return None if context.gpu is not None else "There is no GPU."


def _can_clear(context: Context) -> str | None:
    refused = refused_here(context)
    if refused or not context.quarantined:
        return refused or "No GPU is in quarantine."
    if (context.gpu is None or context.gpu.uuid not in context.quarantined) and len(context.quarantined) > 1:
        return "Several GPUs are in quarantine; choose one with tab and the arrow keys."
    return None


def _needs_process(context: Context) -> str | None:
    return None if context.pid is not None else "There is no process to choose."


def _can_signal(context: Context) -> str | None:
    return refused_here(context) or _needs_process(context)


def _can_move(context: Context) -> str | None:
    problem = _changes_run(context)
    if problem is None and context.run is not None and context.run.state != "queued":
        return f"{context.run.run_id} is {run_sign(context.run.state).word}; only a waiting run can move in the queue."
    return problem


def _changes_run(context: Context) -> str | None:
    return refused_here(context) or _needs_run(context)


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


def _can_launch(context: Context) -> str | None:
    return context.obstacle


def _needs_alert(context: Context) -> str | None:
    return None if context.alert is not None else "There is no alert to choose."


def _changes_alert(context: Context) -> str | None:
    problem = refused_here(context) or _needs_alert(context)
    if problem is None and context.alert is not None and not context.alert.lasts:
        return "This alert is over."
    return problem


def _can_acknowledge(context: Context) -> str | None:
    problem = _changes_alert(context)
    if problem is None and context.alert is not None and context.alert.acknowledged_at is not None:
        return f"{context.alert.acknowledged_by} has acknowledged it already."
    return problem


def _has_run(context: Context) -> str | None:
    problem = _needs_alert(context)
    return problem or (None if context.run is not None else "This alert concerns no run that is known.")


def _looks_back(context: Context) -> str | None:
    return None if context.past_at is not None else "This is the present already; < looks back."


def _act(
    name: str,
    keys: str,
    label: str,
    tooltip: str,
    scopes: tuple[Scope, ...],
    why_not: WhyNot = lambda context: None,
    *,
    shown: bool = True,
    in_palette: bool = True,
) -> Action:
    return Action(name, tuple(keys.split()), label, tooltip, scopes, why_not, shown, in_palette)


_OVERVIEW: tuple[Scope, ...] = ("overview",)
_PAGE: tuple[Scope, ...] = ("run",)
_BOTH: tuple[Scope, ...] = ("overview", "run")
_PAGES: tuple[Scope, ...] = ("run", "gpu", "processes")
_TABLES: tuple[Scope, ...] = ("overview", "processes")
_PROCESSES: tuple[Scope, ...] = ("processes",)
_GPU: tuple[Scope, ...] = ("gpu",)
_ALL: tuple[Scope, ...] = ("overview", "alerts", "compare", *_PAGES)
_FORM: tuple[Scope, ...] = ("launch",)
_ALERTS: tuple[Scope, ...] = ("alerts",)
_COMPARE: tuple[Scope, ...] = ("compare",)
_CHARTS: tuple[Scope, ...] = ("run", "compare")

ACTIONS: tuple[Action, ...] = (
    _act("help", "question_mark f1", "help", "What is possible here, and how", (*_ALL, "launch")),
    # the overview
    _act("open", "enter l right", "open", "Open the page of the run or GPU under the cursor", _OVERVIEW, _can_open),
    _act(
        "back",
        "escape backspace",
        "back",
        "Back: out of the whole page, the crosshair, a search; then home",
        _PAGE,
    ),
    _act("section_next", "tab", "section", "The next section of the page", _PAGE, in_palette=False),
    _act("launch", "n", "new", "Launch a run from a profile", _BOTH, refused_here),
    _act("stop", "s", "stop", "Stop the run: it checkpoints and leaves", _BOTH, _can_stop),
    _act("fold", "a", "all/each", "All GPUs together with their history, or each in a row", _OVERVIEW),
    _act("filter", "slash", "filter", "Show only rows in which the words occur", _TABLES),
    _act("up", "up k", "up", "The row above", (*_TABLES, *_COMPARE), shown=False, in_palette=False),
    _act("down", "down j", "down", "The row below", (*_TABLES, *_COMPARE), shown=False, in_palette=False),
    _act("first", "home g", "first", "The first row", (*_TABLES, *_COMPARE), shown=False, in_palette=False),
    _act("last", "end G", "last", "The last row", (*_TABLES, *_COMPARE), shown=False, in_palette=False),
    _act("page_above", "pageup", "page up", "A page of rows up", _TABLES, shown=False, in_palette=False),
    _act("page_below", "pagedown", "page down", "A page of rows down", _TABLES, shown=False, in_palette=False),
    _act(
        "focus_next",
        "tab",
        "focus",
        "From the GPUs to the runs, to the events",
        _OVERVIEW,
        shown=False,
        in_palette=False,
    ),
    _act("focus_previous", "shift+tab", "focus before", "The same backwards", _OVERVIEW, shown=False, in_palette=False),
    _act("gpu_detail", "i", "GPU", "Everything about the GPU under the cursor", _OVERVIEW, _needs_gpu, shown=False),
    _act("mark", "space", "mark", "Mark the run for a comparison, or unmark it", _OVERVIEW, _needs_run, shown=False),
    _act("sort", "o", "sort", "Sort the table in another way", _TABLES, shown=False),
    _act("queue_toggle", "P", "pause", "Pause the queue, or open it again", _OVERVIEW, refused_here, shown=False),
    _act(
        "queue_up", "plus", "earlier", "Move a waiting run one place up in the queue", _OVERVIEW, _can_move, shown=False
    ),
    _act(
        "queue_down",
        "minus",
        "later",
        "Move a waiting run one place down in the queue",
        _OVERVIEW,
        _can_move,
        shown=False,
    ),
    _act(
        "clear_gpu",
        "C",
        "clear",
        "Let runs have a GPU again that is in quarantine",
        ("overview", "gpu"),
        _can_clear,
        shown=False,
    ),
    # a run's page
    _act("section_previous", "shift+tab", "before", "The section before", _PAGE, shown=False, in_palette=False),
    _act("section_charts", "1", "charts", "The charts", _PAGE, shown=False),
    _act("section_ranks", "2", "ranks", "How each rank does", _PAGE, shown=False),
    _act("section_log", "3", "log", "The log", _PAGE, shown=False),
    _act("section_story", "4", "timeline", "Attempts, incidents, decisions and what they cost", _PAGE, shown=False),
    _act(
        "section_params",
        "5",
        "parameters",
        "Parameters as launched and as they are now, checkpoints",
        _PAGE,
        shown=False,
    ),
    _act("find", "slash", "find", "Filter the charts by words, globs or ~expressions; in the log: search", _PAGE),
    _act("cursor_right", "right l", "crosshair", "The crosshair over all charts: right", _CHARTS),
    _act("cursor_left", "left h", "left", "The crosshair over all charts: left", _CHARTS, shown=False),
    _act("zoom_in", "plus equals_sign", "zoom", "Zoom in, around the crosshair or towards the newest", _CHARTS),
    _act("zoom_out", "minus", "zoom out", "Zoom out", _CHARTS, shown=False),
    _act("zoom_all", "0", "all", "The whole run", _CHARTS, shown=False),
    _act("pan_left", "shift+left", "pan left", "Move the zoomed charts left", _CHARTS, shown=False),
    _act(
        "pan_right",
        "shift+right",
        "pan right",
        "Move them right; at the end they follow the newest point",
        _CHARTS,
        shown=False,
    ),
    _act(
        "marker_previous",
        "ctrl+left",
        "before",
        "The crosshair to the checkpoint, incident or restart before",
        _PAGE,
        shown=False,
    ),
    _act(
        "marker_next",
        "ctrl+right",
        "next",
        "The crosshair to the next checkpoint, incident or restart",
        _PAGE,
        shown=False,
    ),
    _act("smoothing_next", "m", "smooth", "Smooth the curves more, the measured ones behind; then not at all", _CHARTS),
    _act("smoothing_previous", "M", "less", "Smooth the curves less", _CHARTS, shown=False),
    _act(
        "maximise", "enter", "full", "The section in focus, or one chart, on the whole page; again: all of them", _PAGE
    ),
    _act("layout", "v", "layout", "Charts in a grid, two at once, or one", _PAGE, shown=False),
    _act("x_axis", "x", "x axis", "Charts over steps, time, time trained, or epochs", _CHARTS, shown=False),
    _act("log_axis", "y", "log y", "The chart in focus on a logarithmic or a linear axis", _CHARTS, shown=False),
    _act("pin", "asterisk", "pin", "Keep the chart in focus first, whatever the filter", _PAGE, shown=False),
    _act(
        "export",
        "E",
        "export",
        "Write the chart in focus as SVG, CSV and PNG into the run's folder",
        _PAGE,
        shown=False,
    ),
    _act("log_next", "r", "next log", "The log of the next rank", _PAGE, shown=False),
    _act("log_previous", "R", "log before", "The log of the rank before", _PAGE, shown=False),
    _act(
        "hit_next",
        "full_stop",
        "next hit",
        "The next place in the log where the search found something",
        _PAGE,
        shown=False,
    ),
    _act("hit_previous", "comma", "hit before", "The place before it", _PAGE, shown=False),
    _act("grave_only", "w", "warnings", "Only warnings and errors of the log, or all lines", _PAGE, shown=False),
    _act("check", "V", "check", "Read the newest checkpoint and tell whether it is whole", _PAGE, shown=False),
    _act(
        "follow",
        "f end G",
        "follow",
        "The newest again: the end of the log, of the timeline, of the curves",
        _PAGE,
        shown=False,
    ),
    _act(
        "beginning",
        "home g",
        "beginning",
        "The beginning: of the log, of the timeline; the crosshair at the first step",
        _PAGE,
        shown=False,
        in_palette=False,
    ),
    _act(
        "scroll_up", "up k", "up", "The chart before; in other sections a line up", _PAGE, shown=False, in_palette=False
    ),
    _act(
        "scroll_down",
        "down j",
        "down",
        "The next chart; in other sections a line down",
        _PAGE,
        shown=False,
        in_palette=False,
    ),
    _act(
        "page_up",
        "pageup",
        "page up",
        "The charts before; in other sections a page up",
        _PAGE,
        shown=False,
        in_palette=False,
    ),
    _act(
        "page_down",
        "pagedown space",
        "page down",
        "The next charts; in other sections a page down",
        _PAGE,
        shown=False,
        in_palette=False,
    ),
    # the page of processes
    _act("processes", "p", "processes", "The processes on the GPUs and of the runs", ("overview", "gpu"), shown=False),
    _act("processes_back", "escape backspace h left", "back", "Back to where you came from", _PROCESSES),
    _act("process_detail", "enter i", "detail", "Everything known of the process", _PROCESSES, _needs_process),
    _act("signal", "s", "signal", "Choose a signal for the process", _PROCESSES, _can_signal),
    _act("process_tree", "v", "tree", "Children behind their parents, or all in the order", _PROCESSES),
    _act("process_group", "b", "group", "Group by GPU, by run, or not at all", _PROCESSES),
    _act("sort_reverse", "O", "reverse", "Sort the other way round", _PROCESSES, shown=False),
    _act(
        "process_run",
        "r l right",
        "run",
        "Open the page of the run that it belongs to",
        _PROCESSES,
        _needs_run,
        shown=False,
    ),
    # the page of a GPU
    _act("open_run", "enter", "run", "Open the page of the run that has this GPU", _GPU, _needs_run),
    _act("gpu_back", "escape backspace h left", "back", "Back to where you came from", _GPU),
    _act("gpu_next", "tab", "next GPU", "The next GPU", _GPU, in_palette=False),
    _act("gpu_previous", "shift+tab", "GPU before", "The GPU before", _GPU, shown=False, in_palette=False),
    _act("span_longer", "plus", "longer", "Charts that reach further back: 10 min, 1 h, 6 h, a day", _GPU),
    _act("span_shorter", "minus", "shorter", "Charts of a shorter time", _GPU, shown=False),
    _act("body_up", "up k", "up", "A line up", _GPU, shown=False, in_palette=False),
    _act("body_down", "down j", "down", "A line down", _GPU, shown=False, in_palette=False),
    _act("body_page_up", "pageup", "page up", "A page up", _GPU, shown=False, in_palette=False),
    _act("body_page_down", "pagedown space", "page down", "A page down", _GPU, shown=False, in_palette=False),
    # the comparison
    _act(
        "compare",
        "c",
        "compare",
        "Marked runs over each other, or this one and its like",
        _OVERVIEW,
        _needs_run,
        shown=False,
    ),
    _act("compare_open", "enter", "open", "Open the page of the run", _COMPARE, _needs_run),
    _act("compare_back", "escape backspace", "back", "Back: out of the crosshair; then home", _COMPARE),
    _act("metric_next", "tab full_stop", "metric", "The next metric", _COMPARE),
    _act("metric_previous", "shift+tab comma", "metric before", "The metric before", _COMPARE, shown=False),
    _act("metric_find", "slash", "find", "Choose the metric by a part of its name", _COMPARE),
    _act("hide", "space", "hide", "Hide the run's curve, or show it again", _COMPARE, _needs_run),
    _act("leave_out", "d delete", "leave out", "Take the run out of the comparison", _COMPARE, _needs_run, shown=False),
    _act("order", "o", "sort", "Sort by the best value, the last, steps, time; or as chosen", _COMPARE),
    _act("reverse", "O", "reverse", "The other way round", _COMPARE, shown=False),
    _act("group", "b", "group", "Group by a parameter in which the runs differ", _COMPARE),
    # what changes a run
    _act("clone", "N", "again", "Launch another run like this one, with changes", _BOTH, _changes_run, shown=False),
    _act("resume", "u", "resume", "Go on from the newest valid checkpoint", _BOTH, _can_go_on, shown=False),
    _act("restart", "X", "restart", "Begin again from the start", _BOTH, _can_start_over, shown=False),
    _act(
        "remove",
        "delete",
        "remove",
        "Forget the run: its history, logs and checkpoints",
        _BOTH,
        _can_remove,
        shown=False,
    ),
    # alerts
    _act("alerts", "exclamation_mark", "alerts", "What is wrong now, and what was", _BOTH, shown=False),
    _act("alert_run", "enter l right", "run", "Open the page of the run that it concerns", _ALERTS, _has_run),
    _act("alerts_back", "escape backspace h left", "back", "Back to where you came from", _ALERTS),
    _act("acknowledge", "a space", "seen", "Note that you have seen it; ends no alert", _ALERTS, _can_acknowledge),
    _act("acknowledge_all", "A", "all seen", "The same for all that last", _ALERTS, refused_here, shown=False),
    _act("silence", "z", "silence", "Tell nobody of it for a time", _ALERTS, _changes_alert),
    _act("alert_moment", "t", "its moment", "Look at everything as it was when it was raised", _ALERTS, _needs_alert),
    _act("alerts_filter", "slash", "filter", "Show only alerts in which the words occur", _ALERTS),
    _act("alerts_order", "o", "order", "The severest first, or the newest", _ALERTS),
    _act("alert_up", "up k", "up", "The alert above", _ALERTS, shown=False, in_palette=False),
    _act("alert_down", "down j", "down", "The alert below", _ALERTS, shown=False, in_palette=False),
    _act("alerts_first", "home g", "first", "The first alert", _ALERTS, shown=False, in_palette=False),
    _act("alerts_last", "end G", "last", "The last alert", _ALERTS, shown=False, in_palette=False),
    _act("alerts_page_up", "pageup", "page up", "A page up", _ALERTS, shown=False, in_palette=False),
    _act("alerts_page_down", "pagedown", "page down", "A page down", _ALERTS, shown=False, in_palette=False),
    # looking back
    _act("time_back", "less_than_sign", "back in time", "Look at ten seconds before", _ALL, shown=False),
    _act("time_forth", "greater_than_sign", "on", "Look at ten seconds later", _ALL, _looks_back, shown=False),
    _act("time_back_far", "left_curly_bracket", "far back", "Look at a hundred seconds before", _ALL, shown=False),
    _act(
        "time_forth_far",
        "right_curly_bracket",
        "far on",
        "Look at a hundred seconds later",
        _ALL,
        _looks_back,
        shown=False,
    ),
    _act(
        "time_type",
        "t",
        "time",
        "Look at a moment: 03:12, -20m, yesterday 3:12; the crosshair's",
        ("overview", *_PAGES),
        shown=False,
    ),
    _act(
        "tick_previous",
        "left_square_bracket",
        "event before",
        "Look at the event, incident or alert before",
        _ALL,
        shown=False,
    ),
    _act(
        "tick_next",
        "right_square_bracket",
        "next event",
        "Look at the next event, incident or alert",
        _ALL,
        _looks_back,
        shown=False,
    ),
    _act("live", "L", "live", "Return to the present", _ALL, _looks_back, shown=False),
    # the launch form
    _act("start", "enter", "launch", "Launch the run with these values", _FORM, _can_launch),
    _act("field_next", "down tab", "next", "The next field", _FORM, shown=False, in_palette=False),
    _act("field_previous", "up shift+tab", "before", "The field before", _FORM, shown=False, in_palette=False),
    _act("profile_next", "ctrl+n pagedown", "next profile", "Choose the next profile", _FORM),
    _act("profile_previous", "ctrl+p pageup", "profile before", "Choose the profile before", _FORM, shown=False),
    _act("preview", "ctrl+d", "dry run", "Show the whole command, environment and checks without starting", _FORM),
    _act("choose_gpus", "ctrl+g", "GPUs", "Choose GPUs from a table of who is on them", _FORM),
    _act("last_values", "ctrl+r", "as last", "The values of the newest run of this profile", _FORM, shown=False),
    _act("cancel", "escape ctrl+c", "back", "Back without launching", _FORM),
    # everywhere
    _act("palette", "ctrl+p colon", "palette", "Find anything by a part of its name", _ALL, in_palette=False),
    _act("copy", "ctrl+y Y", "copy", "Copy what is in focus to the clipboard of your own machine", _ALL, shown=False),
    _act("theme", "T", "theme", "The next theme", _ALL, shown=False),
    _act(
        "settings",
        "comma",
        "settings",
        "Theme, characters, mouse, bell, title, pace: kept for the next start",
        _OVERVIEW,
        shown=False,
    ),
    _act("mouse", "m", "mouse", "The mouse on or off", _OVERVIEW, shown=False),
    _act("suspend", "ctrl+z", "suspend", "Leave the terminal to the shell; fg comes back", _ALL, shown=False),
    _act("leave", "q ctrl+c", "leave", "Leave the screen; runs go on", _ALL),
)


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
    "comma": ",",
    "full_stop": ".",
    "exclamation_mark": "!",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "plus": "+",
    "minus": "-",
    "asterisk": "*",
    "enter": "↵",
    "escape": "esc",
    "backspace": "bksp",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "delete": "del",
}
_ASCII_KEY_WORDS = {"enter": "ret", "up": "up", "down": "down", "left": "left", "right": "right"}


def key_word(key: str, *, is_ascii: bool = False) -> str:
    """A key as it is printed: ``↵``, ``^p``, ``⇧tab``."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    marks = {"ctrl": "^", "shift": "S-" if is_ascii else "⇧", "alt": "M-"}
    words = _ASCII_KEY_WORDS if is_ascii and name in _ASCII_KEY_WORDS else _KEY_WORDS
    return "".join(marks.get(each, f"{each}+") for each in modifiers) + words.get(name, name)
