"""The agent's side of sinks: what it starts, what it says, and when it gives up."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gputui.agent import children
from gputui.agent.context import AgentContext
from gputui.agent.sinks import PATIENCE_SECONDS, RETRY_SECONDS, Sinks
from gputui.core.config import Workspace
from gputui.reports.export.memory import Remembered
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.metrics.exported import ExportProgress, read_piece
from tests.agent.processes import FakeProcess
from tests.texts import mentions
from tests.ui.tui.filling import NOW, Filler


@dataclass
class Bench:
    """A run with one sink, and an agent's sinks with a clock of the test's."""

    filler: Filler
    now: float = 0.0
    started: list[FakeProcess] = field(default_factory=list)
    sinks: Sinks = field(init=False)

    def agent(self) -> Sinks:
        context = AgentContext.of(
            self.filler.connection, self.filler.workspace, wake=lambda: None, now=lambda: NOW + self.now,
            monotonic=lambda: self.now,
        )  # fmt: skip
        self.sinks = Sinks(context)
        self.sinks.turn()
        return self.sinks

    def fail(self, problem: str) -> None:
        self.started[-1].end(problem)

    def wrote(self) -> None:
        """What a process leaves that got on."""
        run = self.filler.connection.execute("SELECT ended_at FROM runs").fetchone()
        piece = read_piece(self.filler.connection, "net-1", ExportProgress(), 1000)
        place = next(iter(self.sinks.sinks.values())).place
        place.make()
        place.write(Remembered(NOW, piece.progress, {}, NOW + self.now, run[0]))

    def over(self) -> None:
        self.filler.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = ?", (NOW + self.now,))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said()]

    def said(self) -> list[tuple[str, str]]:
        return self.filler.connection.execute(
            "SELECT kind, message FROM events WHERE run_id = 'net-1' ORDER BY event_id"
        ).fetchall()


@pytest.fixture
def bench(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    filler = Filler(workspace)
    spec = RunSpec("net", "python", ("t.py",), "/", "/usr/bin/python", sinks={"csv": "/x/{run_id}.csv"})
    filler.run("net-1", attempt=1)
    filler.attempt("net-1", 1)
    filler.connection.execute("UPDATE runs SET spec = ?", (json.dumps(spec.to_json()),))
    filler.connection.execute(
        "INSERT INTO transitions (run_id, at, to_state, cause, actor) VALUES ('net-1', ?, 'running', '', 'me')", (NOW,)
    )
    workspace.run_dir("net-1").mkdir()
    write_spec(workspace.run_dir("net-1") / SPEC_FILE, spec)
    made = Bench(filler)
    monkeypatch.setattr(children.subprocess, "Popen", FakeProcess.starter(made.started))
    yield made
    filler.close()


def test_trouble_is_told_once_and_its_end_too(bench: Bench) -> None:
    agent = bench.agent()
    for _ in range(8):
        bench.fail("cannot write /x: No space left on device")
        agent.turn()
        bench.now += max(RETRY_SECONDS)
        agent.turn()
    assert len(bench.started) == 9
    assert bench.kinds() == ["sink_failed"] and mentions(bench.said()[0][1], "/x", os.strerror(errno.ENOSPC))
    bench.now += 1
    bench.wrote()
    agent.turn()
    agent.turn()
    assert bench.kinds() == ["sink_failed", "sink_recovered"]


def test_an_agent_stays_until_all_is_written(bench: Bench) -> None:
    agent = bench.agent()
    assert not agent.is_busy()
    bench.over()
    agent.turn()
    assert agent.is_busy()
    bench.wrote()
    bench.started[-1].end()
    agent.turn()
    assert not agent.is_busy() and len(bench.started) == 1 and bench.said() == []
    assert not bench.agent().sinks


def test_giving_up(bench: Bench) -> None:
    """A sink that gets nowhere does not keep the agent; the next one tries again, and does not say the same again."""
    for round_ in range(2):
        agent = bench.agent()
        bench.over() if round_ == 0 else None
        bench.fail("no answer")
        agent.turn()
        while agent.is_busy():
            bench.now += 10.0
            if len(bench.started) and bench.started[-1].returncode is None:
                bench.fail("no answer")
            agent.turn()
            assert bench.now < 4 * PATIENCE_SECONDS
    assert bench.kinds() == ["sink_failed", "sink_incomplete"]
    assert "gputui export net-1" in bench.said()[-1][1]
