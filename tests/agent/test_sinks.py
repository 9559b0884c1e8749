"""The agent's side of sinks: what it starts, what it says, and when it gives up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gputui.agent import sinks as module
from gputui.agent.sink_processes import Ended, SinkProcess
from gputui.agent.sinks import AGAIN_SECONDS, PATIENCE_SECONDS, Sinks
from gputui.config import Workspace
from gputui.reports.export.memory import MemoryPlace, Remembered
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.export_queries import Progress, read_piece
from tests.tui.filling import NOW, Filler


@dataclass
class Fake(SinkProcess):
    """A process that ends when the test says so."""

    end: Ended | None = None
    is_killed: bool = False

    def __init__(self) -> None:
        super().__init__(None)
        self.end, self.is_killed = None, False

    def ended(self) -> Ended | None:
        return self.end

    def kill(self) -> None:
        self.is_killed = True


@dataclass
class Bench:
    """A run with one sink, and an agent's sinks with a clock of the test's."""

    filler: Filler
    now: float = 0.0
    started: list[Fake] = field(default_factory=list)
    places: list[MemoryPlace] = field(default_factory=list)

    def agent(self) -> Sinks:
        made = Sinks(self.filler.connection, self.filler.workspace, lambda: NOW + self.now, lambda: self.now)
        made.begin()
        made.turn()
        return made

    def start(self, workspace: Workspace, run_id: str, name: str, place: MemoryPlace) -> Fake:
        place.make()
        self.places.append(place)
        self.started.append(Fake())
        return self.started[-1]

    def fail(self, words: str) -> None:
        self.started[-1].end = Ended(words)

    def wrote(self) -> None:
        """What a process leaves that got on."""
        run = self.filler.connection.execute("SELECT ended_at FROM runs").fetchone()
        piece = read_piece(self.filler.connection, "net-1", Progress(), 1000)
        self.places[-1].write(Remembered(piece.progress, {}, NOW + self.now, run[0]))

    def over(self) -> None:
        self.filler.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = ?", (NOW + self.now,))

    def said(self) -> list[tuple[str, str]]:
        return self.filler.connection.execute(
            "SELECT severity, message FROM events WHERE run_id = 'net-1' ORDER BY event_id"
        ).fetchall()


@pytest.fixture
def bench(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    filler = Filler(workspace)
    spec = RunSpec(
        name="net",
        launcher="python",
        program=("t.py",),
        workdir="/",
        python="/usr/bin/python",
        sinks={"csv": "/x/{run_id}.csv"},
    )
    filler.run("net-1", attempt=1)
    filler.attempt("net-1", 1)
    filler.connection.execute("UPDATE runs SET spec = ?", (json.dumps(spec.to_json()),))
    workspace.run_dir("net-1").mkdir()
    write_spec(workspace.run_dir("net-1") / SPEC_FILE, spec)
    made = Bench(filler)
    monkeypatch.setattr(module, "start", made.start)
    yield made
    filler.close()


def test_trouble_is_told_once_and_its_end_too(bench: Bench) -> None:
    agent = bench.agent()
    for _ in range(8):
        bench.fail("cannot write /x: No space left on device")
        agent.turn()
        bench.now += max(AGAIN_SECONDS)
        agent.turn()
    assert len(bench.started) == 9
    warning = (
        "warning",
        "sink csv: cannot write /x: No space left on device; the run goes on, and this is tried again",
    )
    assert bench.said() == [warning]
    bench.now += 1
    bench.wrote()
    agent.turn()
    agent.turn()
    assert bench.said() == [warning, ("info", "sink csv: is written again; nothing is missing")]


def test_the_next_agent_knows_what_was_said(bench: Bench) -> None:
    agent = bench.agent()
    bench.fail("no room")
    agent.turn()
    agent.close()
    bench.now += 10
    second = bench.agent()
    bench.fail("no room")
    second.turn()
    assert len(bench.said()) == 1
    bench.now += 10
    bench.wrote()
    second.turn()
    bench.now += max(AGAIN_SECONDS)
    second.turn()
    bench.wrote()
    second.turn()
    assert [severity for severity, _ in bench.said()] == ["warning", "info"]


def test_it_waits_longer_after_each_failure(bench: Bench) -> None:
    agent, waits = bench.agent(), []
    for _ in range(len(AGAIN_SECONDS) + 1):
        bench.fail("no room")
        agent.turn()
        begun, count = bench.now, len(bench.started)
        while len(bench.started) == count:
            bench.now += 1.0
            agent.turn()
        waits.append(bench.now - begun)
    assert waits == [*AGAIN_SECONDS, AGAIN_SECONDS[-1]]


def test_an_agent_stays_until_all_is_written(bench: Bench) -> None:
    agent = bench.agent()
    assert not agent.is_busy()
    bench.over()
    agent.turn()
    assert agent.is_busy()
    bench.wrote()
    bench.started[-1].end = Ended(None)
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
            if len(bench.started) and bench.started[-1].end is None:
                bench.fail("no answer")
            agent.turn()
            assert bench.now < 4 * PATIENCE_SECONDS
    assert [severity for severity, _ in bench.said()] == ["warning", "error"]
    assert "given up until the next agent, or gputui export net-1" in bench.said()[-1][1]


def test_one_that_hangs_after_the_end_is_ended(bench: Bench) -> None:
    agent = bench.agent()
    bench.over()
    agent.turn()
    bench.now += PATIENCE_SECONDS + 1
    agent.turn()
    assert bench.started[-1].is_killed and not agent.is_busy()
    assert bench.said()[-1][0] == "error" and "it gets nothing written" in bench.said()[-1][1]


def test_a_run_that_is_removed(bench: Bench) -> None:
    agent = bench.agent()
    bench.filler.connection.execute("DELETE FROM runs")
    bench.fail("its folder is gone")
    agent.turn()
    assert not agent.sinks and bench.said() == []


def test_runs_without_sinks_cost_nothing(bench: Bench) -> None:
    bench.filler.run("plain-1")
    assert list(bench.agent().sinks) == [("net-1", "csv")]
