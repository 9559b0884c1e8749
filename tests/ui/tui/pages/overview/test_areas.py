"""How the lines of the screen are shared out."""

from __future__ import annotations

import itertools

import pytest

from gputui.ui.tui.pages.overview.areas import AreaNeeds, Rows, share_rows


def shared(
    width: int, height: int, *, gpus: int = 8, runs: int = 7, events: int = 2, processes: int = 0, hidden: int = 0
) -> Rows:
    """The areas' shares of so many lines."""
    needs = AreaNeeds(
        lambda most: min(most, gpus + 3 if gpus else 3),
        runs,
        processes,
        others=processes,
        hidden=hidden,
        events=events,
        has_charts=gpus > 0,
    )
    return share_rows(width, height, needs)


def test_the_lines_are_shared_out_without_rest() -> None:
    wrong = []
    areas = [(8, 4, 3, 0), (8, 0, 3, 5), (0, 0, 0, 0), (16, 40, 50, 16), (1, 1, 0, 1)]
    for width, height, (gpus, runs, events, processes) in itertools.product((50, 80, 120, 200), range(4, 70), areas):
        rows = shared(width, height, gpus=gpus, runs=runs, events=events, processes=processes)
        used = rows.gpus + rows.runs + rows.charts + rows.events
        if not rows.is_beside:
            used += rows.processes
        if used != height or min(rows) < 0 or (height >= 20 and min(rows.runs, rows.events) < 2):
            wrong.append((width, height, gpus, runs, events, rows))
    assert wrong == []


def test_no_row_is_blank_while_something_is_hidden() -> None:
    assert shared(80, 21) == Rows(11, 7, events=3)
    assert shared(120, 34, runs=8, events=40) == Rows(11, 10, charts=5, events=8)
    assert shared(120, 34, runs=0, processes=8, events=3) == Rows(11, 3, charts=10, processes=5, events=5)
    assert shared(200, 48, runs=8, processes=5, events=40) == Rows(
        11, 10, charts=11, processes=16, events=16, is_beside=True
    )
    # A process of no run is in sight where rows are free for it and the charts, or if no row of a GPU shows it.
    assert shared(120, 33, runs=0, processes=3, events=0) == Rows(11, 3, charts=11, processes=5, events=3)
    assert shared(120, 48, runs=4, processes=3, events=40) == Rows(11, 6, charts=11, processes=6, events=14)
    assert shared(120, 33, runs=7, processes=3, events=40) == Rows(11, 9, charts=5, events=8)
    assert shared(120, 33, runs=7, processes=3, events=40, hidden=1) == Rows(11, 9, processes=5, events=8)
    # Runs never begin below the middle, and an alert takes no chart.
    assert all(shared(width, height).gpus <= height // 2 + 1 for width in (80, 200) for height in range(20, 60))
    assert share_rows(120, 32, AreaNeeds(lambda _: 11, 8, 0, others=0, hidden=0, events=40), passing=2).charts > 0


@pytest.mark.parametrize(("width", "height", "least"), [(80, 21, 2), (120, 34, 4), (140, 43, 7)])
@pytest.mark.parametrize("passing", [0, 1])
def test_events_are_in_sight_beside_many_runs_and_a_process_of_no_run(
    width: int, height: int, least: int, passing: int
) -> None:
    needs = AreaNeeds(lambda _: 11, runs=9, processes=7, others=1, hidden=0, events=40)
    rows = share_rows(width, height - passing, needs, passing=passing)
    frame = 2 if width >= 100 else 1
    assert rows.events - frame >= least
    assert bool(rows.charts) == bool(share_rows(width, height, needs).charts), "no alert takes the charts away"
