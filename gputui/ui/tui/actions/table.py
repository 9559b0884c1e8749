"""Every action, declared once: name, keys, words, pages, and the reason why it may be impossible.

Bindings, footer, help and palette are made from this table. Where several pages have the same action, each has a row
with its own words.
"""

from __future__ import annotations

from functools import partial

from gputui.ui.tui.actions.model import Action, Scope, row
from gputui.ui.tui.actions.reasons import (
    can_acknowledge,
    can_clear,
    can_clone,
    can_go_on,
    can_launch,
    can_move,
    can_open,
    can_pause_queue,
    can_pause_study,
    can_remove,
    can_signal,
    can_start_over,
    can_stop,
    can_stop_study,
    changes_alert,
    changes_run,
    changes_study,
    has_run,
    looks_back,
    needs_alert,
    needs_gpu,
    needs_process,
    needs_run,
    refused_here,
)

WATCHED: tuple[Scope, ...] = ("overview", "run", "gpu", "processes", "compare")
OVERVIEW: tuple[Scope, ...] = ("overview",)
PAGE: tuple[Scope, ...] = ("run",)
BOTH: tuple[Scope, ...] = ("overview", "run")
PAGES: tuple[Scope, ...] = ("run", "gpu", "processes")
TABLES: tuple[Scope, ...] = ("overview", "processes")
PROCESSES: tuple[Scope, ...] = ("processes",)
GPU: tuple[Scope, ...] = ("gpu",)
ALL: tuple[Scope, ...] = ("overview", "alerts", "compare", "studies", *PAGES)
FORM: tuple[Scope, ...] = ("launch",)
PROFILES: tuple[Scope, ...] = ("profiles",)
STUDY_FILES: tuple[Scope, ...] = ("study_files",)
LISTS: tuple[Scope, ...] = ("profiles", "study_files")
LAUNCHING: tuple[Scope, ...] = ("profiles", "launch", "study_files")
ALERTS: tuple[Scope, ...] = ("alerts",)
COMPARE: tuple[Scope, ...] = ("compare",)
STUDIES: tuple[Scope, ...] = ("studies",)
CHARTS: tuple[Scope, ...] = ("run", "compare")

minor = partial(row, shown=False)
"""An action that the footer leaves to the help."""

movement = partial(row, shown=False, in_palette=False)
"""An action that moves a cursor: neither in the footer nor in the palette."""

# The footer takes what fits in this order.
# fmt: off
ACTIONS: tuple[Action, ...] = (
    # the overview, and what the page of a run shares with it
    row("help", "question_mark f1", "help", "Help", (*ALL, *LAUNCHING)),
    row("open", "enter l right", "open", "Open the run or GPU under the cursor", OVERVIEW, can_open),
    row("back", "escape backspace", "back", "Back: leave full page, crosshair, search, filter; then the page",
        PAGE),
    row("section_next", "tab", "section", "Next section", PAGE, in_palette=False),
    row("launch", "n", "new", "Launch a run from a profile", BOTH, refused_here, sections="charts"),
    row("clone", "N", "like it", "Launch another run like this one; extend a study", BOTH, can_clone,
        sections="charts"),
    minor("label", "d", "label", "Name, tags and note of the run", BOTH, changes_run),
    row("stop", "s", "stop", "Stop the run: it saves a checkpoint and exits; a study with its trials", BOTH, can_stop),
    row("fold", "a", "charts", "Switch between charts of all GPUs and a row for each", OVERVIEW),
    row("filter", "slash", "filter", "Filter the rows", TABLES),
    movement("up", "up k", "up", "Row up", (*TABLES, *COMPARE)),
    movement("down", "down j", "down", "Row down", (*TABLES, *COMPARE)),
    movement("first", "home g", "first", "The first row", (*TABLES, *COMPARE)),
    movement("last", "end G", "last", "The last row", (*TABLES, *COMPARE)),
    movement("page_up", "pageup", "page up", "A page of rows up", TABLES),
    movement("page_down", "pagedown", "page down", "A page of rows down", TABLES),
    movement("focus_next", "tab", "focus", "Move the focus on: GPUs, runs, events", OVERVIEW),
    movement("focus_previous", "shift+tab", "focus back", "Move the focus back: events, runs, GPUs", OVERVIEW),
    row("gpu_detail", "i", "GPU", "Everything about the GPU under the cursor", OVERVIEW, needs_gpu),
    row("mark", "space", "mark", "Mark or unmark the run for a comparison", OVERVIEW, needs_run),
    row("sort", "o", "sort", "Change the sort order", TABLES),
    minor("queue_toggle", "P", "pause", "Pause or resume the queue, or a study", OVERVIEW, can_pause_queue),
    minor("queue_up", "plus", "earlier", "Move a waiting run one place up in the queue", OVERVIEW, can_move),
    minor("queue_down", "minus", "later", "Move a waiting run one place down in the queue", OVERVIEW, can_move),
    minor("clear_gpu", "C", "clear", "Take the GPU out of quarantine", ("overview", "gpu"), can_clear),
    # the page of a run
    movement("section_previous", "shift+tab", "previous", "Previous section", PAGE),
    minor("section_charts", "1", "charts", "The charts", PAGE),
    minor("section_ranks", "2", "ranks", "Progress of each rank", PAGE),
    minor("section_log", "3", "log", "The log", PAGE),
    minor("section_story", "4", "timeline", "Timeline: attempts, incidents, decisions and their cost", PAGE),
    minor("section_params", "5", "parameters", "Parameters as launched and as they are now, checkpoints", PAGE),
    row("find", "slash", "filter", "Filter the charts by words, globs or ~expressions; in the log: search", PAGE),
    row("cursor_right", "right l", "crosshair", "Move the crosshair right; scroll a log sideways", CHARTS,
        sections="charts"),
    minor("cursor_left", "left h", "left", "Move the crosshair left; scroll a log back", CHARTS),
    row("zoom_in", "plus equals_sign", "zoom", "Zoom in, around the crosshair or towards the newest", CHARTS,
        sections="charts"),
    minor("zoom_out", "minus", "zoom out", "Zoom out", CHARTS),
    minor("zoom_all", "0", "all", "The whole run", CHARTS),
    minor("pan_left", "shift+left", "pan left", "Move the zoomed charts left", CHARTS),
    minor("pan_right", "shift+right", "pan right", "Move them right; at the end they follow the newest point", CHARTS),
    minor("marker_previous", "ctrl+left", "previous mark", "Previous checkpoint, incident or restart", PAGE),
    minor("marker_next", "ctrl+right", "next mark", "Next checkpoint, incident or restart", PAGE),
    row("smoothing_next", "m", "smooth", "Smooth the curves more; after the strongest, not at all", CHARTS,
        sections="charts"),
    minor("smoothing_previous", "M", "less", "Smooth the curves less", CHARTS),
    row("maximise", "enter", "full", "Show the section or chart in focus on the whole page, or all again", PAGE),
    minor("layout", "v", "layout", "Charts in a grid, two at once, or one", PAGE),
    minor("x_axis", "x", "x axis", "Change the x axis: steps, time, training time, epochs", CHARTS),
    minor("log_x_axis", "ctrl+x", "log x",
        "Switch all x axes between linear and logarithmic", CHARTS),
    minor("by_rank", "b", "by rank", "Show the metric in focus per rank, or as one curve", PAGE),
    minor("log_axis", "y", "log y", "Switch the y axis of the chart in focus between linear and logarithmic", CHARTS),
    minor("pin", "asterisk", "pin", "Pin the chart in focus to the top", PAGE),
    minor("export", "E", "export", "Export the chart in focus as SVG, CSV and PNG to the run's folder", PAGE),
    row("log_next", "r", "next log", "Next log: another rank, the launcher, an earlier attempt", PAGE,
        sections="log"),
    minor("log_previous", "R", "previous log", "Previous log", PAGE),
    row("hit_next", "full_stop", "next hit", "Next match in the log", PAGE,
        sections="log"),
    minor("hit_previous", "semicolon", "previous hit", "Previous match in the log", PAGE),
    row("grave_only", "w", "warnings", "Show only warnings and errors, or all lines", PAGE, sections="log"),
    row("traceback", "e", "traceback", "Go to the latest traceback, that of the failed rank first", PAGE,
        sections="log"),
    row("check", "V", "check", "Check that the latest checkpoint is valid", PAGE, sections="params"),
    row("follow", "f end G", "follow", "Follow the end of the log, timeline and curves", PAGE,
        sections="log story"),
    movement("beginning", "home g", "beginning",
        "Go to the beginning of the log or timeline; the crosshair to the first step", PAGE),
    movement("up", "up k", "up", "Previous chart; in other sections a line up", PAGE),
    movement("down", "down j", "down", "Next chart; in other sections a line down", PAGE),
    movement("page_up", "pageup", "page up", "Previous charts; in other sections a page up", PAGE),
    movement("page_down", "pagedown space", "page down", "Next charts; in other sections a page down", PAGE),
    # the page of processes
    row("processes", "p", "processes", "Processes on the GPUs and of runs", ("overview", "gpu", "run",
        "compare", "alerts", "studies")),
    row("back", "escape backspace h left", "back", "Back", PROCESSES),
    row("process_detail", "enter i", "detail", "Details of the process", PROCESSES, needs_process),
    row("signal", "s", "signal", "Send a signal to the process", PROCESSES, can_signal),
    minor("kill", "K", "kill", "Kill the process (SIGKILL) after a question", PROCESSES, can_signal),
    row("environment", "e", "environment", "The environment of the process, without secrets", PROCESSES, needs_process),
    row("process_tree", "v", "tree", "Switch between a tree and a list", PROCESSES),
    row("process_group", "b", "group", "Group by GPU, by run, or not at all", PROCESSES),
    minor("reverse", "O", "reverse", "Reverse the sort order", PROCESSES),
    minor("process_run", "r l right", "run", "Open the run of the process", PROCESSES, needs_run),
    # the page of a GPU
    row("open_run", "enter", "run", "Open the run on this GPU", GPU, needs_run),
    row("back", "escape backspace h left", "back", "Back", GPU),
    row("gpu_next", "tab", "next GPU", "Next GPU", GPU, in_palette=False),
    movement("gpu_previous", "shift+tab", "previous GPU", "Previous GPU", GPU),
    row("span_longer", "plus", "longer", "Longer time span: 10 min, 1 h, 6 h, 1 d", GPU),
    minor("span_shorter", "minus", "shorter", "Shorter time span", GPU),
    movement("up", "up k", "up", "A line up", GPU),
    movement("down", "down j", "down", "A line down", GPU),
    movement("page_up", "pageup", "page up", "A page up", GPU),
    movement("page_down", "pagedown space", "page down", "A page down", GPU),
    # the comparison
    row("compare", "c", "compare", "Compare the marked runs, or this one with others of its profile", BOTH, needs_run),
    row("open", "enter", "open", "Open the page of the run", COMPARE, needs_run),
    row("back", "escape backspace", "back", "Back: leave the crosshair; then the page", COMPARE),
    row("metric_next", "tab full_stop", "metric", "Next metric", COMPARE),
    minor("metric_previous", "shift+tab semicolon", "previous metric", "Previous metric", COMPARE),
    row("metric_find", "slash", "metric", "Find a metric by name", COMPARE),
    minor("layout", "v", "layout", "Switch between a grid of metrics and one", COMPARE),
    row("cut", "w", "cut", "Cut the x axis at the end of the shortest run, or of the longest", COMPARE),
    row("hide", "space", "hide", "Hide or show the curve of the run", COMPARE, needs_run),
    minor("leave_out", "d delete", "leave out", "Remove the run from the comparison", COMPARE, needs_run),
    row("sort", "o", "sort", "Change the sort order: best, last, steps, time, a parameter, as chosen", COMPARE),
    minor("reverse", "O", "reverse", "Reverse the sort order", COMPARE),
    minor("params", "i", "parameters", "Show the parameters that differ", COMPARE, needs_run),
    minor("code", "e", "code", "Show how the code differs from that of the first other run", COMPARE, needs_run),
    row("group", "b", "group", "Group by a parameter that differs", COMPARE),
    # what changes a run
    minor("resume", "u", "resume", "Resume from the latest valid checkpoint", BOTH, can_go_on),
    minor("restart", "X", "restart", "Restart from the beginning", BOTH, can_start_over),
    minor("remove", "delete", "remove", "Delete the run: its history, logs and checkpoints", BOTH, can_remove),
    # the page of alerts
    row("alerts", "exclamation_mark", "alerts", "Active and resolved alerts", WATCHED),
    row("alert_run", "enter l right", "run", "Open the run of the alert", ALERTS, has_run),
    row("back", "escape backspace h left", "back", "Back", ALERTS),
    row("acknowledge", "a space", "ack", "Acknowledge the alert; it stays until it clears", ALERTS, can_acknowledge),
    minor("acknowledge_all", "A", "ack all", "Acknowledge all active alerts", ALERTS, refused_here),
    row("silence", "z", "silence", "Mute its notifications for a while", ALERTS, changes_alert),
    row("alert_moment", "t", "go to that time", "Go to the time when it was raised", ALERTS, needs_alert),
    row("filter", "slash", "filter", "Filter the alerts", ALERTS),
    row("sort", "o", "sort", "Change the sort order: severity or time", ALERTS),
    movement("up", "up k", "up", "Alert up", ALERTS),
    movement("down", "down j", "down", "Alert down", ALERTS),
    movement("first", "home g", "first", "The first alert", ALERTS),
    movement("last", "end G", "last", "The last alert", ALERTS),
    movement("page_up", "pageup", "page up", "A page up", ALERTS),
    movement("page_down", "pagedown", "page down", "A page down", ALERTS),
    # the page of studies
    minor("studies", "S", "studies", "Studies: trials, best values and parameter importance", (*WATCHED,
        "alerts")),
    row("open", "enter l right", "open", "Open the run of the trial", STUDIES, needs_run),
    row("back", "escape backspace h left", "back", "Back", STUDIES),
    row("study_new", "N ctrl+n", "new study", "Start a study from a file", STUDIES, refused_here),
    minor("study_new", "ctrl+n", "new study", "Start a study from a file", OVERVIEW, refused_here),
    row("study_next", "tab", "next study", "Next study", STUDIES),
    minor("study_previous", "shift+tab", "previous study", "Previous study", STUDIES),
    row("study_view", "v", "view", "Change the view: trials, parameters, curves, objectives", STUDIES),
    row("sort", "o", "sort", "Change the sort order: value or number", STUDIES),
    row("stop", "s", "stop trial", "Stop the trial's run; its point counts as stopped", STUDIES, can_stop),
    row("prune", "x", "prune", "Cut the trial short now, as the pruner does", STUDIES, can_stop),
    row("keep", "e", "keep", "Let the trial run to its end: the pruner does not cut it short", STUDIES, can_stop),
    row("enqueue", "n", "new trial", "Add a trial, starting from the values of this one", STUDIES,
        changes_study),
    row("study_pause", "P", "pause", "Pause or resume the study", STUDIES, can_pause_study),
    minor("study_stop", "X", "stop study", "Stop the study and its trials", STUDIES, can_stop_study),
    row("compare", "c", "compare", "Compare the curves of the best trials", STUDIES, needs_run),
    row("filter", "slash", "filter", "Filter the trials", STUDIES),
    movement("up", "up k", "up", "Trial up", STUDIES),
    movement("down", "down j", "down", "Trial down", STUDIES),
    movement("first", "home g", "first", "The first trial", STUDIES),
    movement("last", "end G", "last", "The last trial", STUDIES),
    movement("page_up", "pageup", "page up", "A page up", STUDIES),
    movement("page_down", "pagedown", "page down", "A page down", STUDIES),
    # looking back
    minor("time_back", "less_than_sign", "back 10 s", "Go back 10 s", ALL),
    minor("time_forth", "greater_than_sign", "on 10 s", "Go forward 10 s", ALL, looks_back),
    minor("time_back_far", "left_curly_bracket", "back 100 s", "Go back 100 s", ALL),
    minor("time_forth_far", "right_curly_bracket", "on 100 s", "Go forward 100 s", ALL, looks_back),
    row("time_type", "t", "past", "Go to a time: 03:12, -20m, 2026-11-20, or that of the crosshair",
        ("overview", "compare", "studies", *PAGES)),
    minor("tick_previous", "left_square_bracket", "previous event", "Go to the previous event, incident or alert", ALL),
    minor("tick_next", "right_square_bracket", "next event", "Go to the next event, incident or alert", ALL,
        looks_back),
    minor("live", "L", "live", "Return to the present", ALL, looks_back),
    # launching: which profile, then how
    row("choose", "enter", "choose", "Open the form with this profile", PROFILES),
    row("choose", "enter", "start", "Start the study of this file, after a question", STUDY_FILES),
    movement("up", "up", "up", "File up", LISTS),
    movement("down", "down", "down", "File down", LISTS),
    movement("page_up", "pageup", "page up", "A page of files up", LISTS),
    movement("page_down", "pagedown", "page down", "A page of files down", LISTS),
    row("start", "enter", "launch", "Launch the run with these values", FORM, can_launch),
    movement("field_next", "down tab", "next", "Next field", FORM),
    movement("field_previous", "up shift+tab", "previous", "Previous field", FORM),
    row("value_next", "right", "change", "Next choice of the field; show more parameters", FORM),
    movement("value_previous", "left", "change back", "Previous choice; fold the other parameters", FORM),
    row("profile_next", "ctrl+n pagedown", "next profile", "Next profile", FORM),
    minor("profile_previous", "pageup", "previous profile", "Previous profile", FORM),
    row("preview", "ctrl+d", "dry run", "Show the command, environment and checks without starting", FORM),
    row("choose_gpus", "ctrl+g", "GPUs", "Choose GPUs from a table of who is on them", FORM),
    minor("ask_target", "ctrl+t", "ask target", "Show the queue and free GPUs of the target", FORM),
    minor("last_values", "ctrl+r", "as last", "Use the values of the latest run of this profile", FORM),
    row("cancel", "escape ctrl+c", "back", "Back without launching", LAUNCHING),
    # everywhere
    row("palette", "ctrl+p colon", "find", "Find actions, runs, profiles and GPUs", ALL, in_palette=False),
    row("palette", "ctrl+p", "find", "Find actions, runs, profiles and GPUs", LAUNCHING, in_palette=False),
    minor("copy", "ctrl+y Y", "copy", "Copy what is in focus to your clipboard", ALL),
    minor("theme", "T", "theme", "Next theme", ALL),
    minor("settings", "comma f2", "settings", "Settings: theme, characters, mouse, bell, title, refresh rate",
        (*ALL, *FORM)),
    minor("settings", "f2", "settings", "Settings: theme, characters, mouse, bell, title, refresh rate",
        LISTS),
    minor("mouse", "m", "mouse", "Turn the mouse on or off", OVERVIEW),
    minor("suspend", "ctrl+z", "suspend", "Suspend to the shell; fg returns", (*ALL, *LAUNCHING)),
    row("leave", "q ctrl+c", "quit", "Quit the screen; runs continue", ALL),
)
# fmt: on


def actions_in(scope: Scope) -> list[Action]:
    """The actions of a page, in the order of the table."""
    return [action for action in ACTIONS if scope in action.scopes]


def find(name: str, scope: Scope) -> Action:
    """The action of this name on a page. Raises KeyError."""
    for action in ACTIONS:
        if action.name == name and scope in action.scopes:
            return action
    raise KeyError(name)
