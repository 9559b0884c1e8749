"""Saving of checkpoints in the foreground and in the background, and faults of the disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.tables import table
from tests.texts import mentions
from tests.trainer.checkpoint_files import BadDisk, contents, in_a_child, listing
from tests.trainer.ranks import ALONE, Ranks
from tests.trainer.running import PATIENCE_SECONDS, ROOT, SMALL
from trainer import checkpoints
from trainer.checkpoints import Checkpointer, Parts, checkpointer, files, rotation
from trainer.config import Settings
from trainer.errors import CheckpointError, RankError
from trainer.world import World


def settings(folder: Path, **values: Any) -> Settings:
    return Settings.model_validate({"task": "classify", "checkpoint_dir": folder, "checkpoint_every": 10, **values})


def state_of(step: int, **metrics: float) -> Callable[[], files.State]:
    return lambda: {"step": step, "model": {"weight": torch.full((100,), float(step))}, "metrics": metrics}


class Gate:
    """A disk that waits until it is let on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, step: int, path: Path) -> None:
        self.reached.set()
        assert self.open.wait(120)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def full_disk(*steps: int) -> Callable[[int, Path], None]:
    def check(step: int, path: Path) -> None:
        if step in steps:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return check


def pretend_to_spread(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of one rank, without a group, whose weight is sharded as one piece."""

    def split(state: files.State) -> Parts:
        piece = {"offsets": [0], "shape": [100], "tensor": state["model"]["weight"]}
        return {**state, "model": {"weight": {"__spread__": "model/weight"}}}, {"model/weight": piece}

    monkeypatch.setattr(checkpointer, "split", split)
    monkeypatch.setattr(World, "from_main", lambda self, value: value)
    monkeypatch.setattr(World, "gather", lambda self, value: [value])
    monkeypatch.setattr(World, "vote", lambda self, *values: list(values))
    return dataclasses.replace(ALONE, backend="gloo", writers_group=monkeypatch)  # type: ignore[arg-type]


def _save_on_ranks(world: World, folder: Path) -> list[Any]:
    options = settings(folder, async_checkpoints=True, best_checkpoint=True)
    saver = Checkpointer(options, world, before_write=full_disk(20, 40))
    moved = saver.begin(0)
    collected = []

    def collect() -> files.State:
        collected.append(world.gather(0))  # as strategies do: on all ranks or on none
        return state_of(10)() if world.is_main else {}

    for step, score in ((10, 0.5), (20, 0.25), (30, 0.75)):
        saver.save(collect, step=step, score=score)
        saver.wait()
    with pytest.raises(CheckpointError) as raised:
        saver.save(collect, step=40, need="required")
    return [
        moved,
        mentions(str(raised.value), os.strerror(errno.ENOSPC)),
        len(collected),
        [outcome.event for outcome in saver.poll()],
    ]


def _save_while_ranks_meet(world: World, folder: Path) -> tuple[int, bool]:
    """Meetings of a rank while rank 0 writes, which ends after three; and a stuck writer, still so after `close`."""
    meetings = 0
    enough = threading.Event()
    vote = World.vote

    def counted(self: World, *values: float) -> list[float]:
        nonlocal meetings
        meetings += 1
        if meetings == 4:
            enough.set()
        return vote(self, *values)

    with patch.object(World, "vote", counted):
        saver = Checkpointer(settings(folder), world, before_write=lambda step, path: enough.wait(60) and None)
        saver.save(state_of(10), step=10)
        gate = Gate()
        saver = Checkpointer(settings(folder, timeout=0.1), world, before_write=gate)
        with pytest.raises(RankError):
            saver.save(state_of(20), step=20)
        saver.close()
        stuck = checkpointer.still_writing()
        gate.open.set()
    return meetings, stuck


@table("background", [False, True])
def test_one_state_under_several_names(folder: Path, background: bool) -> None:
    saver = Checkpointer(
        settings(folder, async_checkpoints=background, epoch_checkpoints=True, best_checkpoint=True), ALONE
    )
    saver.begin(0)
    saver.save(state_of(10, loss=0.25), step=10, epoch=2, phase="warm up", score=0.5)
    saver.wait()
    (outcome,) = saver.poll()
    paths = [files.step_file(folder, 10), folder / "phase_warm%20up" / "epoch_2.pt", folder / "best_model.pt"]
    assert (outcome.event, outcome.step, [outcome.path, *outcome.also]) == ("checkpoint", 10, paths)
    assert outcome.error is None
    assert outcome.bytes == paths[0].stat().st_size
    assert outcome.seconds is not None
    assert 0 < outcome.blocked_seconds <= outcome.seconds
    assert len({path.stat().st_ino for path in paths}) == 1
    for path in paths:
        files.verify(path)
        assert checkpoints.load(path)["model"]["weight"].sum() == 1000
    record = json.loads((folder / "best_model.json").read_text())
    assert record == {
        "metric": "val/loss",
        "value": 0.5,
        "step": 10,
        "file": "best_model.pt",
        "sha256": next(iter(files.read_hashes(paths[2]))),
        "metrics": {"loss": 0.25},
        "settings": {},
    }
    assert saver.poll() == []


def test_only_a_better_one_becomes_the_best(folder: Path) -> None:
    options = settings(folder, best_checkpoint=True, best_metric="val/accuracy")
    saver = Checkpointer(options, ALONE)
    saver.begin(0)
    collected = []

    def save(saver: Checkpointer, step: int, score: float) -> None:
        def collect() -> files.State:
            collected.append(step)
            return state_of(step, **{"val/accuracy": score})()

        saver.save(collect, step=step, need="none", score=score)

    for step, score in ((1, float("nan")), (2, 0.5), (3, 0.5), (4, 0.25), (5, 0.75)):
        save(saver, step, score)
    assert collected == [2, 5]
    resumed = Checkpointer(options, ALONE)
    assert resumed.begin(6) == []
    save(resumed, 7, 0.5)
    save(resumed, 8, 1.0)
    assert collected == [2, 5, 8]
    again = Checkpointer(options, ALONE)
    assert [path.name for path in again.begin(7)] == ["best_model.pt.stale"]
    save(again, 8, 0.25)
    assert collected == [2, 5, 8, 8]
    assert listing(folder) == ["best_model.json", "best_model.pt", "best_model.pt.sha256"]


def test_the_checkpoint_that_a_run_starts_from_is_not_written_again(folder: Path) -> None:
    Checkpointer(settings(folder), ALONE).save(state_of(10), step=10)
    checkpoint = files.step_file(folder, 10)
    elsewhere = settings(folder / "elsewhere")
    for chosen, written in ((settings(folder), 0), (elsewhere, 1)):
        resumed = Checkpointer(chosen, ALONE)
        resumed.begin(10, resumed_from=checkpoint)
        resumed.save(state_of(10), step=10, need="required")
        assert len(resumed.poll()) == written
        resumed.save(state_of(20), step=20)
        assert len(resumed.poll()) == 1


def test_in_the_background_the_same_bytes_are_written_though_training_goes_on(folder: Path) -> None:
    for kind in ("sync", "async"):
        saver = Checkpointer(settings(folder / kind, async_checkpoints=kind == "async"), ALONE)
        for step in (10, 20):  # twice, for the second time uses the first one's memory
            torch.manual_seed(step)
            weights = torch.randn(1000, 300)
            model = {"a": weights, "tied": weights, "part": torch.randn(500)[:20], "b": torch.randn(64, 64).T}
            live: dict[str, Any] = {"step": step, "model": model, "metrics": {"loss": 0.5}}
            saver.save(lambda live=live: live, step=step)
            if kind == "async":
                for tensor in model.values():
                    tensor.mul_(-1)
                live["metrics"]["loss"] = 0.25
            saver.wait()
    assert len(contents(folder / "sync")) == 4
    assert contents(folder / "sync") == contents(folder / "async")


def test_one_that_is_due_while_another_is_written_is_skipped_and_said(folder: Path, gate: Gate) -> None:
    saver = Checkpointer(settings(folder, async_checkpoints=True), ALONE, before_write=gate)
    saver.save(state_of(10), step=10)
    assert gate.reached.wait(120)
    assert saver.busy
    assert saver.poll() == []
    saver.save(state_of(20), step=20)
    saver.save(state_of(20), step=20, need="none")  # nothing was due
    (skipped,) = saver.poll()
    assert (skipped.event, skipped.step, skipped.path) == ("checkpoint_skipped", 20, files.step_file(folder, 20))
    assert mentions(skipped.error, "earlier checkpoint")
    assert skipped.bytes is skipped.seconds is None
    gate.open.set()
    saver.wait()
    assert [outcome.event for outcome in saver.poll()] == ["checkpoint"]
    assert [rotation.step_of(path) for path in checkpoints.existing(folder)] == [10]


@pytest.mark.parametrize("values", [{"need": "required"}, {"need": "asked"}, {"epoch": 1}, {"score": 0.5}])
def test_one_that_does_not_come_again_waits_for_the_earlier(folder: Path, gate: Gate, values: dict[str, Any]) -> None:
    options = settings(folder, async_checkpoints=True, epoch_checkpoints=True, best_checkpoint=True)
    saver = Checkpointer(options, ALONE, before_write=gate)
    saver.save(state_of(10), step=10)
    assert gate.reached.wait(120)
    threading.Timer(0.05, gate.open.set).start()
    saver.save(state_of(20), step=20, **values)
    assert gate.open.is_set()  # it did not return before the earlier one was let on
    saver.wait()
    first, second = saver.poll()
    assert (first.step, second.step) == (10, 20)
    assert second.blocked_seconds > 0


def test_one_that_gets_no_further_name_is_written_all_the_same(folder: Path) -> None:
    files.make_folder(folder)
    (folder / "phase_main").touch()
    saver = Checkpointer(settings(folder, epoch_checkpoints=True), ALONE)
    saver.save(state_of(10), step=10, epoch=1, need="required")
    (outcome,) = saver.poll()
    assert (outcome.event, outcome.also) == ("checkpoint", ())
    assert mentions(outcome.error, "File exists")
    assert checkpoints.choose("auto", folder).path == outcome.path


@table("spread, how", [(True, "once"), (False, "lasting"), (True, "killed"), (False, "killed")])
def test_nothing_that_happens_while_one_is_written_costs_one_that_was_there(
    tmp_path: Path, spread: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"best_checkpoint": True, "epoch_checkpoints": True, "keep": 1}
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    world = ALONE
    if spread:
        world = pretend_to_spread(monkeypatch)
        options |= {"sharded_checkpoints": True, "parallel": "fsdp"}
    folder = tmp_path / "checkpoints"
    saver = Checkpointer(settings(folder, **options), world)
    template = tmp_path / "template"
    saver.save(state_of(10), step=10, score=0.5, epoch=1)
    folder.replace(template)
    for operation in range(100):
        shutil.copytree(template, folder)
        saver = Checkpointer(settings(folder, **options), world)
        saver.begin(10)

        def save(saver: Checkpointer = saver) -> None:
            saver.save(state_of(20), step=20, score=0.25, epoch=1)

        with monkeypatch.context() as patch:
            disk = BadDisk(patch, operation, how)
            if how == "killed":
                good = in_a_child(save) == 0
            else:
                save()
                good = not disk.failures
        paths = [checkpoints.existing(folder)[0], folder / "best_model.pt", folder / "phase_main" / "epoch_1.pt"]
        for path in paths:
            files.verify(path)
            state = checkpoints.load(path)
            assert state["model"]["weight"].sum() == 100 * state["step"]
        outcomes = saver.poll()
        finished = paths if good else [outcomes[0].path, *outcomes[0].also] if outcomes else []
        if good or (outcomes and outcomes[0].event == "checkpoint"):
            assert {checkpoints.load(path)["step"] for path in finished} == {20}
        assert how == "killed" or not list(folder.rglob("*.tmp"))
        saver.begin(20)
        saver.save(state_of(30), step=30, score=0.125, epoch=1)
        assert [checkpoints.load(folder / name)["step"] for name in ("best_model.pt", paths[2])] == [30, 30]
        expected = {"step_00000030_rank_0_of_1.pt"} if spread else set()
        assert {path.name for path in folder.rglob("*rank*")} == expected
        assert not list(folder.rglob("*.tmp"))
        shutil.rmtree(folder)
        if good:
            break
    assert operation > 10
    assert good


def test_ranks_meet_while_one_writes_and_give_up_one_that_is_stuck(folder: Path, two_ranks: Ranks) -> None:
    (meetings, stuck), (others, never_stuck) = two_ranks.run(_save_while_ranks_meet, folder)
    assert min(meetings, others) > 4
    assert stuck
    assert not never_stuck


STUCK = """
import atexit, os, sys, threading
from trainer.__main__ import main
from trainer.checkpoints import streams
streams.write = lambda *arguments, **named: threading.Event().wait()
atexit.register(os._exit, 3)  # Python's own exit may abort while a thread writes
sys.exit(main(sys.argv[1:]))
"""


def test_a_process_ends_though_its_disk_is_stuck(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, *SMALL, "--device", "cpu", "--steps", "1", "--timeout", "0.5"]
    assert subprocess.call([*command, "--output-dir", str(tmp_path)], cwd=ROOT, timeout=PATIENCE_SECONDS) == 1


def test_all_ranks_agree_on_what_was_saved(folder: Path, two_ranks: Ranks) -> None:
    main, second = two_ranks.run(_save_on_ranks, folder)
    events = ["checkpoint", "checkpoint_failed", "checkpoint", "checkpoint_failed"]
    assert main == [[], True, 4, events]
    assert second == [[], True, 4, []]
    assert [rotation.step_of(path) for path in checkpoints.existing(folder)] == [30, 10]
    assert json.loads((folder / "best_model.json").read_text())["step"] == 10
