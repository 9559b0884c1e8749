"""The parameters of a run, and what recovery changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import UNKNOWN
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.run_history import DecisionView, IncidentView
from gputui.ui.tui.data.run_details import launched_code
from gputui.ui.tui.data.snapshot import RunPage
from gputui.ui.tui.layout.columns import Column, fit_line, head_line, place, row_line
from gputui.ui.tui.layout.words import dated_clock


def parameter_lines(page: RunPage, now: float, width: int) -> list[Line]:
    """The launched and current value of each parameter, the incidents that changed them, and the code version."""
    launched, current = page.launched, page.run.params
    names = [*launched, *(name for name in current if name not in launched)]
    words = launched_code(page.run)
    code: list[Line] = [] if words is None else [fit_line([(" code ", "label"), (words, "text")], width)]
    if not names:
        return [fit_line([("  This profile has no parameters.", "dim")], width), *code]
    why = _changed_by(page.incidents, page.decisions, now)
    names.sort(key=lambda name: launched.get(name) == current.get(name))
    items = [(name, _value(launched, name), _value(current, name), why.get(name, "")) for name in names]
    name_width = min(max(cell_width(clean(name)) for name in names), max(8, width // 3)) + 1
    widest = max(cell_width(value) for _, *values, _ in items for value in values)
    reasons = max(cell_width(reason) for *_, reason in items)
    room = (width - name_width - max(4, min(reasons, width // 3)) - 6) // 2
    placed = place(_parameter_columns(name_width, max(_LEAST_VALUE, min(widest, room))), width - 1)
    lines = [[(" ", "text"), *head_line(placed, width - 1)]]
    lines += [[(" ", "text"), *row_line(placed, item, width - 1)] for item in items]
    return [*lines, *code]


_Parameter = tuple[str, str, str, str]
_LEAST_VALUE = 9


def _parameter_columns(name_width: int, value_width: int) -> tuple[Column[_Parameter], ...]:
    def changed(item: _Parameter) -> str:
        return "warn" if item[1] != item[2] else "text"

    def launched(item: _Parameter, width: int) -> list[Span]:
        return [(item[1], "dim" if item[1] == item[2] else "text")]

    return (
        Column("name", name_width, lambda item, width: [(clip_middle(clean(item[0]), width), "text")]),
        Column("launched", value_width, launched, ">", gap=1),
        Column("now", value_width, lambda item, width: [(item[2], changed(item))], ">", gap=1),
        Column("", 4, lambda item, width: [(item[3], "dim")], grow=1),
    )


def _value(params: Mapping[str, object], name: str) -> str:
    if name not in params:
        return UNKNOWN
    value = params[name]
    return clean(value) if isinstance(value, str) else json.dumps(value)


def _changed_by(incidents: Sequence[IncidentView], decisions: Sequence[DecisionView], now: float) -> dict[str, str]:
    kinds = {incident.incident_id: incident for incident in incidents}
    why: dict[str, str] = {}
    for decision in decisions:
        incident = kinds.get(decision.incident_id)
        for name in decision.params:
            reason = incident.kind.replace("_", " ") if incident else "recovery"
            why[name] = f"← {clean(reason)} {dated_clock(decision.at, now)}"
    return why
