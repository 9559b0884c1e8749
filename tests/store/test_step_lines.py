"""Lines of steps and their losses, from few rows."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from gputui.store.metrics.losses import finite_losses, last_sound_step, unsound_since
from gputui.store.metrics.reached_steps import latest_step
from gputui.store.metrics.roles import set_roles
from gputui.store.metrics.step_lines import StepLines, up_to_step
from tests.homes import Home, add_boundary, add_line, add_source


@pytest.fixture
def store(home: Home) -> sqlite3.Connection:
    home.run("a-1")
    add_source(home.connection)
    set_roles(home.connection, "a-1", "loss", best=None, mode=None)
    return home.connection


def boundary(store: sqlite3.Connection, attempt: int, offset: int, generation: int = 0) -> None:
    add_boundary(store, attempt, offset=offset, generation=generation)


def line(store: sqlite3.Connection, attempt: int, offset: int, step: int | None, at: float | None, **more: Any) -> None:
    add_line(store, step, at, {"step": step, "loss": 1.0, **more}, attempt=attempt, offset=offset)


def first_at(lines: StepLines, attempt: int) -> float | None:
    first = lines.first(attempt)
    return None if first is None else first.at


def last_at(lines: StepLines, attempt: int, step: int) -> float | None:
    last = lines.newest(attempt, up_to_step(step))
    return None if last is None else last.at


def bad_since(lines: StepLines, attempt: int) -> tuple[int, float] | None:
    line = unsound_since(lines, attempt)
    return None if line is None else (line.step, line.at)


def test_the_first_step_and_the_last_one_kept(store: sqlite3.Connection) -> None:
    boundary(store, 1, 0)
    boundary(store, 2, 400)
    line(store, 1, 0, 0, 99.0, event="start")
    for step in range(1, 40):
        line(store, 1, step * 10, step, 100.0 + step)
    for step in range(31, 50):
        line(store, 2, 400 + step, step, 200.0 + step)
    lines = StepLines(store, "a-1")
    assert [first_at(lines, 1), first_at(lines, 2)] == [101.0, 231.0]
    assert [last_at(lines, 1, 30), last_at(lines, 1, 1000)] == [130.0, 139.0]
    assert [last_at(lines, 2, 30), last_at(lines, 2, 35)] == [None, 235.0]
    assert [first_at(lines, 3), last_at(lines, 1, 0)] == [None, None]
    assert StepLines(store, "b-1").first(1) is None


def test_first_and_last_losses_that_are_finite(store: sqlite3.Connection) -> None:
    for step, loss in enumerate((9.0, "NaN", 8.0, 7.0, None, 6.0)):
        line(store, 1, step, step, 100.0 + step, loss=loss)
    lines = StepLines(store, "a-1")
    assert finite_losses(lines, 1, 3) == [9.0, 8.0, 7.0]
    assert sorted(finite_losses(lines, 1, 2, up_to_step=4)) == [7.0, 8.0]
    assert finite_losses(lines, 2, 3) == []


def test_steps_that_are_counted_within_an_epoch_come_again(store: sqlite3.Connection) -> None:
    for offset, step in enumerate((0, 1, 2, 2, 3)):
        line(store, 1, offset, step, at=None)
    for offset, step in enumerate((0, 1, 2, 0, 1), 10):
        line(store, 2, offset, step, at=None)
    lines = StepLines(store, "a-1")
    assert [lines.repeats(1, 0), lines.repeats(1, 2), lines.repeats(2, 0)] == [False, False, True]


def test_lines_of_a_trainer_state_come_with_checkpoints(store: sqlite3.Connection) -> None:
    assert StepLines(store, "a-1").come_with_checkpoints() is False
    store.execute("UPDATE metric_sources SET format = 'hf'")
    assert StepLines(store, "a-1").come_with_checkpoints() is True
    assert StepLines(store, "b-1").come_with_checkpoints() is False


def test_lines_without_step_or_time_tell_nothing(store: sqlite3.Connection) -> None:
    line(store, 1, 0, step=None, at=5.0)
    line(store, 1, 10, 3, at=None)
    lines = StepLines(store, "a-1")
    assert lines.first(1) is None
    assert lines.newest(1) is None


def test_after_its_last_line_an_attempt_is_as_far_as_the_widest_gap_of_those_before(store: sqlite3.Connection) -> None:
    """Also behind attempts that ended before their second line."""
    boundary(store, 1, 0)
    for place, step in enumerate((0, 7, 14)):
        line(store, 1, place * 10, step, 100.0 + step, time="1")
    for attempt in range(2, 9):
        boundary(store, attempt, attempt * 100)
    line(store, 8, 800, 1, 301.0, time="1")
    lines = StepLines(store, "a-1")
    assert latest_step(lines, 8, 306.0, 290.0) == 7
    assert latest_step(lines, 1, 103.0, 90.0) == 6


def test_a_single_line_does_not_tell_how_far_an_attempt_has_come(store: sqlite3.Connection) -> None:
    boundary(store, 1, 0)
    line(store, 1, 0, 1, 101.0, time="1")
    assert latest_step(StepLines(store, "a-1"), 1, 120.0, 90.0) is None


def test_the_loss_has_the_name_that_the_run_gives_it(store: sqlite3.Connection) -> None:
    names = ("train/loss", "train.loss", "training loss", "loss[0]", "L'", "$loss")
    for place, name in enumerate(names):
        set_roles(store, "a-1", name, best=None, mode=None)
        for step, loss in enumerate((9.0, "NaN")):
            line(store, 1, 20 * place + 10 * step, step, 100.0 + step, **{name: loss})
        lines = StepLines(store, "a-1")
        assert (finite_losses(lines, 1, 1), last_sound_step(lines, 1)) == ([9.0], 0), name
        assert bad_since(lines, 1) == (1, 101.0), name
        store.execute("DELETE FROM metrics")


def test_since_when_no_loss_is_finite(store: sqlite3.Connection) -> None:
    lines = StepLines(store, "a-1")
    assert unsound_since(lines, 1) is None
    line(store, 1, 10, 1, 101.0)
    line(store, 1, 20, 2, 102.0, loss="NaN")
    line(store, 1, 30, 3, 103.0)
    assert unsound_since(lines, 1) is None
    line(store, 1, 40, 4, 104.0, loss="NaN")
    line(store, 1, 50, 5, 105.0, loss="Infinity")
    line(store, 1, 60, 6, 106.0, event="checkpoint", loss="")
    boundary(store, 2, 100)
    line(store, 2, 110, 5, 201.0)
    assert (bad_since(lines, 1), bad_since(lines, 2)) == ((4, 104.0), None)
