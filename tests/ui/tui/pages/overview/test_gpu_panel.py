"""The table of GPUs: what is unknown or old."""

from __future__ import annotations

from gputui.core.config import Workspace
from gputui.ui.tui.layout.strips import notice_lines
from gputui.ui.tui.pages.overview.gpus import gpu_panel
from gputui.ui.views.snapshot import Snapshot
from tests.homes import NOW, Home
from tests.stories import overnight
from tests.texts import mentions
from tests.ui.tui.screens import read, text_of, widths


def test_gpus_are_seen_on_the_smallest_screens(snapshot: Snapshot) -> None:
    lines = gpu_panel(snapshot, 50, 7)
    assert widths(lines) == {50}
    assert [line.split()[0] for line in text_of(lines)[2:6]] == ["0", "1", "2", "3"]
    assert [line[26:].split()[0] for line in text_of(lines)[2:6]] == ["4", "5", "6", "7"]
    assert "1–3 of 8" in text_of(gpu_panel(snapshot, 40, 6))[0]


def test_unknown_values_are_dashes_and_never_zero(home: Home, workspace: Workspace) -> None:
    home.agent()
    home.gpus(1)
    home.sample(0, utilization=None, memory_gib=None, temperature=None, power=None, throttle=None)
    assert text_of(gpu_panel(read(workspace), 80, 5))[2].split() == ["0", "–", "–", "–", "–", "free"]


def test_stale_rows_are_dim_as_a_whole_and_the_silence_is_told(home: Home, workspace: Workspace) -> None:
    overnight(home)
    home.connection.execute("UPDATE agent SET heartbeat_at = ?", (NOW + 14,))
    later = read(workspace, now=NOW + 14)
    assert {style for _, style in gpu_panel(later, 80, 11)[2]} <= {"stale", "text"}
    [silence] = text_of(notice_lines(later, agent_notice=None, width=80))
    assert mentions(silence, " ▲ driver silent", "14 s", "03:12:44")
    home.connection.execute("UPDATE agent SET gpu_problem = 'it ended'")
    assert text_of(notice_lines(read(workspace, now=NOW + 14), agent_notice=None, width=80)) == [" ▲ it ended"]


def test_an_agent_that_stopped_is_not_blamed_on_the_driver(home: Home, workspace: Workspace) -> None:
    overnight(home)
    later = read(workspace, now=NOW + 60)
    assert mentions(text_of(notice_lines(later, agent_notice=None, width=100))[0], "agent", "1 min")
    assert text_of(notice_lines(later, "The agent is gone", 80)) == [" ▲ The agent is gone"]
