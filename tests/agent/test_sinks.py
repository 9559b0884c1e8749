"""The agent's side of sinks: when it starts the exporter, and what it says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gputui.agent import children
from gputui.agent.context import AgentContext
from gputui.agent.sinks import AGAIN_SECONDS, Sinks
from gputui.core.config import Workspace
from gputui.runs.spec import RunSpec
from gputui.store.metrics.exported import SinkCursor, save_cursor
from tests.agent.processes import FakeProcess
from tests.homes import NOW, Home


@dataclass
class Bench:
    """An agent's sinks with a clock of the test's; a run with a sink that changes its state."""

    home: Home
    now: float = 0.0
    started: list[FakeProcess] = field(default_factory=list)

    def agent(self) -> Sinks:
        return Sinks(
            AgentContext.of(
                self.home.connection, self.home.workspace, wake=lambda: None, now=lambda: NOW + self.now,
                monotonic=lambda: self.now,
            )
        )  # fmt: skip

    def move(self, state: str = "running") -> None:
        sql = "INSERT INTO transitions (run_id, at, to_state, cause, actor) VALUES ('net-1', 0, ?, '', 'me')"
        self.home.connection.execute(sql, (state,))

    def later(self, agent: Sinks) -> None:
        self.now += max(AGAIN_SECONDS) + 1
        agent.turn()


@pytest.fixture
def bench(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    home = Home(workspace)
    spec = RunSpec("net", "python", ("t.py",), "/", "/usr/bin/python", sinks={"csv": "/x/{run_id}.csv"})
    home.run("net-1", attempt=1)
    home.connection.execute("UPDATE runs SET spec = ?", (json.dumps(spec.to_json()),))
    made = Bench(home)
    monkeypatch.setattr(children.subprocess, "Popen", FakeProcess.starter(made.started))
    yield made
    home.close()


def test_one_process_while_a_run_has_sinks_and_none_without(bench: Bench) -> None:
    agent = bench.agent()
    bench.later(agent)
    assert not bench.started and not agent.is_busy()
    bench.move()
    agent.turn()
    assert len(bench.started) == 1 and "gputui.reports.export.exporter" in bench.started[0].argv
    bench.move()  # a run that begins while it ends is not missed
    bench.later(agent)
    for expected in (2, 2):
        assert len(bench.started) <= expected and agent.is_busy()
        bench.started[-1].end()
        agent.turn()
        bench.later(agent)
    assert len(bench.started) == 2 and not agent.is_busy()


def test_what_is_complete_starts_none(bench: Bench) -> None:
    bench.move("succeeded")
    bench.home.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = ?", (NOW,))
    for sink, started in ((None, 1), ("csv", 1)):
        save_cursor(bench.home.connection, "net-1", "key", SinkCursor(sink, ended_at=NOW))
        bench.later(bench.agent())
        assert len(bench.started) == started, sink


def test_a_failure_is_told_once_and_does_not_keep_an_agent_that_nobody_needs(bench: Bench) -> None:
    agent = bench.agent()
    bench.move()
    agent.turn()
    for _ in range(4):
        assert agent.is_busy()
        bench.started[-1].end("no room")
        agent.turn()
        is_busy = agent.is_busy()
        bench.later(agent)
    assert not is_busy and len(bench.started) == 5
    [(kind, message)] = bench.home.connection.execute("SELECT kind, message FROM events")
    assert kind == "exporter_failed" and "no room" in message
