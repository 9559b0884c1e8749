"""Sentences about faults: one calm sentence in the place of what is missing, gone when it is well
again."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gputui.store.agent import AgentView
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.data.machine import LEAST_BYTES, full_disk_words
from tests.homes import NOW, Home
from tests.texts import mentions
from tests.ui.tui.screens import SMALL, feed_of, text


def disk(monkeypatch: pytest.MonkeyPatch, free_bytes: int, files: int = 0, free_files: int = 0) -> None:
    status = SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096, f_files=files, f_favail=free_files)
    monkeypatch.setattr(os, "statvfs", lambda path: status)


def agent_seen(at: float) -> AgentView:
    return AgentView(
        1,
        "0",
        at - 99,
        heartbeat_at=at,
        ended_at=None,
        recording=False,
        interval_seconds=1.0,
        source="nvml",
        driver_version=None,
        cuda_version=None,
        gpu_problem=None,
        sampler_state="ok",
        sampler_silent_seconds=None,
    )


async def test_a_full_disk_is_told_instead_of_silence(
    home: Home, app: GputuiApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=SMALL) as pilot:
        disk(monkeypatch, 0)
        feed_of(app).now = NOW + 20
        feed_of(app).refresh()
        await pilot.pause()
        notice = " ".join(text(app, "notice").split())
        assert mentions(notice, "is full", "03:12", "runs continue")
        assert "silent" not in notice
        assert "no news" not in notice
        disk(monkeypatch, 10 * LEAST_BYTES)
        home.connection.execute("UPDATE agent SET heartbeat_at = ?", (NOW + 21,))
        for index in range(7):
            home.sample(index, at=NOW + 21)
        feed_of(app).now = NOW + 21
        feed_of(app).refresh()
        await pilot.pause()
        assert text(app, "notice") == ""


def test_a_disk_counts_as_full_only_while_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    state = home.workspace.state
    disk(monkeypatch, LEAST_BYTES - 4096)
    assert (
        full_disk_words(state, agent_seen(NOW - 2), NOW) is None
    )  # the agent still writes into free pages of its database
    assert full_disk_words(state, agent_seen(NOW - 7), NOW) is not None
    assert full_disk_words(state, agent=None, now=NOW) is None
    disk(monkeypatch, LEAST_BYTES)
    assert full_disk_words(state, agent_seen(NOW - 7), NOW) is None
    disk(monkeypatch, 1 << 30, files=1000, free_files=0)
    assert full_disk_words(state, agent_seen(NOW - 7), NOW) is not None
