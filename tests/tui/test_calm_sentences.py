"""When something is wrong: one calm sentence in the place of what is missing, gone when it is well again."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gputui.store.agent import AgentView
from gputui.tui.app import GputuiApp
from gputui.tui.data.machine import LEAST_BYTES, full_disk_words
from gputui.tui.widgets.pane import Pane
from tests.texts import mentions
from tests.tui.conftest import MakeApp, StillFeed
from tests.tui.filling import NOW, Filler

SMALL = (80, 24)


def text(app: GputuiApp, pane: str) -> str:
    return app.screen.query_one(f"#{pane}", Pane).text


def feed_of(app: GputuiApp) -> StillFeed:
    assert isinstance(app.feed, StillFeed)
    return app.feed


def disk(monkeypatch: pytest.MonkeyPatch, free_bytes: int, files: int = 0, free_files: int = 0) -> None:
    found = SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096, f_files=files, f_favail=free_files)
    monkeypatch.setattr(os, "statvfs", lambda path: found)


async def test_a_driver_that_comes_up_takes_the_place_of_the_sentence(filler: Filler, make_app: MakeApp) -> None:
    filler.agent(problem="No NVIDIA driver found (libnvidia-ml.so.1 is missing).")
    filler.host()
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        assert "No NVIDIA driver found" in text(app, "gpus")
        filler.agent()
        filler.gpus(2)
        for index in range(2):
            filler.sample(index)
        feed_of(app).refresh()
        await pilot.pause()
        assert "No NVIDIA driver" not in text(app, "gpus") and "free" in text(app, "gpus")


async def test_a_stalled_driver_is_told_and_its_values_are_dim(filler: Filler, make_app: MakeApp) -> None:
    filler.agent()
    filler.gpus(1)
    filler.sample(0, utilization=97.0)
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        assert text(app, "notice") == ""
        filler.connection.execute("UPDATE agent SET heartbeat_at = ?", (NOW + 14,))
        feed_of(app).now = NOW + 14
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "notice"), "▲ driver silent", "14 s", "03:12:44")
        [row] = [line for line in app.screen.query_one("#gpus", Pane)._lines if any("97" in part for part, _ in line)]
        assert {style for part, style in row if part.strip()} == {"stale"}
        filler.sample(0, at=NOW + 15, utilization=50.0)
        filler.connection.execute("UPDATE agent SET heartbeat_at = ?", (NOW + 15,))
        feed_of(app).now = NOW + 15
        feed_of(app).refresh()
        await pilot.pause()
        assert text(app, "notice") == ""


async def test_a_full_disk_is_told_instead_of_silence(
    filler: Filler, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        disk(monkeypatch, 0)
        feed_of(app).now = NOW + 20
        feed_of(app).refresh()
        await pilot.pause()
        notice = " ".join(text(app, "notice").split())
        assert mentions(notice, "is full", "03:12:44", "runs continue")
        assert "silent" not in notice and "no news" not in notice
        disk(monkeypatch, 10 * LEAST_BYTES)
        filler.connection.execute("UPDATE agent SET heartbeat_at = ?", (NOW + 21,))
        for index in range(7):
            filler.sample(index, at=NOW + 21)
        feed_of(app).now = NOW + 21
        feed_of(app).refresh()
        await pilot.pause()
        assert text(app, "notice") == ""


async def test_an_agent_that_says_nothing_is_told_without_gpus_too(filler: Filler, make_app: MakeApp) -> None:
    filler.agent(problem="No NVIDIA driver found.")
    filler.host()
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        feed_of(app).now = NOW + 30
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "notice"), "▲", "agent", "30 s", "03:12:44")


def agent_seen(at: float) -> AgentView:
    return AgentView(1, "0", at - 99, at, None, False, 1.0, "nvml", None, None, "ok", None)


def test_a_disk_counts_as_full_only_while_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, filler: Filler
) -> None:
    state = filler.workspace.state
    disk(monkeypatch, LEAST_BYTES - 4096)
    assert full_disk_words(state, agent_seen(NOW - 2), NOW) is None  # it still finds room in what it has
    assert full_disk_words(state, agent_seen(NOW - 7), NOW) is not None
    assert full_disk_words(state, None, NOW) is None
    disk(monkeypatch, LEAST_BYTES)
    assert full_disk_words(state, agent_seen(NOW - 7), NOW) is None
    disk(monkeypatch, 1 << 30, files=1000, free_files=0)
    assert full_disk_words(state, agent_seen(NOW - 7), NOW) is not None


async def test_every_sentence_fits_a_narrow_screen(
    filler: Filler, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler.overnight()
    disk(monkeypatch, 0)
    app = make_app()
    feed_of(app).now = NOW + 20
    async with app.run_test(size=(40, 20)) as pilot:
        feed_of(app).refresh()
        await pilot.pause()
        assert "runs continue." in " ".join(text(app, "notice").split())
        assert sum(pane.size.height for pane in app.screen.query(Pane)) == 20
