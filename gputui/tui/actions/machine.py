"""What can be done on the pages of processes and of a GPU."""

from __future__ import annotations

from gputui.tui.actions.model import Action, act
from gputui.tui.actions.reasons import can_signal, needs_process, needs_run
from gputui.tui.actions.scopes import GPU, PROCESSES

MACHINE_ACTIONS: tuple[Action, ...] = (
    # the page of processes
    act(
        "processes",
        "p",
        "processes",
        "The processes on the GPUs and of the runs",
        ("overview", "gpu", "run", "compare", "alerts"),
        shown=False,
    ),
    act("processes_back", "escape backspace h left", "back", "Back to where you came from", PROCESSES),
    act("process_detail", "enter i", "detail", "Everything known of the process", PROCESSES, needs_process),
    act("signal", "s", "signal", "Choose a signal for the process", PROCESSES, can_signal),
    act("process_tree", "v", "tree", "Children behind their parents, or all in the order", PROCESSES),
    act("process_group", "b", "group", "Group by GPU, by run, or not at all", PROCESSES),
    act("sort_reverse", "O", "reverse", "Sort the other way round", PROCESSES, shown=False),
    act(
        "process_run",
        "r l right",
        "run",
        "Open the page of the run that it belongs to",
        PROCESSES,
        needs_run,
        shown=False,
    ),
    # the page of a GPU
    act("open_run", "enter", "run", "Open the page of the run that has this GPU", GPU, needs_run),
    act("gpu_back", "escape backspace h left", "back", "Back to where you came from", GPU),
    act("gpu_next", "tab", "next GPU", "The next GPU", GPU, in_palette=False),
    act("gpu_previous", "shift+tab", "GPU before", "The GPU before", GPU, shown=False, in_palette=False),
    act("span_longer", "plus", "longer", "Charts that reach further back: 10 min, 1 h, 6 h, a day", GPU),
    act("span_shorter", "minus", "shorter", "Charts of a shorter time", GPU, shown=False),
    act("body_up", "up k", "up", "A line up", GPU, shown=False, in_palette=False),
    act("body_down", "down j", "down", "A line down", GPU, shown=False, in_palette=False),
    act("body_page_up", "pageup", "page up", "A page up", GPU, shown=False, in_palette=False),
    act("body_page_down", "pagedown space", "page down", "A page down", GPU, shown=False, in_palette=False),
)
