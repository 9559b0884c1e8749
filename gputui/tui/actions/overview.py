"""What can be done on the overview, and what the page of a run shares with it: the order is that of the footers."""

from __future__ import annotations

from gputui.tui.actions.model import Action, act
from gputui.tui.actions.reasons import can_clear, can_move, can_open, can_stop, needs_gpu, needs_run, refused_here
from gputui.tui.actions.scopes import ALL, BOTH, COMPARE, OVERVIEW, PAGE, TABLES

OVERVIEW_ACTIONS: tuple[Action, ...] = (
    act("help", "question_mark f1", "help", "What is possible here, and how", (*ALL, "launch")),
    act("open", "enter l right", "open", "Open the page of the run or GPU under the cursor", OVERVIEW, can_open),
    act(
        "back",
        "escape backspace",
        "back",
        "Back: out of the whole page, the crosshair, a search, a filter; then home",
        PAGE,
    ),
    act("section_next", "tab", "section", "The next section of the page", PAGE, in_palette=False),
    act("launch", "n", "new", "Launch a run from a profile", BOTH, refused_here, sections="charts"),
    act("stop", "s", "stop", "Stop the run: it checkpoints and leaves", BOTH, can_stop),
    act("fold", "a", "all/each", "All GPUs together with their history, or each in a row", OVERVIEW),
    act("filter", "slash", "filter", "Show only rows in which the words occur", TABLES),
    act("up", "up k", "up", "The row above", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("down", "down j", "down", "The row below", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("first", "home g", "first", "The first row", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("last", "end G", "last", "The last row", (*TABLES, *COMPARE), shown=False, in_palette=False),
    act("page_above", "pageup", "page up", "A page of rows up", TABLES, shown=False, in_palette=False),
    act("page_below", "pagedown", "page down", "A page of rows down", TABLES, shown=False, in_palette=False),
    act(
        "focus_next",
        "tab",
        "focus",
        "From the GPUs to the runs, to the events",
        OVERVIEW,
        shown=False,
        in_palette=False,
    ),
    act("focus_previous", "shift+tab", "focus before", "The same backwards", OVERVIEW, shown=False, in_palette=False),
    act("gpu_detail", "i", "GPU", "Everything about the GPU under the cursor", OVERVIEW, needs_gpu, shown=False),
    act("mark", "space", "mark", "Mark the run for a comparison, or unmark it", OVERVIEW, needs_run, shown=False),
    act("sort", "o", "sort", "Sort the table in another way", TABLES, shown=False),
    act("queue_toggle", "P", "pause", "Pause the queue, or open it again", OVERVIEW, refused_here, shown=False),
    act("queue_up", "plus", "earlier", "Move a waiting run one place up in the queue", OVERVIEW, can_move, shown=False),
    act(
        "queue_down",
        "minus",
        "later",
        "Move a waiting run one place down in the queue",
        OVERVIEW,
        can_move,
        shown=False,
    ),
    act(
        "clear_gpu",
        "C",
        "clear",
        "Let runs have a GPU again that is in quarantine",
        ("overview", "gpu"),
        can_clear,
        shown=False,
    ),
)
