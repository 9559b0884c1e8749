"""The Hugging Face Trainer's log_history, rewritten with every checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics import history, history_scan

from .conftest import RUN, Bench


class Trainer:
    """Writes trainer_state.json as the Trainer does: the whole history, into the checkpoint's folder."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.saved = 0

    def save(self, step: int, history: list[Any], *, cut: int | None = None) -> None:
        self.saved += 1
        file = self.bench.folder / f"out/checkpoint-{step}/trainer_state.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"global_step": step, "log_history": history}, indent=2)
        file.write_text(text[:cut])
        os.utime(file, ns=(0, self.saved * 10**9))

    def entries(self, *steps: int, run: int = 1) -> list[dict[str, float]]:
        return [{"step": step, "loss": run / (step + 1), "learning_rate": 1e-4, "epoch": step / 100} for step in steps]


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    bench = Bench(tmp_path, kind="hf", name="out/checkpoint-*/trainer_state.json")
    bench.begin()
    return Trainer(bench)


def test_only_new_entries_are_stored(trainer: Trainer) -> None:
    bench = trainer.bench
    bench.pump()
    trainer.save(20, trainer.entries(10, 20))
    bench.pump()
    bench.pump()
    bench.restart()
    trainer.save(40, trainer.entries(10, 20, 30, 40))
    bench.pump()
    trainer.save(41, [*trainer.entries(10, 20, 30, 40), {"step": 40, "eval_loss": float("nan")}])
    bench.pump()
    assert bench.stored() == [(1, 10), (1, 20), (1, 30), (1, 40), (1, 40)]
    assert bench.data()[0] == trainer.entries(10)[0]
    assert bench.data()[-1] == {"step": 40, "eval_loss": "NaN"}


def test_a_file_that_is_being_written_is_waited_for(trainer: Trainer) -> None:
    trainer.save(20, trainer.entries(10, 20))
    trainer.bench.pump()
    trainer.save(40, trainer.entries(10, 20, 30, 40), cut=90)
    trainer.bench.pump()
    assert [step for _, step in trainer.bench.stored()] == [10, 20]
    trainer.save(40, trainer.entries(10, 20, 30, 40))
    trainer.bench.pump()
    assert [step for _, step in trainer.bench.stored()] == [10, 20, 30, 40]
    assert trainer.bench.rejected() == []


def test_an_attempt_resumed_from_an_older_checkpoint(trainer: Trainer) -> None:
    bench = trainer.bench
    trainer.save(20, trainer.entries(10, 20))
    trainer.save(40, trainer.entries(10, 20, 30, 40))
    bench.ingest.finish(RUN)
    bench.restart()
    bench.begin(2)
    trainer.save(30, [*trainer.entries(10, 20), *trainer.entries(30, run=2)])
    bench.pump()
    trainer.save(50, [*trainer.entries(10, 20), *trainer.entries(30, 40, 50, run=2)])
    bench.pump()
    assert bench.stored() == [(1, 10), (1, 20), (1, 30), (1, 40), (2, 30), (2, 40), (2, 50)]


def test_an_attempt_resumed_from_the_newest_checkpoint(trainer: Trainer) -> None:
    bench = trainer.bench
    trainer.save(20, trainer.entries(10, 20))
    bench.begin(2)
    trainer.save(40, trainer.entries(10, 20, 30, 40))
    bench.pump()
    assert bench.stored() == [(1, 10), (1, 20), (2, 30), (2, 40)]


def test_an_attempt_that_begins_again(trainer: Trainer) -> None:
    bench = trainer.bench
    trainer.save(20, trainer.entries(10, 20))
    bench.pump()
    bench.begin(2)
    trainer.save(10, trainer.entries(10, run=2))
    bench.pump()
    assert bench.stored() == [(1, 10), (1, 20), (2, 10)]


def test_what_lay_there_before_the_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, kind="hf", name="out/checkpoint-*/trainer_state.json")
    trainer = Trainer(bench)
    trainer.save(20, trainer.entries(10, 20))
    bench.begin()
    bench.pump()
    assert bench.stored() == []
    trainer.save(30, trainer.entries(10, 20, 30))
    bench.pump()
    assert bench.stored() == [(1, 30)]


def test_deleted_checkpoints_and_strange_entries(trainer: Trainer) -> None:
    bench = trainer.bench
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    trainer.save(20, [*trainer.entries(10), 7, {"loss": 1}, {"step": 5, "x": deep}, {"step": 5, "s": "\ud800"}])
    bench.pump()
    (bench.folder / "out/checkpoint-20/trainer_state.json").unlink()
    bench.pump()
    assert [step for _, step in bench.stored()] == [10, 5]
    assert len(bench.rejected()) == 3


@pytest.mark.parametrize("text", ["", "[]", '{"log_history": 3}', "[" * 100_000])
def test_other_files_are_no_history(trainer: Trainer, text: str) -> None:
    trainer.save(20, [])
    (trainer.bench.folder / "out/checkpoint-20/trainer_state.json").write_text(text)
    trainer.bench.pump()
    assert trainer.bench.counts() == (0, 0)


def test_entries_are_found_wherever_a_piece_ends(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [
        {"step": 1, "note": 'a "}]{[" b \\'},
        {"step": 2, "nested": {"a": [1, {"b": "]"}]}},
        {"step": 3, "loss": float("nan")},
        [4, "["],
        "step, ]",
        -1.5e-3,
        None,
        {},
        {"step": 5, "é": "ü"},
    ]
    for piece_bytes in (1, 7, 64, 1000):
        monkeypatch.setattr(history_scan, "PIECE_BYTES", piece_bytes)
        trainer.save(piece_bytes, odd)
        trainer.bench.pump()
        trainer.bench.restart()
    assert [step for _, step in trainer.bench.stored()] == [1, 2, 3, 5]
    assert trainer.bench.data()[1]["nested"] == {"a": [1, {"b": "]"}]}
    assert trainer.bench.counts() == (4, 5)


def test_what_is_known_is_not_parsed_again_and_a_look_reads_nothing(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, pieces = [], []
    decoded, advance = history._decoded, history_scan.HistoryScan.advance
    monkeypatch.setattr(history, "_decoded", lambda raw: (parsed.append(raw), decoded(raw))[1])
    monkeypatch.setattr(history_scan.HistoryScan, "advance", lambda scan: (pieces.append(scan), advance(scan))[1])
    trainer.save(1000, trainer.entries(*range(3000)))
    trainer.bench.pump()
    trainer.save(2000, trainer.entries(*range(3003)))
    trainer.bench.pump()
    assert len(parsed) == len(trainer.bench.stored()) == 3003
    pieces.clear()
    trainer.bench.pump()
    trainer.bench.restart()
    trainer.bench.pump()
    trainer.bench.begin(2)
    trainer.bench.pump()
    assert pieces == []
