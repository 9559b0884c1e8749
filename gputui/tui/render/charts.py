"""The curves of a run's page."""

from __future__ import annotations

from gputui.charts.chart import Curve, Line, Marker, XAxis, YAxis, chart
from gputui.tui.render.columns import fit_line
from gputui.tui.snapshot import RunPage, Series

WIDE = 100
"""From this width on four charts stand two by two; below it the loss has the whole width."""

LEAST_HEIGHT = 5

THROUGHPUT = 1
"""Its place among the series; its axis begins at 0, so that a small change looks small."""

_TITLES = {"lr": "learning rate", "grad_norm": "gradient norm"}


def curve_lines(page: RunPage, width: int, height: int, *, is_log: bool) -> list[Line]:
    """Loss, throughput, learning rate and gradient norm over the step, with a mark where each new attempt began."""
    series = list(page.series.values())
    if not series or width < 20:
        return []
    if height < 2 * LEAST_HEIGHT:
        return _one(page, series[0], 0, width, height, is_log=is_log)
    half = (width - 1) // 2
    if width >= WIDE or height < 3 * LEAST_HEIGHT:
        top = height // 2
        return [
            *_pair(page, series[0], series[1], (0, 1), half, width, height - top, is_log=is_log),
            *_pair(page, series[2], series[3], (2, 3), half, width, top),
        ]
    third = max(LEAST_HEIGHT, height * 3 // 10)
    return [
        *_one(page, series[0], 0, width, height - 2 * third, is_log=is_log),
        *_one(page, series[1], 1, width, third),
        *_pair(page, series[2], series[3], (2, 3), half, width, third),
    ]


def _pair(
    page: RunPage,
    left: Series,
    right: Series,
    colours: tuple[int, int],
    half: int,
    width: int,
    height: int,
    *,
    is_log: bool = False,
) -> list[Line]:
    first = _one(page, left, colours[0], half, height, is_log=is_log)
    second = _one(page, right, colours[1], width - half - 1, height)
    return [fit_line([*a, (" ", "text"), *b], width) for a, b in zip(first, second, strict=True)]


def _one(page: RunPage, series: Series, colour: int, width: int, height: int, *, is_log: bool = False) -> list[Line]:
    return chart(
        [Curve(series.bins, f"series.{colour}", "", series.last)],
        width=width,
        height=height,
        title=" " + _TITLES.get(series.name, series.name.replace("_per_s", "/s").replace("_", " ")),
        x_axis=XAxis("step"),
        y_axis=YAxis("log" if is_log else "linear", low=0.0 if colour == THROUGHPUT else None),
        markers=attempt_marks(page),
    )


def attempt_marks(page: RunPage) -> list[Marker]:
    """Where each attempt but the first began."""
    marks = []
    for attempt in page.attempts:
        step = attempt.resumed_step if attempt.resumed_step is not None else attempt.first_step
        if attempt.number > 1 and step is not None:
            marks.append(Marker(float(step), f"↻{attempt.number - 1}"))
    return marks
