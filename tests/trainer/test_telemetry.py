"""Telemetry as the training loop uses it: which rank writes which line, and what is due when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.texts import mentions
from tests.trainer.ranks import Ranks
from trainer.config import Settings
from trainer.telemetry.telemetry import Telemetry
from trainer.telemetry.timing import StepDurations
from trainer.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="")


def make(folder: Path, world: World = ALONE, **wanted: Any) -> Settings:
    return Settings(output_dir=folder, metrics=folder / "metrics.jsonl", **wanted)


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines without their times, which are checked."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(isinstance(line.pop("time"), float) for line in found)
    return found


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_a_step_s_line_has_what_is_known(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = Telemetry(make(folder, steps=12, log_every=5), ALONE)
    for step in range(1, 13):
        telemetry.step(step, {"epoch": 0, "loss": 1 / step, "lr": 0.002, "comm_time": None})
    telemetry.close()
    found = lines(folder / "metrics.jsonl")
    assert found[0] == {"step": 1, "rank": 0, "epoch": 0, "loss": 1.0, "lr": 0.002}
    assert len(found) == 12
    assert capsys.readouterr().out.splitlines() == [
        "step 5/12  loss 0.2000  lr 2.00e-03",
        "step 10/12  loss 0.1000  lr 2.00e-03",
        "step 12/12  loss 0.0833  lr 2.00e-03",
    ]


def test_events_and_validation(folder: Path) -> None:
    telemetry = Telemetry(make(folder, text_log=True), ALONE)
    telemetry.event(0, "start", task="classify", name="x", step_="y")
    telemetry.validation(2, {"val/loss": 0.5}, seconds=0.1)
    telemetry.say("going on")
    telemetry.say("disk full", error=True)
    telemetry.close()
    assert lines(folder / "metrics.jsonl") == [
        {"step": 0, "event": "start", "task": "classify", "name": "x", "step_": "y"},
        {"step": 2, "event": "validation", "val/loss": 0.5, "seconds": 0.1},
    ]
    log = [line.split("Z ", 1)[1] for line in (folder / "logs" / "trainer.log").read_text().splitlines()]
    assert log == [
        "INFO step 0 start task=classify name=x step_=y",
        "INFO step 2 validation val/loss=0.5 seconds=0.1",
        "INFO going on",
        "ERROR trainer: disk full",
    ]


def train(telemetry: Telemetry, model: nn.Module, steps: int) -> None:
    for step in range(1, steps + 1):
        with telemetry.observe(step, model):
            model.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            telemetry.gradients(step, gradients_of(model))


def test_histograms_and_traces_come_at_their_intervals_and_not_in_the_same_step(folder: Path) -> None:
    telemetry = Telemetry(make(folder, histograms_every=2, trace_every=4), ALONE)
    train(telemetry, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 6)
    telemetry.close()
    found = lines(folder / "histograms.jsonl")
    assert [(line["step"], line["kind"], line["name"]) for line in found] == [
        (step, kind, name) for step in (2, 5, 6) for kind in ("gradient", "activation") for name in ("0", "1")
    ]
    assert set(found[0]) == {
        "step", "name", "kind", "edges", "counts", "mean", "std", "min", "max", "norm", "zeros", "not_finite",
    }  # fmt: skip
    assert [path.name for path in (folder / "traces").iterdir()] == ["step_00000004.json.gz"]
    [trace] = lines(folder / "metrics.jsonl")
    assert (trace["event"], trace["path"]) == ("trace", str(folder / "traces" / "step_00000004.json.gz"))
    assert " s; " in trace["top"] and trace["seconds"] > 0


def test_verdicts_are_written_at_their_interval_and_said_when_they_change(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Telemetry(make(folder, bottleneck_every=2), ALONE)
    for step, data in enumerate((9.0, 0.5, 0.6, 0.6, 0.0, 0.0), start=1):  # the first step starts up
        telemetry.rank_timings(step, StepDurations(1.0, data))
        result = telemetry.bottleneck(step)
        assert (result is None) == (step % 2 == 1)
    assert telemetry.bottleneck(8) is None  # no steps since the last one
    telemetry.close()
    found = lines(folder / "metrics.jsonl")
    assert [(line["step"], line["kind"], line["data_share"]) for line in found] == [
        (2, "data", 0.5),
        (4, "data", 0.6),
        (6, "compute", 0.0),
    ]
    assert found[0]["event"] == "bottleneck" and "50%" in found[0]["sentence"]
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["bottleneck at step 2", "bottleneck at step 6"]


def on_two_ranks(world: World, folder: Path) -> str | None:
    telemetry = Telemetry(make(folder, rank_metrics_every=2, bottleneck_every=4, text_log=True), world)
    for step in range(1, 5):
        telemetry.step(step, {"loss": 0.5})
        telemetry.event(step, "only of rank 0")
        telemetry.say("only of rank 0")
        slow = world.rank == 1
        telemetry.rank_timings(step, StepDurations(1.0, 0.25 * step, exchange=0.0 if slow else 0.5))
        result = telemetry.bottleneck(step)
    assert not telemetry.wants_histograms(4)
    telemetry.warn("the disk is slow")
    telemetry.skipped(4, ["cannot read a sample"] if world.rank == 1 else [])
    telemetry.close()
    return result.sentence if result else None


def test_ranks_write_their_own_timings_and_rank_0_names_the_slow_one(two_ranks: Ranks, folder: Path) -> None:
    said = two_ranks.run(on_two_ranks, folder)
    assert mentions(said[0], "Rank 1", "1 s a step", "0.5 s") and said[1] is None
    found = lines(folder / "metrics.jsonl")
    [skipped] = [line for line in found if line.get("event") == "sample_skipped"]
    assert skipped == {"step": 4, "event": "sample_skipped", "rank": 1, "reason": "cannot read a sample"}
    assert [line for line in found if line.get("rank") == 1 and "event" not in line] == [
        {"step": 2, "rank": 1, "step_time": 1.0, "data_time": 0.375, "comm_time": 0.0},
        {"step": 4, "rank": 1, "step_time": 1.0, "data_time": 0.875, "comm_time": 0.0},
    ]
    assert sum(line.get("rank") == 0 for line in found) == 4
    assert sum(line.get("event") == "only of rank 0" for line in found) == 4
    [verdict] = [line for line in found if line.get("event") == "bottleneck"]
    assert (verdict["kind"], verdict["straggler"]) == ("compute", 1)
    own = (folder / "logs" / "trainer.rank1.log").read_text().splitlines()
    written = [line.split("Z ERROR trainer: rank 1: ")[1] for line in own]
    assert written == ["the disk is slow", "cannot read a sample"]
