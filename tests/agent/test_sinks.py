"""The agent's side of sinks: when it starts the exporter, and what it says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.agent import children
from gputui.agent.children import SINK_DELAYS_SECONDS, Sinks
from gputui.core.config import Workspace
from gputui.runs.spec import RunSpec
from gputui.store.metrics.exported import SinkCursor, save_cursor
from gputui.store.rows import update
from tests.agent.processes import FakeProcess
from tests.homes import NOW, Home


class SinksHome(Home):
    """A home with a run that has a sink; ``started`` are the exporters that an agent started."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.started: list[FakeProcess] = []
        spec = RunSpec("net", "python", ("t.py",), "/", "/usr/bin/python", sinks={"csv": "/x/{run_id}.csv"})
        self.run("net-1", attempt=1)
        update(self.connection, "runs", {"run_id": "net-1"}, spec=json.dumps(spec.to_json()))

    def next_agent(self) -> Sinks:
        return Sinks(self.context())

    def later(self, agent: Sinks) -> None:
        self.pass_time(max(SINK_DELAYS_SECONDS) + 1)
        agent.poll()


@pytest.fixture
def home(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinksHome]:
    with closing(SinksHome(workspace)) as home:
        monkeypatch.setattr(children.subprocess, "Popen", FakeProcess.starter(home.started))
        yield home


def test_one_process_while_a_run_has_sinks_and_none_without(home: SinksHome) -> None:
    agent = home.next_agent()
    home.later(agent)
    assert not home.started
    assert not agent.is_busy()
    home.transition("net-1", None, "running", "", 0)
    agent.poll()
    assert len(home.started) == 1
    assert "gputui.reports.export.exporter" in home.started[0].argv
    # A run that begins while the exporter ends is not missed.
    home.transition("net-1", None, "running", "", 0)
    home.later(agent)
    for expected in (2, 2):
        assert len(home.started) <= expected
        assert agent.is_busy()
        home.started[-1].end()
        agent.poll()
        home.later(agent)
    assert len(home.started) == 2
    assert not agent.is_busy()


def test_what_is_complete_starts_none(home: SinksHome) -> None:
    home.transition("net-1", None, "succeeded", "", 0)
    home.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = ?", (NOW,))
    for sink, started in ((None, 1), ("csv", 1)):
        save_cursor(home.connection, "net-1", "key", SinkCursor(sink, ended_at=NOW))
        home.later(home.next_agent())
        assert len(home.started) == started, sink


def test_a_failure_is_told_once_and_does_not_keep_an_agent_that_nobody_needs(home: SinksHome) -> None:
    agent = home.next_agent()
    home.transition("net-1", None, "running", "", 0)
    agent.poll()
    for _ in range(4):
        assert agent.is_busy()
        home.started[-1].end("no room")
        agent.poll()
        is_busy = agent.is_busy()
        home.later(agent)
    assert not is_busy
    assert len(home.started) == 5
    [(kind, message)] = home.connection.execute("SELECT kind, message FROM events")
    assert kind == "exporter_failed"
    assert "no room" in message
