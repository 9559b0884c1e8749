"""Every action, declared once; keys, footer, help and palette are made from this table.

An action is carried out by the method ``do_<name>`` of its page, or of the app.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from msgspec import Struct

from gputui.ui.tui.actions.checks import (
    Check,
    first_refusal,
    needs_active_alert,
    needs_active_run,
    needs_active_study,
    needs_alert,
    needs_ended_run,
    needs_gpu,
    needs_live_study,
    needs_no_pending_stop,
    needs_past,
    needs_process,
    needs_quarantined_gpu,
    needs_queued_run,
    needs_resumable_run,
    needs_row,
    needs_run,
    needs_run_of_alert,
    needs_run_or_marked,
    needs_settled_run,
    needs_sound_gpu,
    needs_startable_form,
    needs_study,
    needs_traceback,
    needs_unacknowledged_alert,
    needs_write,
)
from gputui.ui.tui.actions.context import Context, Scope
from gputui.ui.tui.actions.keys import key_word
from gputui.ui.tui.actions.marked import ACTIONS_ON_MARKED, marked_count, marked_refusal

Heading = Literal["Runs", "This page", "Go to", "Past", "Everywhere", "Move"]
"""A heading of the help. What is below Move, the palette leaves out."""

TIME_ACTIONS = ("time_back", "time_forth", "live")

SHOWN_IF: Mapping[str, Callable[[Context], bool]] = {
    **dict.fromkeys(TIME_ACTIONS, lambda context: context.past_at is not None),
    "studies": lambda context: context.has_studies,
    "clear_gpu": lambda context: context.gpu is not None and context.gpu.uuid in context.quarantined,
    "unmark": lambda context: bool(context.marked),
    # In the list of runs the cursor is always on one, if there is any.
    **dict.fromkeys(("rerun", "stop"), lambda context: context.section != "runs" or needs_row(context) is None),
}
"""When the footer has an action that most screens have no use for."""


class Action(Struct, frozen=True):
    """One action on some pages.

    Attributes:
        name: the method ``do_<name>`` carries it out.
        scopes: the pages that have it.
        keys: by Textual's names, the first one in the footer.
        tooltip: a phrase for the palette.
        heading: where the help has it.
        label: a word for the footer; "" for an action that it does not have.
        help: a phrase for the help, if several actions share it; else the tooltip.
        checks: what may refuse it, in this order.
        study_checks: the same on the row of a study; none for ``checks``.
        sections: the sections of a run's page where the footer has it; none for all.
        is_spare: whether narrow footers leave it out.
    """

    name: str
    scopes: tuple[Scope, ...]
    keys: tuple[str, ...]
    tooltip: str
    heading: Heading
    label: str = ""
    help: str = ""
    checks: tuple[Check, ...] = ()
    study_checks: tuple[Check, ...] = ()
    sections: tuple[str, ...] = ()
    is_spare: bool = False

    @property
    def phrase(self) -> str:
        """The phrase for the help."""
        return self.help or self.tooltip

    def why_not(self, context: Context) -> str | None:
        """The sentence that refuses it on a page; None if it is possible."""
        if self.is_of_marked(context):
            return marked_refusal(self.name, context)
        if self.study_checks and context.is_study_row:
            return first_refusal(self.study_checks, context)
        return first_refusal(self.checks, context)

    def is_of_marked(self, context: Context) -> bool:
        """Return whether it applies to the marked runs."""
        return bool(context.marked) and self.name in ACTIONS_ON_MARKED

    def is_offered(self, context: Context) -> bool:
        """Return whether footer and palette have it: not where it would do nothing with any marked run."""
        return not self.is_of_marked(context) or marked_count(self.name, context) > 0

    def keys_in(self, context: Context) -> tuple[str, ...]:
        """Its keys on a page: those of the settings, else those of the table."""
        return context.keys.get(self.name, self.keys)

    def key_word(self, context: Context) -> str:
        """Its first key on a page, as it is printed; "" without a key."""
        return "".join(key_word(key, is_ascii=context.is_ascii) for key in self.keys_in(context)[:1])

    def is_shown(self, context: Context) -> bool:
        """Return whether the footer has it here, if there is room."""
        is_here = context.scope != "run" or not self.sections or context.section in self.sections
        return bool(self.label) and is_here and SHOWN_IF.get(self.name, bool)(context)


Scopes = tuple[Scope, ...]
RUN: Scopes = ("run",)
OVERVIEW: Scopes = ("overview",)
PROCESSES: Scopes = ("processes",)
GPU: Scopes = ("gpu",)
COMPARE: Scopes = ("compare",)
ALERTS: Scopes = ("alerts",)
STUDIES: Scopes = ("studies",)
LAUNCH: Scopes = ("launch",)
PROFILES: Scopes = ("profiles",)
STUDY_FILES: Scopes = ("study_files",)
CHARTS: Scopes = ("run", "compare")
TABLES: Scopes = ("overview", "processes", "alerts", "studies")
WATCHED: Scopes = ("overview", "processes", "compare", "run", "gpu")
ALL: Scopes = ("overview", "processes", "alerts", "studies", "run", "gpu", "compare")
LISTS: Scopes = ("profiles", "study_files")
LAUNCHING: Scopes = ("profiles", "study_files", "launch")

on_page = partial(Action, heading="This page")
moves = partial(Action, heading="Move")
of_runs = partial(Action, heading="Runs")
goes_to = partial(Action, heading="Go to")
of_past = partial(Action, heading="Past")
everywhere = partial(Action, heading="Everywhere")

# The footer has the actions in this order.
# fmt: off
ACTIONS: tuple[Action, ...] = (
    # --- This page
    on_page("back", RUN, ("escape", "backspace"), "Back, also from crosshair or full page", label="back"),
    on_page("section_next", RUN, ("tab",), "Next section", label="section", help="Next, previous section"),
    on_page("section_previous", RUN, ("shift+tab",), "Previous section", help="Next, previous section"),
    on_page("find", RUN, ("slash",), "Filter the charts, or search the log", label="filter"),
    # --- Move
    moves("section_charts", RUN, ("1",), "Charts", help="Charts, ranks, log, timeline, params"),
    moves("section_ranks", RUN, ("2",), "Ranks", help="Charts, ranks, log, timeline, params"),
    moves("section_log", RUN, ("3",), "Log", help="Charts, ranks, log, timeline, params"),
    moves("section_story", RUN, ("4",), "Timeline", help="Charts, ranks, log, timeline, params"),
    moves("section_params", RUN, ("5",), "Params", help="Charts, ranks, log, timeline, params"),
    # --- Runs
    of_runs("open", OVERVIEW, ("enter", "l", "right"), "Open the run or GPU", label="open", checks=(needs_row,)),
    of_runs("launch", OVERVIEW, ("n",), "Launch a profile", label="new", checks=(needs_write,)),
    of_runs("launch", RUN, ("n",), "Launch a profile",
            label="new", checks=(needs_write,), sections=("charts",), is_spare=True),
    of_runs("rerun", ("overview", "run"), ("r",), "Resume, restart or copy the run",
            label="rerun", checks=(needs_write, needs_run), study_checks=(needs_write, needs_study)),
    of_runs("stop", ("overview", "run"), ("s",), "Stop the run after a checkpoint",
            label="stop", checks=(needs_write, needs_run, needs_active_run),
            study_checks=(needs_write, needs_study, needs_active_study)),
    of_runs("resume", ("overview", "run"), (), "Resume from the newest checkpoint",
            label="resume", checks=(needs_write, needs_run, needs_resumable_run)),
    of_runs("restart", ("overview", "run"), (), "Restart the run from step 0",
            label="restart", checks=(needs_write, needs_run, needs_settled_run)),
    of_runs("clone", ("overview", "run"), (), "Copy the run with changes",
            label="copy", checks=(needs_write, needs_run)),
    of_runs("label", ("overview", "run"), ("d",), "Labels: name, tags, note", checks=(needs_write, needs_run)),
    of_runs("remove", ("overview", "run"), ("delete",), "Remove the run",
            checks=(needs_write, needs_run, needs_no_pending_stop, needs_ended_run)),
    of_runs("queue_toggle", OVERVIEW, ("P",), "Pause or resume the queue, or a study",
            checks=(needs_write,), study_checks=(needs_write, needs_study, needs_live_study)),
    of_runs("queue_up", OVERVIEW, ("plus",), "Move a waiting run up in the queue",
            help="Move a waiting run up, down in the queue", checks=(needs_write, needs_run, needs_queued_run)),
    of_runs("queue_down", OVERVIEW, ("minus",), "Move a waiting run down in the queue",
            help="Move a waiting run up, down in the queue", checks=(needs_write, needs_run, needs_queued_run)),
    of_runs("study_new", OVERVIEW, ("ctrl+n",), "Start a study from a file", checks=(needs_write,)),
    # --- This page
    on_page("clear_gpu", ("overview", "gpu"), ("C",), "Clear the quarantine",
            label="clear", checks=(needs_write, needs_quarantined_gpu)),
    on_page("quarantine_gpu", ("overview", "gpu"), (), "Quarantine the GPU",
            checks=(needs_write, needs_gpu, needs_sound_gpu)),
    on_page("cursor_right", CHARTS, ("right", "l"), "Crosshair right; a log sideways",
            label="crosshair", help="Crosshair right, left; a log sideways", sections=("charts",)),
    on_page("cursor_left", CHARTS, ("left", "h"), "Crosshair left; a log sideways",
            help="Crosshair right, left; a log sideways", sections=("charts",)),
    on_page("zoom_in", CHARTS, ("plus",), "Zoom in", label="zoom", help="Zoom in, out", sections=("charts",)),
    on_page("zoom_out", CHARTS, ("minus",), "Zoom out", help="Zoom in, out", sections=("charts",)),
    on_page("zoom_all", CHARTS, ("0",), "Zoom out to the whole run"),
    on_page("pan_left", CHARTS, ("shift+left",), "Pan left", help="Pan left, right"),
    on_page("pan_right", CHARTS, ("shift+right",), "Pan right", help="Pan left, right"),
    on_page("marker_previous", RUN, ("ctrl+left",), "Previous checkpoint or incident",
            help="Previous, next checkpoint or incident"),
    on_page("marker_next", RUN, ("ctrl+right",), "Next checkpoint or incident",
            help="Previous, next checkpoint or incident"),
    on_page("smoothing_next", CHARTS, ("m",), "Smooth the curves, or not", label="smooth", sections=("charts",)),
    on_page("maximise", RUN, ("enter",), "Section or chart on the full page", label="full"),
    on_page("x_axis", CHARTS, ("x",), "X axis: steps, time, time trained, epochs"),
    on_page("log_axis", CHARTS, ("y",), "Logarithmic y axis of the chart"),
    on_page("smoothing_previous", CHARTS, (), "Smooth the curves less"),
    on_page("layout", CHARTS, (), "Layout of the charts: a grid, or fewer at once"),
    on_page("log_x_axis", CHARTS, (), "Logarithmic x axis of all charts"),
    on_page("pin", RUN, ("asterisk",), "Pin the chart to the top"),
    on_page("export", RUN, ("E",), "Export the chart: SVG, CSV, PNG"),
    on_page("by_rank", RUN, (), "The metric in focus per rank, or as one curve"),
    on_page("log_next", RUN, ("o",), "Next log", label="log", help="Next, previous log", sections=("log",)),
    on_page("log_previous", RUN, ("O",), "Previous log", help="Next, previous log", sections=("log",)),
    on_page("hit_next", RUN, ("full_stop",), "Next match in the log",
            label="match", help="Next, previous match in the log", sections=("log",)),
    on_page("hit_previous", RUN, ("semicolon",), "Previous match in the log",
            help="Next, previous match in the log", sections=("log",)),
    on_page("grave_only", RUN, ("w",), "Only warnings and errors", label="warnings", sections=("log",)),
    on_page("traceback", RUN, ("e",), "Traceback of the rank that failed",
            label="traceback", checks=(needs_traceback,), sections=("log",)),
    on_page("check", RUN, ("V",), "Verify the newest checkpoint", label="check", sections=("params",)),
    on_page("follow", RUN, ("f", "end", "G"), "Follow the end", label="follow", sections=("log", "story")),
    on_page("process_detail", PROCESSES, ("enter", "i"), "Process details", label="detail", checks=(needs_process,)),
    on_page("signal", PROCESSES, ("s",), "Send a signal to the process",
            label="signal", checks=(needs_write, needs_process)),
    on_page("environment", PROCESSES, ("e",), "Process environment", label="environment", checks=(needs_process,)),
    on_page("open", PROCESSES, ("r", "l", "right"), "Open the run of the process", label="run", checks=(needs_run,)),
    on_page("process_tree", PROCESSES, ("v",), "Processes as a tree, or a list", label="tree"),
    on_page("process_group", PROCESSES, ("b",), "Group by GPU, by run, or not at all", label="group"),
    on_page("open_run", GPU, ("enter",), "Open the run on this GPU", label="run", checks=(needs_run,)),
    on_page("gpu_next", GPU, ("tab",), "Next GPU", label="next", help="Next, previous GPU"),
    on_page("gpu_previous", GPU, ("shift+tab",), "Previous GPU", help="Next, previous GPU"),
    on_page("span_longer", GPU, ("plus",), "Longer time span", label="longer", help="Longer, shorter time span"),
    on_page("span_shorter", GPU, ("minus",), "Shorter time span", help="Longer, shorter time span"),
    on_page("open", COMPARE, ("enter",), "Open the page of the run", label="open", checks=(needs_run,)),
    on_page("metric_next", COMPARE, ("tab", "full_stop"), "Next metric",
            label="metric", help="Next, previous metric"),
    on_page("metric_previous", COMPARE, ("shift+tab", "semicolon"), "Previous metric", help="Next, previous metric"),
    on_page("find", COMPARE, ("slash",), "Filter the charts", label="filter"),
    on_page("cut", COMPARE, ("w",), "End the x axis with the shortest run, or the longest", label="shortest"),
    on_page("hide", COMPARE, ("space",), "Hide or show the curve of the run", label="hide", checks=(needs_run,)),
    on_page("leave_out", COMPARE, ("d", "delete"), "Take the run out", checks=(needs_run,)),
    on_page("sort", COMPARE, ("o",), "Sort by best, last, steps, time, a parameter, or as chosen", label="sort"),
    on_page("reverse", COMPARE, ("O",), "Reverse the sort order"),
    on_page("params", COMPARE, ("i",), "The parameters that differ", checks=(needs_run,)),
    on_page("code", COMPARE, ("e",), "How its code differs", checks=(needs_run,)),
    on_page("group", COMPARE, (), "Group the runs by a parameter that differs"),
    on_page("open", ALERTS, ("enter", "l", "right"), "Open the run of the alert",
            label="run", checks=(needs_alert, needs_run_of_alert)),
    on_page("acknowledge", ALERTS, ("a", "space"), "Acknowledge the alert",
            label="ack", checks=(needs_write, needs_alert, needs_active_alert, needs_unacknowledged_alert)),
    on_page("acknowledge_all", ALERTS, ("A",), "Acknowledge all active alerts", checks=(needs_write,)),
    on_page("silence", ALERTS, ("z",), "Silence its notifications for a while",
            label="silence", checks=(needs_write, needs_alert, needs_active_alert)),
    on_page("open", STUDIES, ("enter", "l", "right"), "Open the run of the trial", label="open", checks=(needs_run,)),
    on_page("study_new", STUDIES, ("ctrl+n",), "Start a study from a file", label="study", checks=(needs_write,)),
    on_page("study_next", STUDIES, ("tab",), "Next study", label="next", help="Next, previous study"),
    on_page("study_previous", STUDIES, ("shift+tab",), "Previous study", help="Next, previous study"),
    on_page("study_view", STUDIES, ("v",), "The trials by value, parameters, curves, objectives", label="view"),
    on_page("stop", STUDIES, ("s",), "Stop the trial; its point counts as stopped",
            label="stop", checks=(needs_write, needs_run, needs_active_run)),
    on_page("prune", STUDIES, ("x",), "Cut the trial short, as the pruner does",
            label="prune", checks=(needs_write, needs_run, needs_active_run)),
    on_page("keep", STUDIES, ("e",), "Keep the pruner from cutting the trial short",
            label="protect", checks=(needs_write, needs_run, needs_active_run)),
    on_page("enqueue", STUDIES, ("N",), "Add a trial like this one", label="trial", checks=(needs_write, needs_study)),
    on_page("rerun", STUDIES, ("r",), "Resume the study, or extend it",
            label="extend", checks=(needs_write, needs_study)),
    on_page("study_pause", STUDIES, ("P",), "Pause or resume the study",
            label="pause", checks=(needs_write, needs_study, needs_live_study)),
    on_page("study_stop", STUDIES, ("X",), "Stop the study and its trials",
            checks=(needs_write, needs_study, needs_active_study)),
    on_page("launch", STUDIES, ("n",), "Launch a profile", label="new run", checks=(needs_write,), is_spare=True),
    on_page("compare", STUDIES, ("c",), "Compare the curves of the best trials", label="compare", checks=(needs_run,)),
    on_page("filter", TABLES, ("slash",), "Filter the rows", label="filter"),
    on_page("fold", OVERVIEW, ("a",), "Charts of all GPUs, or a row for each", label="charts", is_spare=True),
    on_page("mark", OVERVIEW, ("space",), "Mark the run, to act on all marked",
            label="mark", checks=(needs_run,), is_spare=True),
    on_page("unmark", OVERVIEW, ("escape",), "Unmark all runs", label="unmark"),
    on_page("sort", TABLES, ("o",), "Change the sort order", label="sort", is_spare=True),
    on_page("back", COMPARE, ("escape", "backspace"), "Leave the crosshair; then the page", label="back"),
    on_page("back", ("processes", "gpu", "alerts", "studies"), ("escape", "backspace", "h", "left"), "Back",
            label="back"),
    on_page("choose", PROFILES, ("enter",), "Open the form with this profile or command", label="choose"),
    on_page("complete", PROFILES, ("tab",), "Complete the path of a file in the command", label="complete"),
    on_page("choose", STUDY_FILES, ("enter",), "Start the study of this file, after a question", label="start"),
    on_page("start", LAUNCH, ("enter",), "Launch the run with these values",
            label="launch", checks=(needs_startable_form,)),
    on_page("preview", LAUNCH, ("ctrl+d",), "Command, environment and checks, without a start", label="dry run"),
    on_page("choose_gpus", LAUNCH, ("ctrl+g",), "Choose GPUs from a table of who is on them", label="GPUs"),
    on_page("ask_target", LAUNCH, ("ctrl+t",), "The queue and free GPUs of the target"),
    on_page("last_values", LAUNCH, ("ctrl+r",), "The values of the newest run of this profile"),
    on_page("cancel", LAUNCHING, ("escape", "ctrl+c"), "Back without launching", label="back"),
    # --- Go to
    goes_to("alert_moment", ALERTS, ("t",), "Go to when it was raised", label="time", checks=(needs_alert,)),
    goes_to("studies", (*WATCHED, "alerts"), ("S",), "Studies: trials and best values",
            label="studies", is_spare=True),
    goes_to("processes", ("overview", "alerts", "studies", *CHARTS, "gpu"), ("p",),
            "Processes on the GPUs and of runs", label="proc"),
    goes_to("gpu_detail", OVERVIEW, ("i",), "Everything about the GPU", label="GPU", checks=(needs_gpu,)),
    goes_to("compare", ("overview", "run"), ("c",), "Compare with other runs",
            label="compare", checks=(needs_run_or_marked,)),
    goes_to("alerts", WATCHED, ("exclamation_mark",), "Active and resolved alerts", label="alerts"),
    # --- Past
    of_past("time_type", (*WATCHED, "studies"), ("t",), "Go to a time: 03:12, -20m, 2026-11-20", label="time"),
    of_past("time_back", ALL, ("less_than_sign",), "Go back 10 s", label="back 10 s"),
    of_past("time_forth", ALL, ("greater_than_sign",), "Go forward 10 s", label="on 10 s", checks=(needs_past,)),
    of_past("time_back_far", ALL, (), "Go back 100 s"),
    of_past("time_forth_far", ALL, (), "Go forward 100 s", checks=(needs_past,)),
    of_past("tick_previous", ALL, ("left_square_bracket",), "Previous event or alert"),
    of_past("tick_next", ALL, ("right_square_bracket",), "Next event or alert", checks=(needs_past,)),
    of_past("live", ALL, ("L",), "Return to the present", label="live", checks=(needs_past,)),
    # --- Move
    moves("beginning", RUN, ("home", "g"), "Go to the beginning"),
    moves("focus_next", OVERVIEW, ("tab",), "Next of GPUs, runs, events",
            help="Next, previous of GPUs, runs, events"),
    moves("focus_previous", OVERVIEW, ("shift+tab",), "Previous of GPUs, runs, events",
            help="Next, previous of GPUs, runs, events"),
    moves("field_next", LAUNCH, ("down", "tab"), "Next field", help="Next, previous field"),
    moves("field_previous", LAUNCH, ("up", "shift+tab"), "Previous field", help="Next, previous field"),
    moves("value_next", LAUNCH, ("right",), "Next choice of the field; show the other parameters",
            label="change", help="Next, previous choice of the field; show, fold the other parameters"),
    moves("value_previous", LAUNCH, ("left",), "Previous choice of the field; fold the other parameters",
            help="Next, previous choice of the field; show, fold the other parameters"),
    moves("up", ALL, ("up", "k"), "Up a row", help="Up, down a row"),
    moves("down", ALL, ("down", "j"), "Down a row", help="Up, down a row"),
    moves("page_up", (*TABLES, *LISTS), ("pageup",), "Up a page", help="Up, down a page"),
    moves("page_down", (*TABLES, *LISTS), ("pagedown",), "Down a page", help="Up, down a page"),
    moves("page_up", ("run", "gpu"), ("pageup",), "Up a page", help="Up, down a page"),
    moves("page_down", ("run", "gpu"), ("pagedown", "space"), "Down a page", help="Up, down a page"),
    moves("up", LISTS, ("up",), "Up a row", help="Up, down a row"),
    moves("down", LISTS, ("down",), "Down a row", help="Up, down a row"),
    moves("first", (*TABLES, "compare"), ("home", "g"), "First", help="First, last"),
    moves("last", (*TABLES, "compare"), ("end", "G"), "Last", help="First, last"),
    # --- Everywhere
    everywhere("palette", ALL, ("ctrl+p", "colon"), "Find runs, studies, pages", label="find"),
    everywhere("help", (*ALL, *LAUNCHING), ("question_mark", "f1"), "Help", label="help"),
    everywhere("copy", ALL, ("ctrl+y", "Y"), "Copy to your clipboard"),
    everywhere("settings", ALL, ("comma", "f2"), "Settings: theme, characters, mouse, bell"),
    everywhere("palette", LAUNCHING, ("ctrl+p",), "Find runs, studies, pages", label="find"),
    everywhere("settings", LAUNCHING, ("f2",), "Settings: theme, characters, mouse, bell"),
    everywhere("suspend", (*ALL, *LAUNCHING), ("ctrl+z",), "Suspend to the shell; fg returns"),
    everywhere("leave", ALL, ("q", "ctrl+c"), "Quit the screen; runs continue", label="quit"),
)
# fmt: on


def actions_in(scope: str) -> list[Action]:
    """The actions of a page, in the order of the table."""
    return [action for action in ACTIONS if scope in action.scopes]


def find(name: str, scope: str) -> Action:
    """The action of this name on a page. Raises KeyError."""
    for action in ACTIONS:
        if action.name == name and scope in action.scopes:
            return action
    raise KeyError(name)
