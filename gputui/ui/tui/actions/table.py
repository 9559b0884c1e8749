"""Every action, declared once; bindings, footer, help and palette are made from this table.

Where pages have one action with different words, each has a row. The footer has them in this order.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain

from gputui.ui.tui.actions import reasons as why
from gputui.ui.tui.actions.model import Action, Heading, Scope, WhyNot

OVERVIEW: tuple[Scope, ...] = ("overview",)
RUN: tuple[Scope, ...] = ("run",)
BOTH: tuple[Scope, ...] = ("overview", "run")
PROCESSES: tuple[Scope, ...] = ("processes",)
GPU: tuple[Scope, ...] = ("gpu",)
ALERTS: tuple[Scope, ...] = ("alerts",)
COMPARE: tuple[Scope, ...] = ("compare",)
STUDIES: tuple[Scope, ...] = ("studies",)
CHARTS: tuple[Scope, ...] = ("run", "compare")
TABLES: tuple[Scope, ...] = ("overview", "processes", "alerts", "studies")
SCROLLED: tuple[Scope, ...] = ("run", "gpu")
WATCHED: tuple[Scope, ...] = ("overview", "processes", "compare", *SCROLLED)
ALL: tuple[Scope, ...] = (*TABLES, *SCROLLED, "compare")
PROFILES: tuple[Scope, ...] = ("profiles",)
STUDY_FILES: tuple[Scope, ...] = ("study_files",)
LISTS: tuple[Scope, ...] = ("profiles", "study_files")
FORM: tuple[Scope, ...] = ("launch",)
LAUNCHING: tuple[Scope, ...] = (*LISTS, *FORM)
EVERY_PAGE: tuple[Scope, ...] = (*ALL, *LAUNCHING)


def row(
    names: str,
    keys: str,
    label: str,
    words: str,
    scopes: tuple[Scope, ...],
    why_not: WhyNot = lambda context: None,
    *,
    heading: Heading = "This page",
    in_footer: bool = True,
    in_palette: bool = True,
    sections: str = "",
) -> list[Action]:
    """One action, or several in one line of the help: ``zoom_in zoom_out`` with the keys
    ``plus / minus`` and the words ``Zoom {in|out}``. One without keys is in the palette only."""
    found = []
    for place, (name, own_keys) in enumerate(zip(names.split(), keys.split("/"), strict=True)):
        own = partial(re.sub, "{(.*?)}", lambda part, place=place: part[1].split("|")[place])
        all_words = re.sub(r"\|(\w)", lambda part: f", {part[1].lower()}", words).translate({123: "", 125: ""})
        found.append(
            Action(name, tuple(own_keys.split()), own(label), own(words), scopes, why_not, heading,
                   all_words, in_footer and not place, in_palette, tuple(sections.split()))
        )  # fmt: skip
    return found


minor = partial(row, in_footer=False)
"""An action that the footer leaves to the help."""
movement = partial(minor, in_palette=False, heading="Move")
of_run = partial(row, heading="Runs")
minor_of_run = partial(minor, heading="Runs")
go_to = partial(row, heading="Go to")
to_time = partial(row, heading="Past")
past = partial(minor, heading="Past")
always = partial(row, heading="Everywhere")
everywhere = partial(minor, heading="Everywhere")

# fmt: off
_ROWS: tuple[list[Action], ...] = (
    # the overview and the page of a run
    of_run("open", "enter l right", "open", "Open the run or GPU", OVERVIEW, why.can_open),
    row("back", "escape backspace", "back", "Back, also from crosshair or full page", RUN),
    row("section_next section_previous", "tab / shift+tab", "section", "{Next|Previous} section",
        RUN, in_palette=False),
    of_run("launch", "n", "new", "Launch a profile", BOTH, why.refused_here, sections="charts"),
    of_run("rerun", "r", "rerun", "Resume, restart or copy the run", BOTH, why.can_rerun),
    of_run("stop", "s", "stop", "Stop the run after a checkpoint", BOTH, why.can_stop),
    of_run("resume", "", "resume", "Resume from the newest checkpoint", BOTH, why.can_resume),
    of_run("restart", "", "restart", "Restart the run from step 0", BOTH, why.can_restart),
    of_run("clone", "", "copy", "Copy the run with changes", BOTH, why.changes_run),
    minor_of_run("label", "d", "labels", "Labels: name, tags, note", BOTH, why.changes_run),
    minor_of_run("remove", "delete", "remove", "Remove the run", BOTH, why.can_remove),
    minor_of_run("queue_toggle", "P", "pause", "Pause or resume the queue, or a study", OVERVIEW,
        why.can_pause_queue),
    minor_of_run("queue_up queue_down", "plus / minus", "{earlier|later}",
        "Move a waiting run {up|down} in the queue", OVERVIEW, why.can_move),
    row("find", "slash", "filter", "Filter the charts, or search the log", RUN),
    minor("clear_gpu", "C", "clear", "Clear the quarantine", ("overview", "gpu"), why.can_clear),
    movement("focus_next focus_previous", "tab / shift+tab", "focus",
        "{Next|Previous} of GPUs, runs, events", OVERVIEW),
    # the page of a run
    movement("section_charts section_ranks section_log section_story section_params",
        "1 / 2 / 3 / 4 / 5", "{charts|ranks|log|timeline|parameters}",
        "{Charts|Ranks|Log|Timeline|Params}", RUN),
    row("cursor_right cursor_left", "right l / left h", "crosshair",
        "Crosshair {right|left}; a log sideways", CHARTS, sections="charts"),
    row("zoom_in zoom_out", "plus / minus", "zoom", "Zoom {in|out}", CHARTS, sections="charts"),
    minor("zoom_all", "0", "all", "Zoom out to the whole run", CHARTS),
    minor("pan_left pan_right", "shift+left / shift+right", "pan", "Pan {left|right}", CHARTS),
    minor("marker_previous marker_next", "ctrl+left / ctrl+right", "mark",
        "{Previous|Next} checkpoint or incident", RUN),
    row("smoothing_next", "m", "smooth", "Smooth the curves, or not", CHARTS, sections="charts"),
    row("maximise", "enter", "full", "Section or chart on the full page", RUN),
    minor("x_axis", "x", "x axis", "X axis: steps, time, time trained, epochs", CHARTS),
    minor("log_axis", "y", "log y", "Logarithmic y axis of the chart", CHARTS),
    minor("pin", "asterisk", "pin", "Pin the chart to the top", RUN),
    minor("export", "E", "export", "Export the chart: SVG, CSV, PNG", RUN),
    minor("smoothing_previous", "", "less", "Smooth the curves less", CHARTS),
    minor("layout", "", "layout", "Layout of the charts: a grid, or fewer at once", CHARTS),
    minor("log_x_axis", "", "log x", "Logarithmic x axis of all charts", CHARTS),
    minor("by_rank", "", "by rank", "The metric in focus per rank, or as one curve", RUN),
    row("log_next log_previous", "o / O", "other", "{Next|Previous} log", RUN, sections="log"),
    row("hit_next hit_previous", "full_stop / semicolon", "hit",
        "{Next|Previous} match in the log", RUN, sections="log"),
    row("grave_only", "w", "warnings", "Only warnings and errors", RUN, sections="log"),
    row("traceback", "e", "traceback", "Traceback of the rank that failed", RUN, sections="log"),
    row("check", "V", "check", "Verify the newest checkpoint", RUN, sections="params"),
    row("follow", "f end G", "follow", "Follow the end", RUN, sections="log story"),
    movement("beginning", "home g", "beginning", "Go to the beginning", RUN),
    # the page of processes
    row("process_detail", "enter i", "detail", "Process details", PROCESSES, why.needs_process),
    row("signal", "s", "signal", "Send a signal to the process", PROCESSES, why.can_signal),
    row("environment", "e", "environment", "Process environment", PROCESSES, why.needs_process),
    row("process_run", "r l right", "run", "Open the run of the process", PROCESSES, why.needs_run),
    row("process_tree", "v", "tree", "Processes as a tree, or a list", PROCESSES),
    row("process_group", "b", "group", "Group by GPU, by run, or not at all", PROCESSES),
    # the page of a GPU
    row("open_run", "enter", "run", "Open the run on this GPU", GPU, why.needs_run),
    row("gpu_next gpu_previous", "tab / shift+tab", "next", "{Next|Previous} GPU", GPU),
    row("span_longer span_shorter", "plus / minus", "longer", "{Longer|Shorter} time span", GPU),
    # the comparison
    row("open", "enter", "open", "Open the page of the run", COMPARE, why.needs_run),
    row("metric_next metric_previous", "tab full_stop / shift+tab semicolon", "metric",
        "{Next|Previous} metric", COMPARE),
    row("metric_find", "slash", "find", "Find a metric by name", COMPARE),
    row("cut", "w", "cut", "End the x axis with the shortest run, or the longest", COMPARE),
    row("hide", "space", "hide", "Hide or show the curve of the run", COMPARE, why.needs_run),
    minor("leave_out", "d delete", "leave out", "Take the run out", COMPARE, why.needs_run),
    row("sort", "o", "sort", "Sort by best, last, steps, time, a parameter, or as chosen", COMPARE),
    minor("reverse", "O", "reverse", "Reverse the sort order", COMPARE),
    minor("params", "i", "parameters", "The parameters that differ", COMPARE, why.needs_run),
    minor("code", "e", "code", "How its code differs", COMPARE, why.needs_run),
    minor("group", "", "group", "Group the runs by a parameter that differs", COMPARE),
    # the page of alerts
    row("alert_run", "enter l right", "run", "Open the run of the alert", ALERTS, why.has_run),
    row("acknowledge", "a space", "ack", "Acknowledge the alert", ALERTS, why.can_acknowledge),
    minor("acknowledge_all", "A", "all", "Acknowledge all active alerts", ALERTS, why.refused_here),
    row("silence", "z", "silence", "Silence its notifications for a while", ALERTS, why.changes_alert),
    to_time("alert_moment", "t", "time", "Go to when it was raised", ALERTS, why.needs_alert),
    # the page of studies
    row("open", "enter l right", "open", "Open the run of the trial", STUDIES, why.needs_run),
    row("study_new", "N ctrl+n", "new", "Start a study from a file", STUDIES, why.refused_here),
    minor_of_run("study_new", "ctrl+n", "study", "Start a study from a file", OVERVIEW,
        why.refused_here),
    row("study_next study_previous", "tab / shift+tab", "next", "{Next|Previous} study", STUDIES),
    row("study_view", "v", "view", "The trials by value, parameters, curves, objectives", STUDIES),
    row("stop", "s", "stop", "Stop the trial; its point counts as stopped", STUDIES, why.can_stop),
    row("prune", "x", "prune", "Cut the trial short, as the pruner does", STUDIES, why.can_stop),
    row("keep", "e", "keep", "Keep the pruner from cutting the trial short", STUDIES, why.can_stop),
    row("enqueue", "n", "add", "Add a trial like this one", STUDIES, why.changes_study),
    row("rerun", "r", "extend", "Resume the study, or extend it", STUDIES, why.changes_study),
    row("study_pause", "P", "pause", "Pause or resume the study", STUDIES, why.can_pause_study),
    minor("study_stop", "X", "end", "Stop the study and its trials", STUDIES, why.can_stop_study),
    row("compare", "c", "compare", "Compare the curves of the best trials", STUDIES, why.needs_run),
    row("filter", "slash", "filter", "Filter the rows", TABLES),
    row("fold", "a", "charts", "Charts of all GPUs, or a row for each", OVERVIEW),
    row("mark", "space", "mark", "Mark the run for a comparison", OVERVIEW, why.needs_run),
    row("sort", "o", "sort", "Change the sort order", TABLES),
    # other pages
    go_to("studies", "S", "studies", "Studies: trials and best values", (*WATCHED, "alerts")),
    go_to("processes", "p", "processes", "Processes on the GPUs and of runs",
        ("overview", "alerts", "compare", "studies", *SCROLLED)),
    go_to("gpu_detail", "i", "GPU", "Everything about the GPU", OVERVIEW, why.needs_gpu),
    go_to("compare", "c", "compare", "Compare with other runs", BOTH, why.needs_run),
    go_to("alerts", "exclamation_mark", "alerts", "Active and resolved alerts", WATCHED),
    row("back", "escape backspace", "back", "Leave the crosshair; then the page", COMPARE),
    row("back", "escape backspace h left", "back", "Back", (*PROCESSES, *GPU, *ALERTS, *STUDIES)),
    # looking back
    to_time("time_type", "t", "time", "Go to a time: 03:12, -20m, 2026-11-20",
        (*WATCHED, "studies")),
    past("time_back", "less_than_sign", "back 10 s", "Go back 10 s", ALL),
    past("time_forth", "greater_than_sign", "on 10 s", "Go forward 10 s", ALL, why.looks_back),
    past("time_back_far", "", "back 100 s", "Go back 100 s", ALL),
    past("time_forth_far", "", "on 100 s", "Go forward 100 s", ALL, why.looks_back),
    past("tick_previous", "left_square_bracket", "previous", "Previous event or alert", ALL),
    past("tick_next", "right_square_bracket", "next", "Next event or alert", ALL, why.looks_back),
    past("live", "L", "live", "Return to the present", ALL, why.looks_back),
    # launching: which file, then how
    row("choose", "enter", "choose", "Open the form with this profile", PROFILES),
    row("choose", "enter", "start", "Start the study of this file, after a question", STUDY_FILES),
    row("start", "enter", "launch", "Launch the run with these values", FORM, why.can_launch),
    movement("field_next field_previous", "down tab / up shift+tab", "field",
        "{Next|Previous} field", FORM),
    row("value_next value_previous", "right / left", "change",
        "{Next|Previous} choice of the field; {show|fold} the other parameters", FORM,
        in_palette=False),
    row("preview", "ctrl+d", "dry run", "Command, environment and checks, without a start", FORM),
    row("choose_gpus", "ctrl+g", "GPUs", "Choose GPUs from a table of who is on them", FORM),
    minor("ask_target", "ctrl+t", "target", "The queue and free GPUs of the target", FORM),
    minor("last_values", "ctrl+r", "last", "The values of the newest run of this profile", FORM),
    row("cancel", "escape ctrl+c", "back", "Back without launching", LAUNCHING),
    # everywhere
    movement("up down", "up k / down j", "{up|down}", "{Up|Down} a row", ALL),
    movement("page_up page_down", "pageup / pagedown", "page", "{Up|Down} a page", TABLES),
    movement("page_up page_down", "pageup / pagedown space", "page", "{Up|Down} a page", SCROLLED),
    movement("first last", "home g / end G", "{first|last}", "{First|Last}", (*TABLES, *COMPARE)),
    movement("up down", "up / down", "{up|down}", "{Up|Down} a row", LISTS),
    movement("page_up page_down", "pageup / pagedown", "page", "{Up|Down} a page", LISTS),
    always("palette", "ctrl+p colon", "find", "Find runs, studies, pages", ALL, in_palette=False),
    always("palette", "ctrl+p", "find", "Find runs, studies, pages", LAUNCHING, in_palette=False),
    always("help", "question_mark f1", "help", "Help", EVERY_PAGE),
    everywhere("copy", "ctrl+y Y", "copy", "Copy to your clipboard", ALL),
    everywhere("settings", "comma f2", "settings", "Settings: theme, characters, mouse, bell", ALL),
    everywhere("settings", "f2", "settings", "Settings: theme, characters, mouse, bell", LAUNCHING),
    everywhere("suspend", "ctrl+z", "suspend", "Suspend to the shell; fg returns", EVERY_PAGE),
    always("leave", "q ctrl+c", "quit", "Quit the screen; runs continue", ALL),
)
# fmt: on
ACTIONS: tuple[Action, ...] = tuple(chain.from_iterable(_ROWS))


def actions_in(scope: Scope) -> list[Action]:
    """The actions of a page, in the order of the table."""
    return [action for action in ACTIONS if scope in action.scopes]


def find(name: str, scope: Scope) -> Action:
    """The action of this name on a page. Raises KeyError."""
    for action in ACTIONS:
        if action.name == name and scope in action.scopes:
            return action
    raise KeyError(name)
