"""Pictures of the overview's states, of a GPU's page and of the processes, at three sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui import many_processes
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)], ids=["80x24", "120x36", "200x50"])
Compare = Callable[..., bool]


def keys(*pressed: str) -> Callable[[Pilot[Any]], Any]:
    async def press(pilot: Pilot[Any]) -> None:
        for key in pressed:
            await pilot.press(key)
            await pilot.pause()

    return press


@SIZES
@pytest.mark.parametrize("count", [1, 8, 16])
def test_gpus(snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int], count: int) -> None:
    filler.many_gpus(count)
    assert snap_compare(make_app(), terminal_size=size)


@SIZES
def test_quarantine_and_a_paused_queue(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]
) -> None:
    """Eight GPUs, one of them lost, one in quarantine; the cursor is among them."""
    filler.overnight()
    filler.quarantine(4, "XID 48: double bit ECC error, the GPU needs a reset")
    filler.pause_queue()
    filler.run("lr-sweep-4", "queued", name="lr-sweep", started_ago=None, waiting_for="waits for 2 GPUs")
    assert snap_compare(make_app(), run_before=keys("shift+tab", "down", "down"), terminal_size=size)


@SIZES
def test_no_gpu_and_no_run(snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]) -> None:
    filler.agent(problem="No NVIDIA driver found (libnvidia-ml.so.1 is missing).")
    filler.host()
    assert snap_compare(make_app(), terminal_size=size)


@SIZES
def test_gpus_that_tell_next_to_nothing(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]
) -> None:
    filler.agent()
    filler.gpus(2)
    filler.host()
    filler.connection.execute("UPDATE gpus SET slow = '{}', processes = NULL")
    filler.sample(0, utilization=None, memory_gib=None, temperature=None, power=None, throttle=None)
    filler.sample(1, utilization=None, memory_gib=30.0, temperature=None, power=None, throttle=None)
    assert snap_compare(make_app(), terminal_size=size)


@SIZES
def test_a_silent_driver(snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]) -> None:
    filler.many_gpus(8)
    filler.connection.execute("UPDATE gpu_samples SET at = at - 14")
    filler.agent(state="silent", silent=14.0)
    assert snap_compare(make_app(), terminal_size=size)


@SIZES
def test_the_page_of_a_gpu(snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]) -> None:
    filler.overnight()
    filler.xid(3, 31, "memory page fault, mostly an error of the program (illegal address)")
    pressed = keys("shift+tab", "down", "down", "down", "i")
    assert snap_compare(make_app(), run_before=pressed, terminal_size=size)


@SIZES
def test_the_page_of_a_lost_gpu(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]
) -> None:
    filler.overnight()
    assert snap_compare(make_app(), run_before=keys("shift+tab", "end", "i"), terminal_size=size)


@SIZES
def test_three_hundred_processes(
    snap_compare: Compare, filler: Filler, make_app: MakeApp, size: tuple[int, int]
) -> None:
    many_processes.fill(filler)
    app = make_app()
    many_processes.give(app.feed)
    assert snap_compare(app, run_before=keys("p", "v", "down"), terminal_size=size)


def test_choosing_a_signal(snap_compare: Compare, filler: Filler, make_app: MakeApp) -> None:
    many_processes.fill(filler)
    app = make_app()
    many_processes.give(app.feed)
    assert snap_compare(app, run_before=keys("p", "s"), terminal_size=(80, 24))
