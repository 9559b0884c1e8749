"""Pictures of a run's page: running, recovering, failed and empty, at three sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.config import Workspace
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)], ids=["80x24", "120x36", "200x50"])
Compare = Callable[..., bool]


def opened(*keys: str) -> Callable[[Pilot[Any]], Any]:
    async def open_it(pilot: Pilot[Any]) -> None:
        for key in ("enter", *keys):
            await pilot.press(key)
            await pilot.pause()

    return open_it


def log_of(workspace: Workspace, run_id: str, attempt: int, text: str) -> None:
    folder = workspace.run_dir(run_id) / "attempts" / str(attempt) / "ranks" / "x" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text(text)


@SIZES
def test_a_running_run(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, workspace: Workspace, size: tuple[int, int]
) -> None:
    filler.overnight()
    log_of(workspace, "vit-b16-1", 3, "".join(f"step {n} loss 1.9{n % 10}\n" for n in range(9000, 9441)))
    keys = ("m", "m", *["left"] * 4) if size[0] > 80 else ()
    assert snap_compare(make_app(), run_before=opened(*keys), terminal_size=size)


@SIZES
def test_a_recovering_run(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, workspace: Workspace, size: tuple[int, int]
) -> None:
    filler.agent()
    filler.gpus(2)
    for index in range(2):
        filler.sample(index)
    filler.run("vit-1", "recovering", gpus=(0, 1), attempt=1, started_ago=1200.0)
    filler.attempt("vit-1", 1, "failed", gpus=(0, 1), started_ago=1200.0, ended_ago=12.0, code=1, last_step=2400)
    filler.curve("vit-1", 1, 0, 2400, every=20, ranks=2, total_steps=9000, end=filler.now - 12)
    filler.incident(
        "vit-1", 1, "nccl_timeout", "A collective operation timed out on rank 1 at step 2400", seconds_ago=12.0,
        rank=1, step=2400, evidence=("WorkNCCL(SeqNum=2400, OpType=ALLREDUCE) ran for 600 s",),
        reason="the same again from the newest checkpoint, in 30 s",
    )  # fmt: skip
    log_of(
        workspace, "vit-1", 1, "step 2399 loss 2.31\nW1121 03:12:30 slow collective\n[rank1]: RuntimeError: timed out\n"
    )
    keys = ("4",) if size[0] == 80 else ()
    assert snap_compare(make_app(), run_before=opened(*keys), terminal_size=size)


@SIZES
def test_a_failed_run(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, workspace: Workspace, size: tuple[int, int]
) -> None:
    filler.agent()
    filler.gpus(1)
    filler.sample(0)
    reason = "a Python exception on rank 0, three times at step 12: KeyError 'labels'"
    filler.run("resnet50-2", "failed", ended_ago=4000.0, started_ago=9000.0, reason=reason)
    filler.attempt("resnet50-2", 1, "failed", gpus=(0,), started_ago=9000.0, ended_ago=4000.0, code=1, last_step=12)
    filler.curve("resnet50-2", 1, 0, 12, end=filler.now - 4000)
    filler.metrics("resnet50-2", 1, [{"step": 13, "time": filler.now - 4000, "rank": 0, "loss": "NaN"}])
    log_of(
        workspace, "resnet50-2", 1,
        "step 12 loss nan\nTraceback (most recent call last):\n  File 'train.py', line 3\nKeyError: 'labels'\n",
    )  # fmt: skip
    keys = ("3",) if size[0] == 80 else ()
    assert snap_compare(make_app(), run_before=opened(*keys), terminal_size=size)


@SIZES
def test_a_run_that_has_told_nothing_yet(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]
) -> None:
    filler.agent()
    filler.gpus(1)
    filler.sample(0)
    filler.run("fresh-1", "starting", gpus=(0,), started_ago=2.0, params={})
    filler.attempt("fresh-1", 1, "starting", gpus=(0,), started_ago=2.0)
    assert snap_compare(make_app(), run_before=opened(), terminal_size=size)
