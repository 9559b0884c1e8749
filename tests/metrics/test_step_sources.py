"""An attempt's steps are those of its loss, where several sources count differently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.store.attempts import read_attempts
from gputui.store.metrics.queries import latest, points_json, ranks
from gputui.store.metrics.step_lines import StepLines
from tests.homes import add_attempt
from tests.metrics.conftest import NOW, RUN, MetricsHome

PATTERN = r"samples (?P<step>\d+)/(?P<total_steps>\d+) loss (?P<loss>\S+)"
PRINTED = "samples 32/512 loss 3.0\nsamples 64/512 loss 2.0\n"
WRITTEN = '{"step": 1, "train/lr": 0.5, "total_steps": 16}\n{"step": 2, "train/lr": 0.25, "total_steps": 16}\n'


@pytest.fixture
def home(tmp_path: Path) -> Iterator[MetricsHome]:
    """A run whose output has the loss by samples, and whose JSON lines count the optimizer's steps."""
    patterns = (PATTERN, r"test after epoch (?P<step>\d+): accuracy (?P<accuracy>\S+)")
    home = MetricsHome(tmp_path, kind="output", name="attempts/1/output.log", metrics={"patterns": patterns})
    home.ingest.open_source(RUN, str(tmp_path / "log.jsonl"), "jsonl")
    home.file.parent.mkdir(parents=True)
    with home.connection:
        home.ingest.begin_attempt(RUN, 1, "output.log")
        add_attempt(home.connection, RUN)
    yield home
    home.close()


def steps(home: MetricsHome) -> tuple[Any, ...]:
    (attempt,) = read_attempts(home.connection, RUN)
    newest = latest(home.connection, RUN)
    assert {line.step for line in ranks(home.connection, RUN, 1)} <= {attempt.last_step, None}
    line = StepLines(home.connection, RUN).newest(1)
    newest_step = None if line is None else line.step
    return attempt.first_step, attempt.last_step, newest.get("total_steps"), newest_step


@pytest.mark.parametrize("order", ["output first", "file first", "file alone"])
def test_the_loss_decides(home: MetricsHome, tmp_path: Path, order: str) -> None:
    writes = {"output": lambda: home.append(PRINTED), "file": lambda: (tmp_path / "log.jsonl").write_text(WRITTEN)}
    for name in sorted(writes, key=lambda name: not order.startswith(name)):
        if order != "file alone" or name == "file":
            writes[name]()
            home.pump()
    expected = (1, 2, 16.0, 2) if order == "file alone" else (32, 64, 512.0, 64)
    assert steps(home) == expected
    # Each metric keeps the steps of its source.
    assert [point["step"] for point in points_json(home.connection, RUN, ["train/lr"])] == [1, 2]


def test_what_comes_later_counts_in_the_same_way(home: MetricsHome, tmp_path: Path) -> None:
    home.append(PRINTED)
    home.pump()
    (tmp_path / "log.jsonl").write_text(WRITTEN)
    home.pump()
    home.append("samples 96/512 loss 1.0\n")
    home.pump()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 999, "train/lr": 0.1}\n')
    home.pump()
    assert steps(home) == (32, 96, 512.0, 96)


def test_a_file_that_takes_the_loss_takes_the_steps(home: MetricsHome, tmp_path: Path) -> None:
    home.append(PRINTED)
    home.pump()
    (tmp_path / "log.jsonl").write_text(WRITTEN.replace("train/lr", "loss"))
    home.pump()
    assert steps(home) == (1, 2, 16.0, 2)


@pytest.mark.parametrize("size", [1, 1000])
def test_a_test_before_the_training_is_no_step_of_it(home: MetricsHome, size: int) -> None:
    lines = [
        "test after epoch 0: accuracy 0.1\n",
        *PRINTED.splitlines(keepends=True),
        "test after epoch 999: accuracy 1\n",
    ]
    for start in range(0, len(lines), size):
        home.append("".join(lines[start : start + size]))
        home.pump()
    assert steps(home) == (32, 64, 512.0, 64)
    assert [point["step"] for point in points_json(home.connection, RUN, ["accuracy"])] == [0, 999]


@pytest.mark.parametrize(
    ("written_at", "first_step_at"),
    [
        pytest.param(NOW - 100, NOW - 100, id="as it starts"),
        pytest.param(NOW - 80, NOW - 80, id="read long after it was written"),
        pytest.param(5.0, NOW, id="before the attempt's start: a wrong clock"),
        pytest.param(NOW + 3600, NOW, id="after it was read: a wrong clock"),
    ],
)
def test_the_first_step_is_dated_by_its_line_if_that_can_be(
    home: MetricsHome, tmp_path: Path, written_at: float, first_step_at: float
) -> None:
    with home.connection:
        home.connection.execute("UPDATE attempts SET started_at = ?", (NOW - 100,))
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1, "loss": 2.0, "time": {written_at}}}\n')
    home.pump()
    (attempt,) = read_attempts(home.connection, RUN)
    assert attempt.first_step_at == first_step_at
