"""What belongs together among the actions: the footer's three parts and the help's headings."""

from __future__ import annotations

from typing import Final

_NAMES: Final = {
    "Runs": "choose open launch clone stop resume restart remove mark start last_values queue_toggle queue_up "
    "queue_down maximise open_run process_run alert_run hide leave_out",
    "This page": "",
    "Go to": "processes gpu_detail compare alerts studies study_next study_previous back",
    "Past": "time_back time_forth time_back_far time_forth_far time_type tick_previous tick_next live alert_moment",
    "Everywhere": "palette help settings theme mouse copy suspend leave cancel",
    "Move": "up down first last page_up page_down beginning focus_next focus_previous section_next section_previous "
    "section_charts section_ranks section_log section_story section_params cursor_right cursor_left pan_left pan_right "
    "marker_previous marker_next hit_next hit_previous field_next field_previous profile_next profile_previous "
    "gpu_next gpu_previous metric_next metric_previous",
}

HEADINGS: Final = tuple(_NAMES)
"""The help's headings in their order. An action without one belongs to the page."""

_HEADING_OF: Final = {name: heading for heading, names in _NAMES.items() for name in names.split()}

ALWAYS: Final = ("palette", "help", "leave", "cancel")
"""The end of the footer, at every width."""

_SPARE: Final = ("fold", "mark", "sort")
_GO: Final = ("processes", "gpu_detail", "compare", "alerts", "time_type", "alert_moment")


def heading_of(name: str) -> str:
    """The heading of an action in the help."""
    return _HEADING_OF.get(name, "This page")


def footer_place(name: str) -> tuple[int, int]:
    """Where in the footer an action is: its part (0 what is done here, 1 where to go, 2 how to find one's way), and
    its place among the others of its part."""
    if name in ALWAYS:
        return 2, ALWAYS.index(name) + 1
    if name in ("filter", "find", "metric_find"):
        return 2, 0
    return (1, _GO.index(name)) if name in _GO else (0, 0)


def footer_rank(name: str) -> int:
    """What is dropped first where room is short, the highest first: 0 is always there, 1 what is done here, 2 the
    filter, 3 where to go, 4 what only a wide screen has room for."""
    part, place = footer_place(name)
    if name in _SPARE:
        return 4
    return 0 if part == 2 and place else {0: 1, 2: 2, 1: 3}[part]
