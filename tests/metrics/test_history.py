"""The Hugging Face Trainer's log_history, rewritten with every checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics import history
from tests.tables import table

from .conftest import RUN, MetricsHome


class Trainer:
    """Writes trainer_state.json as the Trainer does: the whole history, into the checkpoint's folder."""

    def __init__(self, folder: Path) -> None:
        self.home = MetricsHome(folder, kind="hf", name="out/checkpoint-*/trainer_state.json")
        self.saved = 0

    def save(self, step: int, history: list[Any], *, cut: int | None = None) -> None:
        self.saved += 1
        file = self.home.folder / f"out/checkpoint-{step}/trainer_state.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"global_step": step, "log_history": history}, indent=2)
        file.write_text(text[:cut])
        os.utime(file, ns=(0, self.saved * 10**9))

    def steps(self) -> list[int]:
        return [step for _, step in self.home.stored()]


def entries(*steps: int, run: int = 1) -> list[dict[str, float]]:
    return [{"step": step, "loss": run / (step + 1), "learning_rate": 1e-4, "epoch": step / 100} for step in steps]


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    trainer = Trainer(tmp_path)
    trainer.home.begin()
    return trainer


def test_only_new_entries_are_stored(trainer: Trainer) -> None:
    home = trainer.home
    home.pump()
    trainer.save(20, entries(10, 20))
    home.pump()
    trainer.save(40, entries(10, 20, 30, 40), cut=90)  # being written
    home.pump()
    home.restart()
    assert trainer.steps() == [10, 20]
    trainer.save(40, entries(10, 20, 30, 40))
    home.pump()
    trainer.save(41, [*entries(10, 20, 30, 40), {"step": 40, "eval_loss": float("nan")}])
    home.pump()
    assert trainer.steps() == [10, 20, 30, 40, 40]
    assert home.data()[0] == entries(10)[0]
    assert home.data()[-1] == {"step": 40, "eval_loss": "NaN"}
    assert home.counts() == (5, 0)
    # A history that another replaced within the attempt.
    trainer.save(45, [*entries(10, 20), *entries(30, run=2)])
    home.pump()
    assert home.stored() == [(1, 10), (1, 20), (1, 30), (1, 40), (1, 40), (1, 30)]


# What each attempt saves, and the steps that are its own.
@table(
    ("attempts", "own_steps"),
    [
        # Resumed from an older checkpoint, from the newest one, and begun again.
        (
            [[entries(10, 20), entries(10, 20, 30, 40)], [[*entries(10, 20), *entries(30, 40, run=2)]]],
            [[10, 20, 30, 40], [30, 40]],
        ),
        ([[entries(10, 20)], [entries(10, 20, 30, 40)]], [[10, 20], [30, 40]]),
        ([[entries(10, 20)], [entries(10, run=2), entries(10, 20, run=2)]], [[10, 20], [10, 20]]),
        ([[entries(10, 20, 30)], [], [[*entries(10, 20), *entries(30, run=3)]]], [[10, 20, 30], [], [30]]),
    ],
)
def test_attempts(tmp_path: Path, attempts: list[list[list[Any]]], own_steps: list[list[int]]) -> None:
    trainer = Trainer(tmp_path)
    for number, saves in enumerate(attempts, 1):
        trainer.home.begin(number)
        for saved in saves:
            trainer.save(100 * number + len(saved), saved)
            trainer.home.pump()
        trainer.home.ingest.finish(RUN)
        trainer.home.restart()
    assert trainer.home.stored() == [(number, step) for number, steps in enumerate(own_steps, 1) for step in steps]


def test_what_lay_there_before_the_run(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.save(20, entries(10, 20))
    trainer.home.begin()
    trainer.home.pump()
    assert trainer.steps() == []
    trainer.save(30, entries(10, 20, 30))
    trainer.home.pump()
    assert trainer.steps() == [30]


def test_strange_entries_and_files(trainer: Trainer) -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    odd = [7, {"loss": 1}, {"step": 5, "x": deep}, {"step": 5, "s": "\ud800"}, {"step": 6, "n": {"a": [1, {"b": "]"}]}}]
    trainer.save(20, [*entries(10), *odd])
    trainer.home.pump()
    assert trainer.steps() == [10, 5, 6]
    assert trainer.home.data()[2]["n"] == {"a": [1, {"b": "]"}]}
    assert len(trainer.home.rejected()) == 3
    for number, text in enumerate(["", "[]", '{"log_history": 3}', "[" * 100_000]):
        trainer.save(30 + number, [])
        (trainer.home.folder / f"out/checkpoint-{30 + number}/trainer_state.json").write_text(text)
        trainer.home.pump()
    (trainer.home.folder / "out/checkpoint-20/trainer_state.json").unlink()
    trainer.home.pump()
    assert trainer.home.counts() == (3, 3)


def test_a_file_is_parsed_once_and_its_entries_are_stored_in_batches(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    read_file = history.read_regular
    monkeypatch.setattr(
        history, "read_regular", lambda *arguments: (parsed.append(arguments), read_file(*arguments))[1]
    )
    for count in (3000, 3003):
        trainer.save(count, entries(*range(count)))
        for _ in range(3):
            trainer.home.pump()
    assert len(trainer.steps()) == 3003
    assert len(parsed) == 2
