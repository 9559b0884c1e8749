"""Everything a person can do, declared once: name, keys, words, where, and why not now.

Bindings, footer, help and palette are made from this table. Where several pages have the same action, each has a row
with its own words. ``former`` is a name by which a settings file may still call it.
"""

from __future__ import annotations

from gputui.tui.actions.model import Action, Scope, act
from gputui.tui.actions.reasons import (
    can_acknowledge,
    can_clear,
    can_go_on,
    can_launch,
    can_move,
    can_open,
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
LAUNCHING: tuple[Scope, ...] = ("profiles", "launch")
ALERTS: tuple[Scope, ...] = ("alerts",)
COMPARE: tuple[Scope, ...] = ("compare",)
STUDIES: tuple[Scope, ...] = ("studies",)
CHARTS: tuple[Scope, ...] = ("run", "compare")

# The footer takes what fits in this order.
# fmt: off
ACTIONS: tuple[Action, ...] = (
    # the overview, and what the page of a run shares with it
    act("help", "question_mark f1", "help", "Help", (*ALL, *LAUNCHING)),
    act("open", "enter l right", "open", "Open the page of the run or GPU under the cursor", OVERVIEW, can_open),
    act("back", "escape backspace", "back", "Back: out of the whole page, the crosshair, a search, a filter; then home",
        PAGE),
    act("section_next", "tab", "section", "The next section of the page", PAGE, in_palette=False),
    act("launch", "n", "new", "Launch a run from a profile", BOTH, refused_here, sections="charts"),
    act("clone", "N", "like it", "Launch another run like this one, with changes", BOTH, changes_run,
        sections="charts"),
    act("stop", "s", "stop", "Stop the run: it checkpoints and leaves", BOTH, can_stop),
    act("fold", "a", "charts", "All GPUs together as charts, or a row for each", OVERVIEW),
    act("filter", "slash", "filter", "Show only rows in which the words occur", TABLES),
    act("up", "up k", "up", "The row above", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("down", "down j", "down", "The row below", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("first", "home g", "first", "The first row", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("last", "end G", "last", "The last row", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("page_up", "pageup", "page up", "A page of rows up", TABLES, shown=False, in_palette=False,
        former="page_above"),
    act("page_down", "pagedown", "page down", "A page of rows down", TABLES, shown=False, in_palette=False,
        former="page_below"),
    act("focus_next", "tab", "focus", "From the GPUs to the runs, to the events", OVERVIEW, shown=False,
        in_palette=False),
    act("focus_previous", "shift+tab", "focus before", "The same backwards", OVERVIEW, shown=False, in_palette=False),
    act("gpu_detail", "i", "GPU", "Everything about the GPU under the cursor", OVERVIEW, needs_gpu),
    act("mark", "space", "mark", "Mark the run for a comparison, or unmark it", OVERVIEW, needs_run),
    act("sort", "o", "sort", "Sort the table in another way", TABLES),
    act("queue_toggle", "P", "pause", "Pause the queue, or open it again", OVERVIEW, refused_here, shown=False),
    act("queue_up", "plus", "earlier", "Move a waiting run one place up in the queue", OVERVIEW, can_move, shown=False),
    act("queue_down", "minus", "later", "Move a waiting run one place down in the queue", OVERVIEW, can_move,
        shown=False),
    act("clear_gpu", "C", "clear", "Let runs have a GPU again that is in quarantine", ("overview", "gpu"), can_clear,
        shown=False),
    # the page of a run
    act("section_previous", "shift+tab", "before", "The section before", PAGE, shown=False, in_palette=False),
    act("section_charts", "1", "charts", "The charts", PAGE, shown=False),
    act("section_ranks", "2", "ranks", "How each rank does", PAGE, shown=False),
    act("section_log", "3", "log", "The log", PAGE, shown=False),
    act("section_story", "4", "timeline", "Attempts, incidents, decisions and what they cost", PAGE, shown=False),
    act("section_params", "5", "parameters", "Parameters as launched and as they are now, checkpoints", PAGE,
        shown=False),
    act("find", "slash", "filter", "Filter the charts by words, globs or ~expressions; in the log: search", PAGE),
    act("cursor_right", "right l", "crosshair", "The crosshair over all charts: right; a log: sideways", CHARTS,
        sections="charts"),
    act("cursor_left", "left h", "left", "The crosshair over all charts: left; a log: back", CHARTS, shown=False),
    act("zoom_in", "plus equals_sign", "zoom", "Zoom in, around the crosshair or towards the newest", CHARTS,
        sections="charts"),
    act("zoom_out", "minus", "zoom out", "Zoom out", CHARTS, shown=False),
    act("zoom_all", "0", "all", "The whole run", CHARTS, shown=False),
    act("pan_left", "shift+left", "pan left", "Move the zoomed charts left", CHARTS, shown=False),
    act("pan_right", "shift+right", "pan right", "Move them right; at the end they follow the newest point", CHARTS,
        shown=False),
    act("marker_previous", "ctrl+left", "before", "The crosshair to the checkpoint, incident or restart before", PAGE,
        shown=False),
    act("marker_next", "ctrl+right", "next", "The crosshair to the next checkpoint, incident or restart", PAGE,
        shown=False),
    act("smoothing_next", "m", "smooth", "Smooth the curves more, the measured ones behind; then not at all", CHARTS,
        sections="charts"),
    act("smoothing_previous", "M", "less", "Smooth the curves less", CHARTS, shown=False),
    act("maximise", "enter", "full", "The section in focus, or one chart, on the whole page; again: all of them", PAGE),
    act("layout", "v", "layout", "Charts in a grid, two at once, or one", PAGE, shown=False),
    act("x_axis", "x", "x axis", "Charts over steps, time, time trained, or epochs", CHARTS, shown=False),
    act("log_x_axis", "ctrl+x", "log x", "The x axis of all charts logarithmic, or linear again; 0 has no place on it",
        CHARTS, shown=False),
    act("by_rank", "b", "by rank", "The metric in focus with a curve for each rank, or one", PAGE, shown=False),
    act("log_axis", "y", "log y", "The chart in focus on a logarithmic or a linear axis", CHARTS, shown=False),
    act("pin", "asterisk", "pin", "Keep the chart in focus first, whatever the filter", PAGE, shown=False),
    act("export", "E", "export", "Write the chart in focus as SVG, CSV and PNG into the run's folder", PAGE,
        shown=False),
    act("log_next", "r", "next log", "The next log: of another rank, the launcher, an attempt before", PAGE,
        sections="log"),
    act("log_previous", "R", "log before", "The log of the rank before", PAGE, shown=False),
    act("hit_next", "full_stop", "next hit", "The next place in the log where the search found something", PAGE,
        sections="log"),
    act("hit_previous", "semicolon", "hit before", "The place before it", PAGE, shown=False),
    act("grave_only", "w", "warnings", "Only warnings and errors of the log, or all lines", PAGE, sections="log"),
    act("traceback", "e", "traceback", "The newest traceback in the logs, that of the failed rank first", PAGE,
        sections="log"),
    act("check", "V", "check", "Read the newest checkpoint and tell whether it is whole", PAGE, sections="params"),
    act("follow", "f end G", "follow", "The newest again: the end of the log, of the timeline, of the curves", PAGE,
        sections="log story"),
    act("beginning", "home g", "beginning",
        "The beginning: of the log, of the timeline; the crosshair at the first step", PAGE, shown=False,
        in_palette=False),
    act("up", "up k", "up", "The chart before; in other sections a line up", PAGE, shown=False, in_palette=False,
        former="scroll_up"),
    act("down", "down j", "down", "The next chart; in other sections a line down", PAGE, shown=False, in_palette=False,
        former="scroll_down"),
    act("page_up", "pageup", "page up", "The charts before; in other sections a page up", PAGE, shown=False,
        in_palette=False),
    act("page_down", "pagedown space", "page down", "The next charts; in other sections a page down", PAGE, shown=False,
        in_palette=False),
    # the page of processes
    act("processes", "p", "processes", "The processes on the GPUs and of the runs",
        ("overview", "gpu", "run", "compare", "alerts", "studies")),
    act("back", "escape backspace h left", "back", "Back to where you came from", PROCESSES, former="processes_back"),
    act("process_detail", "enter i", "detail", "Everything known of the process", PROCESSES, needs_process),
    act("signal", "s", "signal", "Choose a signal for the process", PROCESSES, can_signal),
    act("process_tree", "v", "tree", "Children behind their parents, or all in the order", PROCESSES),
    act("process_group", "b", "group", "Group by GPU, by run, or not at all", PROCESSES),
    act("reverse", "O", "reverse", "Sort the other way round", PROCESSES, shown=False, former="sort_reverse"),
    act("process_run", "r l right", "run", "Open the page of the run that it belongs to", PROCESSES, needs_run,
        shown=False),
    # the page of a GPU
    act("open_run", "enter", "run", "Open the page of the run that has this GPU", GPU, needs_run),
    act("back", "escape backspace h left", "back", "Back to where you came from", GPU, former="gpu_back"),
    act("gpu_next", "tab", "next GPU", "The next GPU", GPU, in_palette=False),
    act("gpu_previous", "shift+tab", "GPU before", "The GPU before", GPU, shown=False, in_palette=False),
    act("span_longer", "plus", "longer", "Charts that reach further back: 10 min, 1 h, 6 h, a day", GPU),
    act("span_shorter", "minus", "shorter", "Charts of a shorter time", GPU, shown=False),
    act("up", "up k", "up", "A line up", GPU, shown=False, in_palette=False, former="body_up"),
    act("down", "down j", "down", "A line down", GPU, shown=False, in_palette=False, former="body_down"),
    act("page_up", "pageup", "page up", "A page up", GPU, shown=False, in_palette=False, former="body_page_up"),
    act("page_down", "pagedown space", "page down", "A page down", GPU, shown=False, in_palette=False,
        former="body_page_down"),
    # the comparison
    act("compare", "c", "compare", "Compare marked runs, or this one with others of its profile", BOTH, needs_run),
    act("open", "enter", "open", "Open the page of the run", COMPARE, needs_run, former="compare_open"),
    act("back", "escape backspace", "back", "Back: out of the crosshair; then home", COMPARE, former="compare_back"),
    act("metric_next", "tab full_stop", "metric", "The next metric", COMPARE),
    act("metric_previous", "shift+tab semicolon", "metric before", "The metric before", COMPARE, shown=False),
    act("metric_find", "slash", "metric", "Choose the metric by a part of its name", COMPARE),
    act("hide", "space", "hide", "Hide the run's curve, or show it again", COMPARE, needs_run),
    act("leave_out", "d delete", "leave out", "Take the run out of the comparison", COMPARE, needs_run, shown=False),
    act("sort", "o", "sort", "Sort by the best value, the last, steps, time, a parameter; or as chosen", COMPARE,
        former="order"),
    act("reverse", "O", "reverse", "The other way round", COMPARE, shown=False),
    act("params", "i", "parameters", "All parameters in which the runs differ", COMPARE, needs_run, shown=False),
    act("group", "b", "group", "Group by a parameter in which the runs differ", COMPARE),
    # what changes a run
    act("resume", "u", "resume", "Go on from the newest valid checkpoint", BOTH, can_go_on, shown=False),
    act("restart", "X", "restart", "Begin again from the start", BOTH, can_start_over, shown=False),
    act("remove", "delete", "remove", "Forget the run: its history, logs and checkpoints", BOTH, can_remove,
        shown=False),
    # the page of alerts
    act("alerts", "exclamation_mark", "alerts", "Alerts that are active, and those resolved", WATCHED),
    act("alert_run", "enter l right", "run", "Open the page of the run that it concerns", ALERTS, has_run),
    act("back", "escape backspace h left", "back", "Back to where you came from", ALERTS, former="alerts_back"),
    act("acknowledge", "a space", "ack", "Acknowledge the alert; it stays until it clears", ALERTS, can_acknowledge),
    act("acknowledge_all", "A", "ack all", "Acknowledge all active alerts", ALERTS, refused_here, shown=False),
    act("silence", "z", "silence", "Tell nobody of it for a time", ALERTS, changes_alert),
    act("alert_moment", "t", "go to that time", "See everything as it was when it was raised", ALERTS, needs_alert),
    act("filter", "slash", "filter", "Show only alerts in which the words occur", ALERTS, former="alerts_filter"),
    act("sort", "o", "sort", "Sort by severity or by time", ALERTS, former="alerts_order"),
    act("up", "up k", "up", "The alert above", ALERTS, shown=False, in_palette=False, former="alert_up"),
    act("down", "down j", "down", "The alert below", ALERTS, shown=False, in_palette=False, former="alert_down"),
    act("first", "home g", "first", "The first alert", ALERTS, shown=False, in_palette=False, former="alerts_first"),
    act("last", "end G", "last", "The last alert", ALERTS, shown=False, in_palette=False, former="alerts_last"),
    act("page_up", "pageup", "page up", "A page up", ALERTS, shown=False, in_palette=False, former="alerts_page_up"),
    act("page_down", "pagedown", "page down", "A page down", ALERTS, shown=False, in_palette=False,
        former="alerts_page_down"),
    # the page of studies
    act("studies", "S", "studies", "Studies: their trials, the best of them, and what mattered", (*WATCHED, "alerts"),
        shown=False),
    act("open", "enter l right", "open", "Open the page of the trial's run", STUDIES, needs_run),
    act("back", "escape backspace h left", "back", "Back to where you came from", STUDIES),
    act("study_next", "tab", "next study", "The next study, an older one", STUDIES),
    act("study_previous", "shift+tab", "study before", "The study before", STUDIES, shown=False),
    act("study_view", "v", "view", "Values over trials, over each parameter, or one objective over the other", STUDIES),
    act("sort", "o", "sort", "Sort trials by value or by number", STUDIES),
    act("stop", "s", "stop trial", "Stop the trial's run; its point counts as stopped", STUDIES, can_stop),
    act("enqueue", "n", "new trial", "Add a point by hand, from that of the trial under the cursor", STUDIES,
        changes_study),
    act("study_pause", "P", "pause", "Begin no more trials, or go on", STUDIES, can_pause_study),
    act("study_stop", "X", "stop study", "Stop the study and its trials", STUDIES, can_stop_study, shown=False),
    act("compare", "c", "compare", "The curves of the best trials over each other", STUDIES, needs_run),
    act("filter", "slash", "filter", "Show only trials in which the words occur", STUDIES),
    act("up", "up k", "up", "The trial above", STUDIES, shown=False, in_palette=False),
    act("down", "down j", "down", "The trial below", STUDIES, shown=False, in_palette=False),
    act("first", "home g", "first", "The first trial", STUDIES, shown=False, in_palette=False),
    act("last", "end G", "last", "The last trial", STUDIES, shown=False, in_palette=False),
    act("page_up", "pageup", "page up", "A page up", STUDIES, shown=False, in_palette=False),
    act("page_down", "pagedown", "page down", "A page down", STUDIES, shown=False, in_palette=False),
    # looking back
    act("time_back", "less_than_sign", "back in time", "Look at ten seconds before", ALL, shown=False),
    act("time_forth", "greater_than_sign", "on", "Look at ten seconds later", ALL, looks_back, shown=False),
    act("time_back_far", "left_curly_bracket", "far back", "Look at a hundred seconds before", ALL, shown=False),
    act("time_forth_far", "right_curly_bracket", "far on", "Look at a hundred seconds later", ALL, looks_back,
        shown=False),
    act("time_type", "t", "past", "Go to a time: 03:12, -20m, yesterday 3:12; the crosshair's",
        ("overview", "compare", "studies", *PAGES)),
    act("tick_previous", "left_square_bracket", "event before", "Look at the event, incident or alert before", ALL,
        shown=False),
    act("tick_next", "right_square_bracket", "next event", "Look at the next event, incident or alert", ALL, looks_back,
        shown=False),
    act("live", "L", "live", "Return to the present", ALL, looks_back, shown=False),
    # launching: which profile, then how
    act("choose", "enter", "choose", "Open the form with this profile", PROFILES),
    act("up", "up", "up", "The profile above", PROFILES, shown=False, in_palette=False),
    act("down", "down", "down", "The profile below", PROFILES, shown=False, in_palette=False),
    act("page_up", "pageup", "page up", "A page of profiles up", PROFILES, shown=False, in_palette=False),
    act("page_down", "pagedown", "page down", "A page of profiles down", PROFILES, shown=False, in_palette=False),
    act("start", "enter", "launch", "Launch the run with these values", FORM, can_launch),
    act("field_next", "down tab", "next", "The next field", FORM, shown=False, in_palette=False),
    act("field_previous", "up shift+tab", "before", "The field before", FORM, shown=False, in_palette=False),
    act("profile_next", "ctrl+n pagedown", "next profile", "Choose the next profile", FORM),
    act("profile_previous", "pageup", "profile before", "Choose the profile before", FORM, shown=False),
    act("preview", "ctrl+d", "dry run", "Show the whole command, environment and checks without starting", FORM),
    act("choose_gpus", "ctrl+g", "GPUs", "Choose GPUs from a table of who is on them", FORM),
    act("last_values", "ctrl+r", "as last", "The values of the newest run of this profile", FORM, shown=False),
    act("cancel", "escape ctrl+c", "back", "Back without launching", LAUNCHING),
    # everywhere
    act("palette", "ctrl+p colon", "find", "Find anything by a part of its name", ALL, in_palette=False),
    act("palette", "ctrl+p", "find", "Find anything by a part of its name", LAUNCHING, in_palette=False),
    act("copy", "ctrl+y Y", "copy", "Copy what is in focus to the clipboard of your own machine", ALL, shown=False),
    act("theme", "T", "theme", "The next theme", ALL, shown=False),
    act("settings", "comma f2", "settings", "Theme, characters, mouse, bell, title, pace: kept for the next start",
        (*ALL, *FORM), shown=False),
    act("settings", "f2", "settings", "Theme, characters, mouse, bell, title, pace: kept for the next start", PROFILES,
        shown=False),
    act("mouse", "m", "mouse", "The mouse on or off", OVERVIEW, shown=False),
    act("suspend", "ctrl+z", "suspend", "Suspend to the shell; fg comes back", (*ALL, *LAUNCHING), shown=False),
    act("leave", "q ctrl+c", "quit", "Quit the screen; runs go on", ALL),
)
# fmt: on


def actions_in(scope: Scope) -> list[Action]:
    """What there is to do on a page, in the order of the table."""
    return [action for action in ACTIONS if scope in action.scopes]


def find(name: str, scope: Scope) -> Action:
    """The action of this name on a page. Raises KeyError."""
    for action in ACTIONS:
        if action.name == name and scope in action.scopes:
            return action
    raise KeyError(name)
