"""Telemetry as the training loop uses it: which rank writes which line, what is due when, and what a full disk does."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.texts import mentions
from tests.trainer.ranks import ALONE, Ranks
from tests.trainer.small_models import gradients_of
from trainer.config import Settings
from trainer.telemetry.speed import StepDurations
from trainer.telemetry.telemetry import MetricsWriter, Telemetry
from trainer.world import World


def make(folder: Path, **values: Any) -> Settings:
    return Settings(**{"output_dir": folder, "metrics": folder / "metrics.jsonl", **values})


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines without their times, which are checked."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(isinstance(line.pop("time"), float) for line in records)
    return records


def on_two_ranks(world: World, folder: Path) -> None:
    telemetry = Telemetry(make(folder, rank_metrics_every=2, bottleneck_every=4), world)
    for step in range(1, 5):
        telemetry.step(step, {"loss": 0.5})
        telemetry.event(step, "only of rank 0")
        telemetry.say("only of rank 0")
        slow = world.rank == 1
        exchange = 0.0 if slow else 0.5
        telemetry.rank_timings(step, StepDurations(1.0, 0.25 * step, exchange=exchange))
        telemetry.bottleneck(step)
    assert not telemetry.wants_histograms(4)
    telemetry.warn("the disk is slow")
    telemetry.skipped(4, ["cannot read a sample"] if world.rank == 1 else [])
    telemetry.close()


def test_lines_of_steps_and_events_in_the_metrics_and_on_the_console(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Telemetry(make(folder, steps=12, log_every=5), ALONE)
    telemetry.event(0, "start", task="classify", name="x", step_="y")
    for step in range(1, 13):
        telemetry.step(step, {"epoch": 0, "loss": 1 / step, "lr": 0.002, "comm_time": None})
    telemetry.event(12, "validation", **{"val/loss": math.nan}, seconds=0.1)
    telemetry.close()
    records = lines(folder / "metrics.jsonl")
    assert records[:2] == [
        {"step": 0, "event": "start", "task": "classify", "name": "x", "step_": "y"},
        {"step": 1, "rank": 0, "epoch": 0, "loss": 1.0, "lr": 0.002},
    ]
    assert len(records) == 14
    assert math.isnan(records[-1].pop("val/loss"))
    assert records[-1] == {"step": 12, "event": "validation", "seconds": 0.1}
    said = [f"step {step}/12  loss {1 / step:.4f}  lr 2.00e-03" for step in (5, 10, 12)]
    assert capsys.readouterr().out.splitlines() == said


def test_histograms_and_traces_come_at_their_intervals_and_not_in_the_same_step(folder: Path) -> None:
    telemetry = Telemetry(make(folder, histograms_every=2, trace_every=4), ALONE)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for step in range(1, 7):
        with telemetry.observe(step, model):
            model.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            if telemetry.wants_histograms(step):
                telemetry.gradients(step, gradients_of(model))
    telemetry.close()
    records = lines(folder / "histograms.jsonl")
    assert [(line["step"], line["kind"], line["name"]) for line in records] == [
        (step, kind, name) for step in (2, 5, 6) for kind in ("gradient", "activation") for name in ("0", "1")
    ]
    assert set(records[0]) == {
        "step", "name", "kind", "edges", "counts", "mean", "std", "min", "max", "norm", "zeros", "not_finite",
    }  # fmt: skip
    assert [path.name for path in (folder / "traces").iterdir()] == ["step_00000004.json.gz"]
    [trace] = lines(folder / "metrics.jsonl")
    assert (trace["event"], trace["path"]) == ("trace", str(folder / "traces" / "step_00000004.json.gz"))
    assert " s; " in trace["top"]
    assert trace["seconds"] > 0


def test_verdicts_are_written_at_their_interval_and_said_when_they_change(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Telemetry(make(folder, bottleneck_every=2), ALONE)
    for step, data in enumerate((9.0, 0.5, 0.6, 0.6, 0.0, 0.0), start=1):  # the first step includes the start-up
        telemetry.rank_timings(step, StepDurations(1.0, data))
        telemetry.bottleneck(step)
    telemetry.bottleneck(8)  # no steps since the last one
    telemetry.close()
    records = lines(folder / "metrics.jsonl")
    assert [(line["step"], line["kind"], line["data_share"]) for line in records] == [
        (2, "data", 0.5),
        (4, "data", 0.6),
        (6, "compute", 0.0),
    ]
    assert records[0]["event"] == "bottleneck"
    assert "50%" in records[0]["sentence"]
    assert "straggler" not in records[0]
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["bottleneck at step 2", "bottleneck at step 6"]


def test_ranks_write_their_own_timings_and_rank_0_names_the_slow_one(two_ranks: Ranks, folder: Path) -> None:
    two_ranks.run(on_two_ranks, folder)
    records = lines(folder / "metrics.jsonl")
    assert [line for line in records if line.get("rank") == 1] == [
        {"step": 2, "rank": 1, "step_time": 1.0, "data_time": 0.375, "comm_time": 0.0},
        {"step": 4, "rank": 1, "step_time": 1.0, "data_time": 0.875, "comm_time": 0.0},
        {"step": 4, "event": "sample_skipped", "rank": 1, "reason": "cannot read a sample"},
    ]
    assert sum(line.get("rank") == 0 for line in records) == 4
    assert sum(line.get("event") == "only of rank 0" for line in records) == 4
    [verdict] = [line for line in records if line.get("event") == "bottleneck"]
    assert (verdict["kind"], verdict["straggler"]) == ("compute", 1)
    assert mentions(verdict["sentence"], "Rank 1", "1 s a step", "0.5 s")


# --- the files --------------------------------------------------------------------------------------------------------


def test_lines_of_several_writers_never_mix_and_end_a_half_line_of_a_killed_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    writers = [MetricsWriter(path, repair=rank == 0) for rank in range(4)]
    writers[0].write(0, rank=0)

    def write(rank: int) -> None:
        for step in range(1, 200):
            writers[rank].write(step, rank=rank, padding="x" * (step % 50) * 10)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    first, half, *rest = path.read_text().splitlines()
    assert (first, half) == ('{"step": 1}', '{"step": 2, "lo')
    records = [json.loads(line) for line in rest]
    for rank in range(4):
        assert [line["step"] for line in records if line["rank"] == rank] == list(range(min(rank, 1), 200))


def test_a_full_disk_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    writer = MetricsWriter(Path("/dev/full"))
    for step in range(3):
        writer.write(step)
    [said] = capsys.readouterr().err.splitlines()
    assert mentions(said, "metrics", "No space left on device")


def test_after_a_cut_line_the_next_one_starts_afresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)

    class NearlyFull:
        def write(self, line: bytes) -> int:
            return file.write(line[:9])

    # type: ignore[assignment]
    file = writer._file
    writer._file = NearlyFull()
    writer.write(1, loss=1.0)
    writer._file = file
    writer.write(2, loss=2.0)
    writer.close()
    assert "only 9 of" in capsys.readouterr().err
    assert json.loads(path.read_text().splitlines()[1])["step"] == 2
