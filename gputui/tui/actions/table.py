"""Everything a person can do, declared once: name, keys, words, where, and why not now.

Bindings, footer, help and palette are made from this table. Where several pages have the same action, each has a row
with its own words. ``former`` is a name by which a settings file may still call it.
"""

from __future__ import annotations

from gputui.tui.actions.model import Action, Scope, row
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
    row("help", "question_mark f1", "help", "Help", (*ALL, *LAUNCHING)),
    row("open", "enter l right", "open", "Open the page of the run or GPU under the cursor", OVERVIEW, can_open),
    row("back", "escape backspace", "back", "Back: out of the whole page, the crosshair, a search, a filter; then home",
        PAGE),
    row("section_next", "tab", "section", "The next section of the page", PAGE, in_palette=False),
    row("launch", "n", "new", "Launch a run from a profile", BOTH, refused_here, sections="charts"),
    row("clone", "N", "like it", "Launch another run like this one, with changes", BOTH, changes_run,
        sections="charts"),
    row("label", "d", "label", "Name, tags and note of the run", BOTH, changes_run, shown=False),
    row("stop", "s", "stop", "Stop the run: it saves a checkpoint and exits", BOTH, can_stop),
    row("fold", "a", "charts", "All GPUs together as charts, or a row for each", OVERVIEW),
    row("filter", "slash", "filter", "Show only rows in which the words occur", TABLES),
    row("up", "up k", "up", "The row above", (*TABLES, *COMPARE), shown=False, in_palette=False),
    row("down", "down j", "down", "The row below", (*TABLES, *COMPARE), shown=False, in_palette=False),
    row("first", "home g", "first", "The first row", (*TABLES, *COMPARE), shown=False, in_palette=False),
    row("last", "end G", "last", "The last row", (*TABLES, *COMPARE), shown=False, in_palette=False),
    row("page_up", "pageup", "page up", "A page of rows up", TABLES, shown=False, in_palette=False,
        former="page_above"),
    row("page_down", "pagedown", "page down", "A page of rows down", TABLES, shown=False, in_palette=False,
        former="page_below"),
    row("focus_next", "tab", "focus", "From the GPUs to the runs, to the events", OVERVIEW, shown=False,
        in_palette=False),
    row("focus_previous", "shift+tab", "focus before", "The same backwards", OVERVIEW, shown=False, in_palette=False),
    row("gpu_detail", "i", "GPU", "Everything about the GPU under the cursor", OVERVIEW, needs_gpu),
    row("mark", "space", "mark", "Mark the run for a comparison, or unmark it", OVERVIEW, needs_run),
    row("sort", "o", "sort", "Sort the table in another way", TABLES),
    row("queue_toggle", "P", "pause", "Pause the queue, or open it again", OVERVIEW, refused_here, shown=False),
    row("queue_up", "plus", "earlier", "Move a waiting run one place up in the queue", OVERVIEW, can_move, shown=False),
    row("queue_down", "minus", "later", "Move a waiting run one place down in the queue", OVERVIEW, can_move,
        shown=False),
    row("clear_gpu", "C", "clear", "Let runs have a GPU again that is in quarantine", ("overview", "gpu"), can_clear,
        shown=False),
    # the page of a run
    row("section_previous", "shift+tab", "before", "The section before", PAGE, shown=False, in_palette=False),
    row("section_charts", "1", "charts", "The charts", PAGE, shown=False),
    row("section_ranks", "2", "ranks", "How each rank does", PAGE, shown=False),
    row("section_log", "3", "log", "The log", PAGE, shown=False),
    row("section_story", "4", "timeline", "Attempts, incidents, decisions and what they cost", PAGE, shown=False),
    row("section_params", "5", "parameters", "Parameters as launched and as they are now, checkpoints", PAGE,
        shown=False),
    row("find", "slash", "filter", "Filter the charts by words, globs or ~expressions; in the log: search", PAGE),
    row("cursor_right", "right l", "crosshair", "The crosshair over all charts: right; a log: sideways", CHARTS,
        sections="charts"),
    row("cursor_left", "left h", "left", "The crosshair over all charts: left; a log: back", CHARTS, shown=False),
    row("zoom_in", "plus equals_sign", "zoom", "Zoom in, around the crosshair or towards the newest", CHARTS,
        sections="charts"),
    row("zoom_out", "minus", "zoom out", "Zoom out", CHARTS, shown=False),
    row("zoom_all", "0", "all", "The whole run", CHARTS, shown=False),
    row("pan_left", "shift+left", "pan left", "Move the zoomed charts left", CHARTS, shown=False),
    row("pan_right", "shift+right", "pan right", "Move them right; at the end they follow the newest point", CHARTS,
        shown=False),
    row("marker_previous", "ctrl+left", "before", "The crosshair to the checkpoint, incident or restart before", PAGE,
        shown=False),
    row("marker_next", "ctrl+right", "next", "The crosshair to the next checkpoint, incident or restart", PAGE,
        shown=False),
    row("smoothing_next", "m", "smooth", "Smooth the curves more, the measured ones behind; then not at all", CHARTS,
        sections="charts"),
    row("smoothing_previous", "M", "less", "Smooth the curves less", CHARTS, shown=False),
    row("maximise", "enter", "full", "The section in focus, or one chart, on the whole page; again: all of them", PAGE),
    row("layout", "v", "layout", "Charts in a grid, two at once, or one", PAGE, shown=False),
    row("x_axis", "x", "x axis", "Charts over steps, time, time trained, or epochs", CHARTS, shown=False),
    row("log_x_axis", "ctrl+x", "log x", "The x axis of all charts logarithmic, or linear again; 0 has no place on it",
        CHARTS, shown=False),
    row("by_rank", "b", "by rank", "The metric in focus with a curve for each rank, or one", PAGE, shown=False),
    row("log_axis", "y", "log y", "The chart in focus on a logarithmic or a linear axis", CHARTS, shown=False),
    row("pin", "asterisk", "pin", "Keep the chart in focus first, whatever the filter", PAGE, shown=False),
    row("export", "E", "export", "Write the chart in focus as SVG, CSV and PNG into the run's folder", PAGE,
        shown=False),
    row("log_next", "r", "next log", "The next log: of another rank, the launcher, an attempt before", PAGE,
        sections="log"),
    row("log_previous", "R", "log before", "The log of the rank before", PAGE, shown=False),
    row("hit_next", "full_stop", "next hit", "The next place in the log where the search found something", PAGE,
        sections="log"),
    row("hit_previous", "semicolon", "hit before", "The place before it", PAGE, shown=False),
    row("grave_only", "w", "warnings", "Only warnings and errors of the log, or all lines", PAGE, sections="log"),
    row("traceback", "e", "traceback", "The newest traceback in the logs, that of the failed rank first", PAGE,
        sections="log"),
    row("check", "V", "check", "Read the newest checkpoint and tell whether it is whole", PAGE, sections="params"),
    row("follow", "f end G", "follow", "The newest again: the end of the log, of the timeline, of the curves", PAGE,
        sections="log story"),
    row("beginning", "home g", "beginning",
        "The beginning: of the log, of the timeline; the crosshair at the first step", PAGE, shown=False,
        in_palette=False),
    row("up", "up k", "up", "The chart before; in other sections a line up", PAGE, shown=False, in_palette=False,
        former="scroll_up"),
    row("down", "down j", "down", "The next chart; in other sections a line down", PAGE, shown=False, in_palette=False,
        former="scroll_down"),
    row("page_up", "pageup", "page up", "The charts before; in other sections a page up", PAGE, shown=False,
        in_palette=False),
    row("page_down", "pagedown space", "page down", "The next charts; in other sections a page down", PAGE, shown=False,
        in_palette=False),
    # the page of processes
    row("processes", "p", "processes", "The processes on the GPUs and of the runs",
        ("overview", "gpu", "run", "compare", "alerts", "studies")),
    row("back", "escape backspace h left", "back", "Back to where you came from", PROCESSES, former="processes_back"),
    row("process_detail", "enter i", "detail", "Everything known of the process", PROCESSES, needs_process),
    row("signal", "s", "signal", "Choose a signal for the process", PROCESSES, can_signal),
    row("kill", "K", "kill", "Kill the process at once (SIGKILL), after asking", PROCESSES, can_signal, shown=False),
    row("environment", "e", "environment", "The environment of the process, without secrets", PROCESSES,
        needs_process),
    row("process_tree", "v", "tree", "Children behind their parents, or all in the order", PROCESSES),
    row("process_group", "b", "group", "Group by GPU, by run, or not at all", PROCESSES),
    row("reverse", "O", "reverse", "Sort the other way round", PROCESSES, shown=False, former="sort_reverse"),
    row("process_run", "r l right", "run", "Open the page of the run that it belongs to", PROCESSES, needs_run,
        shown=False),
    # the page of a GPU
    row("open_run", "enter", "run", "Open the page of the run that has this GPU", GPU, needs_run),
    row("back", "escape backspace h left", "back", "Back to where you came from", GPU, former="gpu_back"),
    row("gpu_next", "tab", "next GPU", "The next GPU", GPU, in_palette=False),
    row("gpu_previous", "shift+tab", "GPU before", "The GPU before", GPU, shown=False, in_palette=False),
    row("span_longer", "plus", "longer", "Charts that reach further back: 10 min, 1 h, 6 h, a day", GPU),
    row("span_shorter", "minus", "shorter", "Charts of a shorter time", GPU, shown=False),
    row("up", "up k", "up", "A line up", GPU, shown=False, in_palette=False, former="body_up"),
    row("down", "down j", "down", "A line down", GPU, shown=False, in_palette=False, former="body_down"),
    row("page_up", "pageup", "page up", "A page up", GPU, shown=False, in_palette=False, former="body_page_up"),
    row("page_down", "pagedown space", "page down", "A page down", GPU, shown=False, in_palette=False,
        former="body_page_down"),
    # the comparison
    row("compare", "c", "compare", "Compare marked runs, or this one with others of its profile", BOTH, needs_run),
    row("open", "enter", "open", "Open the page of the run", COMPARE, needs_run, former="compare_open"),
    row("back", "escape backspace", "back", "Back: out of the crosshair; then home", COMPARE, former="compare_back"),
    row("metric_next", "tab full_stop", "metric", "The next metric", COMPARE),
    row("metric_previous", "shift+tab semicolon", "metric before", "The metric before", COMPARE, shown=False),
    row("metric_find", "slash", "metric", "Choose the metric by a part of its name", COMPARE),
    row("layout", "v", "layout", "The metrics in a grid, or one", COMPARE, shown=False),
    row("cut", "w", "cut", "The x axis up to the end of the shortest run, or of the longest", COMPARE),
    row("hide", "space", "hide", "Hide the run's curve, or show it again", COMPARE, needs_run),
    row("leave_out", "d delete", "leave out", "Take the run out of the comparison", COMPARE, needs_run, shown=False),
    row("sort", "o", "sort", "Sort by the best value, the last, steps, time, a parameter; or as chosen", COMPARE,
        former="order"),
    row("reverse", "O", "reverse", "The other way round", COMPARE, shown=False),
    row("params", "i", "parameters", "All parameters in which the runs differ", COMPARE, needs_run, shown=False),
    row("code", "e", "code", "How the code of the run differs from that of the first other one", COMPARE, needs_run,
        shown=False),
    row("group", "b", "group", "Group by a parameter in which the runs differ", COMPARE),
    # what changes a run
    row("resume", "u", "resume", "Go on from the newest valid checkpoint", BOTH, can_go_on, shown=False),
    row("restart", "X", "restart", "Begin again from the start", BOTH, can_start_over, shown=False),
    row("remove", "delete", "remove", "Forget the run: its history, logs and checkpoints", BOTH, can_remove,
        shown=False),
    # the page of alerts
    row("alerts", "exclamation_mark", "alerts", "Alerts that are active, and those resolved", WATCHED),
    row("alert_run", "enter l right", "run", "Open the page of the run that it concerns", ALERTS, has_run),
    row("back", "escape backspace h left", "back", "Back to where you came from", ALERTS, former="alerts_back"),
    row("acknowledge", "a space", "ack", "Acknowledge the alert; it stays until it clears", ALERTS, can_acknowledge),
    row("acknowledge_all", "A", "ack all", "Acknowledge all active alerts", ALERTS, refused_here, shown=False),
    row("silence", "z", "silence", "Send no notifications about it for a time", ALERTS, changes_alert),
    row("alert_moment", "t", "go to that time", "See everything as it was when it was raised", ALERTS, needs_alert),
    row("filter", "slash", "filter", "Show only alerts in which the words occur", ALERTS, former="alerts_filter"),
    row("sort", "o", "sort", "Sort by severity or by time", ALERTS, former="alerts_order"),
    row("up", "up k", "up", "The alert above", ALERTS, shown=False, in_palette=False, former="alert_up"),
    row("down", "down j", "down", "The alert below", ALERTS, shown=False, in_palette=False, former="alert_down"),
    row("first", "home g", "first", "The first alert", ALERTS, shown=False, in_palette=False, former="alerts_first"),
    row("last", "end G", "last", "The last alert", ALERTS, shown=False, in_palette=False, former="alerts_last"),
    row("page_up", "pageup", "page up", "A page up", ALERTS, shown=False, in_palette=False, former="alerts_page_up"),
    row("page_down", "pagedown", "page down", "A page down", ALERTS, shown=False, in_palette=False,
        former="alerts_page_down"),
    # the page of studies
    row("studies", "S", "studies", "Studies: their trials, the best of them, and what mattered", (*WATCHED, "alerts"),
        shown=False),
    row("open", "enter l right", "open", "Open the page of the trial's run", STUDIES, needs_run),
    row("back", "escape backspace h left", "back", "Back to where you came from", STUDIES),
    row("study_next", "tab", "next study", "The next study, an older one", STUDIES),
    row("study_previous", "shift+tab", "study before", "The study before", STUDIES, shown=False),
    row("study_view", "v", "view", "Values over trials, parameters or steps, or over each other", STUDIES),
    row("sort", "o", "sort", "Sort trials by value or by number", STUDIES),
    row("stop", "s", "stop trial", "Stop the trial's run; its point counts as stopped", STUDIES, can_stop),
    row("enqueue", "n", "new trial", "Add a point by hand, from that of the trial under the cursor", STUDIES,
        changes_study),
    row("study_pause", "P", "pause", "Start no more trials, or resume", STUDIES, can_pause_study),
    row("study_stop", "X", "stop study", "Stop the study and its trials", STUDIES, can_stop_study, shown=False),
    row("compare", "c", "compare", "The curves of the best trials over each other", STUDIES, needs_run),
    row("filter", "slash", "filter", "Show only trials in which the words occur", STUDIES),
    row("up", "up k", "up", "The trial above", STUDIES, shown=False, in_palette=False),
    row("down", "down j", "down", "The trial below", STUDIES, shown=False, in_palette=False),
    row("first", "home g", "first", "The first trial", STUDIES, shown=False, in_palette=False),
    row("last", "end G", "last", "The last trial", STUDIES, shown=False, in_palette=False),
    row("page_up", "pageup", "page up", "A page up", STUDIES, shown=False, in_palette=False),
    row("page_down", "pagedown", "page down", "A page down", STUDIES, shown=False, in_palette=False),
    # looking back
    row("time_back", "less_than_sign", "back in time", "Look at ten seconds before", ALL, shown=False),
    row("time_forth", "greater_than_sign", "on", "Look at ten seconds later", ALL, looks_back, shown=False),
    row("time_back_far", "left_curly_bracket", "far back", "Look at a hundred seconds before", ALL, shown=False),
    row("time_forth_far", "right_curly_bracket", "far on", "Look at a hundred seconds later", ALL, looks_back,
        shown=False),
    row("time_type", "t", "past", "Go to a time: 03:12, -20m, yesterday 3:12; the crosshair's",
        ("overview", "compare", "studies", *PAGES)),
    row("tick_previous", "left_square_bracket", "event before", "Look at the event, incident or alert before", ALL,
        shown=False),
    row("tick_next", "right_square_bracket", "next event", "Look at the next event, incident or alert", ALL, looks_back,
        shown=False),
    row("live", "L", "live", "Return to the present", ALL, looks_back, shown=False),
    # launching: which profile, then how
    row("choose", "enter", "choose", "Open the form with this profile", PROFILES),
    row("up", "up", "up", "The profile above", PROFILES, shown=False, in_palette=False),
    row("down", "down", "down", "The profile below", PROFILES, shown=False, in_palette=False),
    row("page_up", "pageup", "page up", "A page of profiles up", PROFILES, shown=False, in_palette=False),
    row("page_down", "pagedown", "page down", "A page of profiles down", PROFILES, shown=False, in_palette=False),
    row("start", "enter", "launch", "Launch the run with these values", FORM, can_launch),
    row("field_next", "down tab", "next", "The next field", FORM, shown=False, in_palette=False),
    row("field_previous", "up shift+tab", "before", "The field before", FORM, shown=False, in_palette=False),
    row("value_next", "right", "change", "The next choice of the field; show more parameters", FORM),
    row("value_previous", "left", "change back", "The choice before; fold the other parameters", FORM, shown=False,
        in_palette=False),
    row("profile_next", "ctrl+n pagedown", "next profile", "Choose the next profile", FORM),
    row("profile_previous", "pageup", "profile before", "Choose the profile before", FORM, shown=False),
    row("preview", "ctrl+d", "dry run", "Show the whole command, environment and checks without starting", FORM),
    row("choose_gpus", "ctrl+g", "GPUs", "Choose GPUs from a table of who is on them", FORM),
    row("ask_target", "ctrl+t", "ask target", "How the target is now: its queue and free GPUs", FORM, shown=False),
    row("last_values", "ctrl+r", "as last", "The values of the newest run of this profile", FORM, shown=False),
    row("cancel", "escape ctrl+c", "back", "Back without launching", LAUNCHING),
    # everywhere
    row("palette", "ctrl+p colon", "find", "Find anything by a part of its name", ALL, in_palette=False),
    row("palette", "ctrl+p", "find", "Find anything by a part of its name", LAUNCHING, in_palette=False),
    row("copy", "ctrl+y Y", "copy", "Copy what is in focus to the clipboard of your own machine", ALL, shown=False),
    row("theme", "T", "theme", "The next theme", ALL, shown=False),
    row("settings", "comma f2", "settings", "Theme, characters, mouse, bell, title, pace: kept for the next start",
        (*ALL, *FORM), shown=False),
    row("settings", "f2", "settings", "Theme, characters, mouse, bell, title, pace: kept for the next start", PROFILES,
        shown=False),
    row("mouse", "m", "mouse", "The mouse on or off", OVERVIEW, shown=False),
    row("suspend", "ctrl+z", "suspend", "Suspend to the shell; fg comes back", (*ALL, *LAUNCHING), shown=False),
    row("leave", "q ctrl+c", "quit", "Quit the screen; runs continue", ALL),
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
