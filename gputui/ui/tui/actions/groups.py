"""Groups of actions: the help's headings and the footer's three groups."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

_NAMES: Final = {
    "Runs": "choose open launch study_new clone label stop resume restart remove mark start ask_target last_values "
    "queue_toggle queue_up queue_down maximise open_run process_run alert_run hide leave_out",
    "This page": "",
    "Go to": "processes gpu_detail compare alerts studies study_next study_previous back",
    "Past": "time_back time_forth time_back_far time_forth_far time_type tick_previous tick_next live alert_moment",
    "Everywhere": "palette help settings theme mouse copy suspend leave cancel",
    "Move": "up down first last page_up page_down beginning focus_next focus_previous section_next section_previous "
    "section_charts section_ranks section_log section_story section_params cursor_right cursor_left pan_left pan_right "
    "marker_previous marker_next hit_next hit_previous field_next field_previous value_next value_previous "
    "profile_next profile_previous "
    "gpu_next gpu_previous metric_next metric_previous",
}

HEADINGS: Final = tuple(_NAMES)
"""The help's headings in their order. Actions without one are under "This page"."""

_HEADING_OF: Final = {name: heading for heading, names in _NAMES.items() for name in names.split()}


class FooterGroup(IntEnum):
    """The footer's groups, from left to right."""

    HERE = 0
    GO_TO = 1
    FIND = 2


_FILTERS: Final = ("filter", "find", "metric_find")
_GO_TO: Final = ("processes", "gpu_detail", "compare", "alerts", "time_type", "alert_moment")
_WIDE_ONLY: Final = ("fold", "mark", "sort")

ALWAYS_SHOWN: Final = ("palette", "help", "leave", "cancel")
"""The end of the footer, at every width."""


def heading_of(name: str) -> str:
    """The heading of an action in the help."""
    return _HEADING_OF.get(name, "This page")


def footer_group(name: str) -> FooterGroup:
    """The group of an action in the footer."""
    if name in ALWAYS_SHOWN or name in _FILTERS:
        return FooterGroup.FIND
    return FooterGroup.GO_TO if name in _GO_TO else FooterGroup.HERE


def footer_order(name: str) -> tuple[FooterGroup, int]:
    """Sort key of an action in the footer, from left to right; equal keys keep the table's order."""
    group = footer_group(name)
    if name in ALWAYS_SHOWN:
        return group, 1 + ALWAYS_SHOWN.index(name)
    return group, _GO_TO.index(name) if name in _GO_TO else 0


def drop_rank(name: str) -> int:
    """Sort key of an action in a narrow footer: the highest are dropped first."""
    if name in ALWAYS_SHOWN:
        return 0
    if name in _WIDE_ONLY:
        return 4
    return {FooterGroup.HERE: 1, FooterGroup.FIND: 2, FooterGroup.GO_TO: 3}[footer_group(name)]
