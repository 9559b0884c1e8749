"""`gputui import`: what other trackers wrote, as finished runs."""

from __future__ import annotations

from pathlib import Path

from gputui.metrics.trackers import steps_of
from tests.machines import Machine
from tests.metrics.test_trackers import append, chunked, event, events_of, history


def test_steps_are_put_together_from_all_files(tmp_path: Path) -> None:
    append(events_of(tmp_path / "train"), event(1, loss=0.5) + event(2, loss=0.25) + event(2, lr=0.125) + b"rest")
    append(events_of(tmp_path / "val"), event(2, loss=0.75))
    events_of(tmp_path / "empty").touch()
    assert steps_of("tensorboard", tmp_path) == {
        1: {"step": 1, "time": 1.6e9 + 1, "train/loss": 0.5},
        2: {"step": 2, "time": 1.6e9 + 2, "train/loss": 0.25, "train/lr": 0.125, "val/loss": 0.75},
    }


def test_an_imported_run_has_ended_and_its_metrics(machine: Machine) -> None:
    folder = machine.folder / "a {odd} name"
    append(events_of(folder), event(1, loss=0.5) + event(2, loss=0.25))
    append(events_of(folder, "run-x1.wandb"), chunked([history(1, 0.75)]))
    ids = [found["id"] for found in machine.json("import", str(folder))]
    assert ids == ["x1-1", "a-odd-name-1"]
    for run_id, points in zip(ids, ([(1, 0.75)], [(1, 0.5), (2, 0.25)]), strict=True):
        machine.wait_for(run_id, "succeeded")
        assert [(each["step"], each["value"]) for each in machine.json("metrics", run_id, "loss")] == points
    (machine.folder / "none").mkdir()
    machine.gputui("import", str(machine.folder / "none"), code=2)
