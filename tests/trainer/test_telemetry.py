"""Telemetry as the training loop uses it: which rank writes which line, and what is due when."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.ranks import Ranks
from trainer.config import Settings
from trainer.errors import SettingsError, TrainerError
from trainer.telemetry.telemetry import Telemetry, progress
from trainer.telemetry.timing import StepDurations
from trainer.telemetry.trackers import TensorBoard
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


def test_a_phase_has_its_name_in_every_line_and_its_own_settings(folder: Path) -> None:
    telemetry = Telemetry(make(folder), ALONE)
    telemetry.enter(make(folder, phase="cold start", histograms_every=1), ALONE, total_steps=40)
    telemetry.step(1, {"loss": math.nan})
    network = nn.Linear(2, 2)
    network(torch.ones(1, 2)).sum().backward()
    assert telemetry.wants_histograms(1)
    telemetry.gradients(1, gradients_of(network), network)
    telemetry.close()
    [line] = lines(folder / "metrics.jsonl")
    assert line["phase"] == "cold start" and math.isnan(line["loss"])
    assert len(lines(folder / "histograms.jsonl")) == 2


def test_the_console_line_says_what_is_known() -> None:
    values = {"loss": 0.5, "grad_norm": 1.0, "samples_per_s": 1234.5, "tokens_per_s": 1e6, "mfu": 0.412, "epoch": 3}
    assert progress(3, 9, values) == (
        "step 3/9  loss 0.5000  grad_norm 1.000  samples/s 1234  tokens/s 1000000  mfu 41.2%"
    )


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


def test_half_a_line_of_a_killed_run_is_ended(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text('{"step": 1')
    telemetry = Telemetry(make(folder), ALONE)
    telemetry.step(2, {})
    telemetry.close()
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])["step"] == 2


@pytest.mark.parametrize(
    ("wanted", "blocked"),
    [({}, "metrics.jsonl"), ({"text_log": True}, "logs"), ({"histograms_every": 1}, "histograms.jsonl")],
)
def test_files_that_cannot_be_written_are_refused(wanted: dict[str, Any], blocked: str, folder: Path) -> None:
    if blocked == "logs":
        (folder / blocked).write_text("in the way")
    else:
        (folder / blocked).mkdir()
    with pytest.raises(SettingsError, match=f"{blocked} cannot be written"):
        Telemetry(make(folder, **wanted), ALONE)


def test_a_phase_whose_histograms_cannot_be_written_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "histograms.jsonl").mkdir()
    telemetry = Telemetry(make(folder), ALONE)
    telemetry.enter(make(folder, histograms_every=1), ALONE, total_steps=300)
    telemetry.gradients(1, {}, nn.Identity())
    telemetry.close()
    assert "no histograms: " in capsys.readouterr().err


def train(telemetry: Telemetry, model: nn.Module, steps: int) -> None:
    for step in range(1, steps + 1):
        with telemetry.observe(step, model):
            model.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            telemetry.gradients(step, gradients_of(model), model)


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


def test_compiled_models_have_no_histograms_of_activations(folder: Path) -> None:
    telemetry = Telemetry(make(folder, histograms_every=1, compile="default"), ALONE)
    train(telemetry, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 1)
    telemetry.close()
    assert {line["kind"] for line in lines(folder / "histograms.jsonl")} == {"gradient"}


def test_a_trace_that_cannot_be_written_stops_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "traces").write_text("in the way")
    telemetry = Telemetry(make(folder, trace_every=1), ALONE)
    train(telemetry, nn.Linear(4, 4), 1)
    telemetry.close()
    assert "step_00000001.json.gz was not written" in capsys.readouterr().err
    assert lines(folder / "metrics.jsonl") == []


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


def test_recorded_steps_do_not_count_in_a_verdict(folder: Path) -> None:
    telemetry = Telemetry(make(folder, bottleneck_every=10, trace_every=5, histograms_every=3), ALONE)
    for step in range(1, 11):
        telemetry.rank_timings(step, StepDurations(9.0 if step in (1, 3, 5, 6, 9, 10) else 1.0, 0.0))
    verdict = telemetry.bottleneck(10)
    telemetry.close()
    assert verdict is not None and verdict.figures["step_time"] == 1.0


def test_trackers_get_numbers_only_and_hear_how_it_ended(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    telemetry = Telemetry(make(folder, tensorboard=True, histograms_every=1), ALONE)
    telemetry.step(1, {"loss": 0.5, "note": "text"})
    telemetry.validation(1, {"val/loss": 0.25}, seconds=1.0)
    train(telemetry, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 1)
    telemetry.close(good=False)
    read = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert set(read.Tags()["scalars"]) == {"loss", "val/loss"}
    assert set(read.Tags()["histograms"]) == {f"{kind}/{n}" for kind in ("gradient", "activation") for n in (0, 1)}


class Companion(TensorBoard):
    """A tracker that can only close together with the others."""

    def __init__(self, name: str, folder: Path, all_close: threading.Barrier) -> None:
        super().__init__(folder / name)
        self.name = name
        self._all_close = all_close

    def close(self, good: bool) -> None:
        self._all_close.wait(120)
        super().close(good)


def test_trackers_close_at_the_same_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    all_close = threading.Barrier(2)
    sinks = [Companion(name, folder, all_close) for name in ("first", "second")]
    monkeypatch.setattr("trainer.telemetry.telemetry.wanted_sinks", lambda settings: sinks)
    Telemetry(make(folder), ALONE).close()
    assert not all_close.broken and capsys.readouterr().err == ""


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
    assert said == ["Rank 1 holds up the others: 1 s a step against 0.5 s, because its own work takes longer.", None]
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
    assert [line.split("Z ")[1] for line in own] == [
        "ERROR trainer: rank 1: the disk is slow",
        "ERROR trainer: rank 1: cannot read a sample",
    ]


def refuse(world: World, folder: Path) -> str:
    import sys

    sys.modules["wandb"] = None  # type: ignore[assignment]
    try:
        Telemetry(make(folder, wandb=True), world)
    except TrainerError as error:
        return str(error)
    finally:
        del sys.modules["wandb"]
    return ""


def test_all_ranks_end_alike_where_rank_0_cannot_begin(two_ranks: Ranks, folder: Path) -> None:
    first, second = two_ranks.run(refuse, folder)
    assert first == second == "--wandb needs the package wandb: pip install 'gputui[trackers]'"


def test_a_device_without_kernels_in_its_trace_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(rank=0, size=1, device=torch.device("cuda", 0), backend="")
    telemetry = Telemetry(make(folder), world)
    from trainer.telemetry.traces import TraceSummary

    telemetry._log_trace(3, TraceSummary(folder / "step_3", 1.0, None, ()))
    telemetry._log_trace(6, TraceSummary(folder / "step_6", 1.0, 0.5, ()))
    telemetry.close()
    assert "shows no work of the GPU" in capsys.readouterr().err
    assert [line.get("device_busy") for line in lines(folder / "metrics.jsonl")] == [None, 0.5]
