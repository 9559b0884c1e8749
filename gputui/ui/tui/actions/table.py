"""Every action, declared once; keys, footer, help and palette are made from this table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal, cast

from msgspec import Struct

from gputui.ui.tui.actions.context import MARKED_ACTIONS, Context, marked_count, marked_refusal, refusal
from gputui.ui.tui.actions.keys import key_word

Heading = Literal["Runs", "This page", "Go to", "Past", "Everywhere", "Move"]
"""A heading of the help. What is below Move, the palette leaves out."""

TIME_ACTIONS = ("time_back", "time_forth", "live")

SHOWN_IF: Mapping[str, Callable[[Context], bool]] = {
    **dict.fromkeys(TIME_ACTIONS, lambda context: context.past_at is not None),
    "studies": lambda context: context.has_studies,
    "clear_gpu": lambda context: context.gpu is not None and context.gpu.uuid in context.quarantined,
    "unmark": lambda context: bool(context.marked),
    # In the list of runs the cursor is always on one, if there is any.
    **dict.fromkeys(
        ("rerun", "stop"), lambda context: context.section != "runs" or refusal("row_run", context) is None
    ),
}
"""When the footer has an action that most screens have no use for."""


class Action(Struct, frozen=True):
    """One action, carried out by a method ``do_<name>``.

    ``label`` is a word for the footer, which has it for these ``sections`` of a run's page, or all; narrow footers
    leave out what ``is_spare``. ``tooltip`` is a phrase for the palette, ``help`` one for the help, for several.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    tooltip: str
    help: str
    scopes: tuple[str, ...]
    heading: Heading
    checks: str
    sections: tuple[str, ...]
    is_spare: bool = False

    def why_not(self, context: Context) -> str | None:
        if self.is_of_marked(context):
            return marked_refusal(self.name, context)
        return refusal(self.checks, context)

    def is_of_marked(self, context: Context) -> bool:
        return bool(context.marked) and self.name in MARKED_ACTIONS

    def is_offered(self, context: Context) -> bool:
        """Return whether footer and palette have it: not where it would do nothing with any marked run."""
        return not self.is_of_marked(context) or marked_count(self.name, context) > 0

    def keys_in(self, context: Context) -> tuple[str, ...]:
        """Its keys on a page: those of the settings, else those of the table."""
        return context.keys.get(self.name, self.keys)

    def key_word(self, context: Context) -> str:
        return "".join(key_word(key, is_ascii=context.is_ascii) for key in self.keys_in(context)[:1])

    def is_shown(self, context: Context) -> bool:
        """Return whether the footer has it here, if there is room."""
        is_here = context.scope != "run" or not self.sections or context.section in self.sections
        return bool(self.label) and is_here and SHOWN_IF.get(self.name, bool)(context)


_PAGES = {
    "charts": "run compare",
    "tables": "overview processes alerts studies",
    "watched": "overview processes compare run gpu",
    "all": "overview processes alerts studies run gpu compare",
    "lists": "profiles study_files",
    "launching": "profiles study_files launch",
}
"""Words of the table for several pages."""

# Below each heading lines of pages, name, keys, footer label, words, checks, sections. Several names have keys for
# each, and words for all: "Zoom {in|out}". The footer has the actions in this order, narrow ones without those whose
# label begins with ~.
_TABLE = """
[This page]
run | back | escape backspace | back | Back, also from crosshair or full page
run | section_next section_previous | tab / shift+tab | section | {Next|Previous} section
run | find | slash | filter | Filter the charts, or search the log

[Move]
run | section_charts section_ranks section_log section_story section_params | 1 / 2 / 3 / 4 / 5 |  | \
    {Charts|Ranks|Log|Timeline|Params}

[Runs]
overview | open | enter l right | open | Open the run or GPU | row
overview | launch | n | new | Launch a profile | change
run | launch | n | ~new | Launch a profile | change | charts
overview run | rerun | r | rerun | Resume, restart or copy the run | change study|change run
overview run | stop | s | stop | Stop the run after a checkpoint | change study study_active|change run active
overview run | resume |  | resume | Resume from the newest checkpoint | change run ended resumable
overview run | restart |  | restart | Restart the run from step 0 | change run settled
overview run | clone |  | copy | Copy the run with changes | change run
overview run | label | d |  | Labels: name, tags, note | change run
overview run | remove | delete |  | Remove the run | change run not_ending idle
overview | queue_toggle | P |  | Pause or resume the queue, or a study | change study study_live|change
overview | queue_up queue_down | plus / minus |  | Move a waiting run {up|down} in the queue | change run queued
overview | study_new | ctrl+n |  | Start a study from a file | change

[This page]
overview gpu | clear_gpu | C | clear | Clear the quarantine | change quarantine
overview gpu | quarantine_gpu |  |  | Quarantine the GPU | change gpu sound
charts | cursor_right cursor_left | right l / left h | crosshair | Crosshair {right|left}; a log sideways |  | charts
charts | zoom_in zoom_out | plus / minus | zoom | Zoom {in|out} |  | charts
charts | zoom_all | 0 |  | Zoom out to the whole run
charts | pan_left pan_right | shift+left / shift+right |  | Pan {left|right}
run | marker_previous marker_next | ctrl+left / ctrl+right |  | {Previous|Next} checkpoint or incident
charts | smoothing_next | m | smooth | Smooth the curves, or not |  | charts
run | maximise | enter | full | Section or chart on the full page
charts | x_axis | x |  | X axis: steps, time, time trained, epochs
charts | log_axis | y |  | Logarithmic y axis of the chart
charts | smoothing_previous |  |  | Smooth the curves less
charts | layout |  |  | Layout of the charts: a grid, or fewer at once
charts | log_x_axis |  |  | Logarithmic x axis of all charts
run | pin | asterisk |  | Pin the chart to the top
run | export | E |  | Export the chart: SVG, CSV, PNG
run | by_rank |  |  | The metric in focus per rank, or as one curve
run | log_next log_previous | o / O | log | {Next|Previous} log |  | log
run | hit_next hit_previous | full_stop / semicolon | match | {Next|Previous} match in the log |  | log
run | grave_only | w | warnings | Only warnings and errors |  | log
run | traceback | e | traceback | Traceback of the rank that failed | traceback | log
run | check | V | check | Verify the newest checkpoint |  | params
run | follow | f end G | follow | Follow the end |  | log story
processes | process_detail | enter i | detail | Process details | process
processes | signal | s | signal | Send a signal to the process | change process
processes | environment | e | environment | Process environment | process
processes | open | r l right | run | Open the run of the process | run
processes | process_tree | v | tree | Processes as a tree, or a list
processes | process_group | b | group | Group by GPU, by run, or not at all
gpu | open_run | enter | run | Open the run on this GPU | run
gpu | gpu_next gpu_previous | tab / shift+tab | next | {Next|Previous} GPU
gpu | span_longer span_shorter | plus / minus | longer | {Longer|Shorter} time span
compare | open | enter | open | Open the page of the run | run
compare | metric_next metric_previous | tab full_stop / shift+tab semicolon | metric | {Next|Previous} metric
compare | find | slash | filter | Filter the charts
compare | cut | w | shortest | End the x axis with the shortest run, or the longest
compare | hide | space | hide | Hide or show the curve of the run | run
compare | leave_out | d delete |  | Take the run out | run
compare | sort | o | sort | Sort by best, last, steps, time, a parameter, or as chosen
compare | reverse | O |  | Reverse the sort order
compare | params | i |  | The parameters that differ | run
compare | code | e |  | How its code differs | run
compare | group |  |  | Group the runs by a parameter that differs
alerts | open | enter l right | run | Open the run of the alert | alert alert_run
alerts | acknowledge | a space | ack | Acknowledge the alert | change alert alert_active alert_new
alerts | acknowledge_all | A |  | Acknowledge all active alerts | change
alerts | silence | z | silence | Silence its notifications for a while | change alert alert_active
studies | open | enter l right | open | Open the run of the trial | run
studies | study_new | ctrl+n | study | Start a study from a file | change
studies | study_next study_previous | tab / shift+tab | next | {Next|Previous} study
studies | study_view | v | view | The trials by value, parameters, curves, objectives
studies | stop | s | stop | Stop the trial; its point counts as stopped | change run active
studies | prune | x | prune | Cut the trial short, as the pruner does | change run active
studies | keep | e | protect | Keep the pruner from cutting the trial short | change run active
studies | enqueue | N | trial | Add a trial like this one | change study
studies | rerun | r | extend | Resume the study, or extend it | change study
studies | study_pause | P | pause | Pause or resume the study | change study study_live
studies | study_stop | X |  | Stop the study and its trials | change study study_active
studies | launch | n | ~new run | Launch a profile | change
studies | compare | c | compare | Compare the curves of the best trials | run
tables | filter | slash | filter | Filter the rows
overview | fold | a | ~charts | Charts of all GPUs, or a row for each
overview | mark | space | ~mark | Mark the run, to act on all marked | run
overview | unmark | escape | unmark | Unmark all runs
tables | sort | o | ~sort | Change the sort order
compare | back | escape backspace | back | Leave the crosshair; then the page
processes gpu alerts studies | back | escape backspace h left | back | Back
profiles | choose | enter | choose | Open the form with this profile or command
profiles | complete | tab | complete | Complete the path of a file in the command
study_files | choose | enter | start | Start the study of this file, after a question
launch | start | enter | launch | Launch the run with these values | form
launch | preview | ctrl+d | dry run | Command, environment and checks, without a start
launch | choose_gpus | ctrl+g | GPUs | Choose GPUs from a table of who is on them
launch | ask_target | ctrl+t |  | The queue and free GPUs of the target
launch | last_values | ctrl+r |  | The values of the newest run of this profile
launching | cancel | escape ctrl+c | back | Back without launching

[Go to]
alerts | alert_moment | t | time | Go to when it was raised | alert
watched alerts | studies | S | ~studies | Studies: trials and best values
overview alerts studies charts gpu | processes | p | proc | Processes on the GPUs and of runs
overview | gpu_detail | i | GPU | Everything about the GPU | gpu
overview run | compare | c | compare | Compare with other runs | run_or_marked
watched | alerts | exclamation_mark | alerts | Active and resolved alerts

[Past]
watched studies | time_type | t | time | Go to a time: 03:12, -20m, 2026-11-20
all | time_back | less_than_sign | back 10 s | Go back 10 s
all | time_forth | greater_than_sign | on 10 s | Go forward 10 s | past
all | time_back_far |  |  | Go back 100 s
all | time_forth_far |  |  | Go forward 100 s | past
all | tick_previous | left_square_bracket |  | Previous event or alert
all | tick_next | right_square_bracket |  | Next event or alert | past
all | live | L | live | Return to the present | past

[Move]
run | beginning | home g |  | Go to the beginning
overview | focus_next focus_previous | tab / shift+tab |  | {Next|Previous} of GPUs, runs, events
launch | field_next field_previous | down tab / up shift+tab |  | {Next|Previous} field
launch | value_next value_previous | right / left | change | \
    {Next|Previous} choice of the field; {show|fold} the other parameters
all | up down | up k / down j |  | {Up|Down} a row
tables lists | page_up page_down | pageup / pagedown |  | {Up|Down} a page
run gpu | page_up page_down | pageup / pagedown space |  | {Up|Down} a page
lists | up down | up / down |  | {Up|Down} a row
tables compare | first last | home g / end G |  | {First|Last}

[Everywhere]
all | palette | ctrl+p colon | find | Find runs, studies, pages
all launching | help | question_mark f1 | help | Help
all | copy | ctrl+y Y |  | Copy to your clipboard
all | settings | comma f2 |  | Settings: theme, characters, mouse, bell
launching | palette | ctrl+p | find | Find runs, studies, pages
launching | settings | f2 |  | Settings: theme, characters, mouse, bell
all launching | suspend | ctrl+z |  | Suspend to the shell; fg returns
all | leave | q ctrl+c | quit | Quit the screen; runs continue
"""


def _actions(heading: Heading, row: str) -> Iterator[Action]:
    """The actions of a line of the table."""
    pages, names, all_keys, label, words, checks, sections = (*map(str.strip, row.split(" | ")), "", "")[:7]
    scopes = tuple(scope for page in pages.split() for scope in _PAGES.get(page, page).split())
    # The help has the words of all: "Zoom {in|out}" becomes "Zoom in, out".
    phrase = re.sub(r"\|(\w)", lambda part: f", {part[1].lower()}", words).translate({123: "", 125: ""})
    for place, (name, keys) in enumerate(zip(names.split(), all_keys.split("/"), strict=True)):
        own = re.sub("{(.*?)}", partial(_word, place), words)
        yield Action(name, tuple(keys.split()), "" if place else label.lstrip("~"), own, phrase, scopes, heading,
                     checks, tuple(sections.split()), is_spare=label.startswith("~"))  # fmt: skip


def _word(place: int, part: re.Match[str]) -> str:
    return part[1].split("|")[place]


def _read_table() -> Iterator[Action]:
    for part in _TABLE.strip("\n[").split("\n["):
        heading, _, rows = part.partition("]\n")
        for row in rows.strip().splitlines():
            yield from _actions(cast("Heading", heading), row)


ACTIONS = tuple(_read_table())


def actions_in(scope: str) -> list[Action]:
    """The actions of a page, in the order of the table."""
    return [action for action in ACTIONS if scope in action.scopes]


def find(name: str, scope: str) -> Action:
    """The action of this name on a page. Raises KeyError."""
    for action in ACTIONS:
        if action.name == name and scope in action.scopes:
            return action
    raise KeyError(name)
