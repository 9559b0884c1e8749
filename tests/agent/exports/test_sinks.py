"""The agent's side of sinks: what it starts, what it says, and when it gives up."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gputui.agent import child_processes
from gputui.agent.child_processes import ChildProcess, Ended, adopt
from gputui.agent.context import AgentContext
from gputui.agent.exports import live_sink
from gputui.agent.exports.live_sink import PATIENCE_SECONDS, RETRY_SECONDS
from gputui.agent.exports.sinks import Sinks
from gputui.config import Workspace
from gputui.reports.export.memory import MemoryPlace, Remembered
from gputui.runs import process_lock
from gputui.runs.identity import identify
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.metrics.exported import ExportProgress, read_piece
from tests.texts import mentions
from tests.tui.filling import NOW, Filler


@dataclass
class Fake(ChildProcess):
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
        made = Sinks(
            AgentContext.of(
                self.filler.connection,
                self.filler.workspace,
                wake=lambda: None,
                now=lambda: NOW + self.now,
                monotonic=lambda: self.now,
            )
        )
        made.begin()
        made.turn()
        return made

    def start(self, program: str, arguments: Sequence[str], log: Path) -> Fake:
        self.places.append(MemoryPlace(log.parent.parent, log.stem))
        self.started.append(Fake())
        return self.started[-1]

    def fail(self, words: str) -> None:
        self.started[-1].end = Ended(words)

    def elsewhere(self) -> None:
        self.started[-1].end = Ended(None, is_elsewhere=True)

    def wrote(self) -> None:
        """What a process leaves that got on."""
        run = self.filler.connection.execute("SELECT ended_at FROM runs").fetchone()
        piece = read_piece(self.filler.connection, "net-1", ExportProgress(), 1000)
        self.places[-1].write(Remembered(NOW, piece.progress, {}, NOW + self.now, run[0]))

    def wrote_by(self, sink: tuple[str, str], agent: Sinks) -> None:
        """The same of one of several."""
        self.now += 1
        piece = read_piece(self.filler.connection, sink[0], ExportProgress(), 1000)
        agent.sinks[sink].place.write(Remembered(NOW, piece.progress, {}, NOW + self.now))

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
    monkeypatch.setattr(live_sink, "start", made.start)
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
    bench.now += max(RETRY_SECONDS)
    second.turn()
    bench.wrote()
    second.turn()
    assert bench.kinds() == ["sink_failed", "sink_recovered"]


def test_it_waits_longer_after_each_failure(bench: Bench) -> None:
    agent, waits = bench.agent(), []
    for _ in range(len(RETRY_SECONDS) + 1):
        bench.fail("no room")
        agent.turn()
        begun, count = bench.now, len(bench.started)
        while len(bench.started) == count:
            bench.now += 1.0
            agent.turn()
        waits.append(bench.now - begun)
    assert waits == [*RETRY_SECONDS, RETRY_SECONDS[-1]]


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
    assert bench.kinds() == ["sink_failed", "sink_incomplete"]
    assert "gputui export net-1" in bench.said()[-1][1]


def test_one_that_hangs_after_the_end_is_ended(bench: Bench) -> None:
    agent = bench.agent()
    bench.over()
    agent.turn()
    bench.now += PATIENCE_SECONDS + 1
    agent.turn()
    assert bench.started[-1].is_killed and not agent.is_busy()
    assert bench.kinds()[-1] == "sink_incomplete" and "it gets nothing written" in bench.said()[-1][1]


def test_a_run_that_is_removed(bench: Bench) -> None:
    agent = bench.agent()
    bench.filler.connection.execute("DELETE FROM runs")
    bench.fail("its folder is gone")
    agent.turn()
    assert not agent.sinks and bench.said() == []


def test_runs_without_sinks_cost_nothing(bench: Bench) -> None:
    bench.filler.run("plain-1")
    assert list(bench.agent().sinks) == [("net-1", "csv")]


def test_a_disk_without_room_delays_the_word_and_no_other_sink(bench: Bench) -> None:
    """What cannot be told now is told later, and who cannot be told of does not keep the others waiting."""
    filler = bench.filler
    spec = json.loads(filler.connection.execute("SELECT spec FROM runs WHERE run_id = 'net-1'").fetchone()[0])
    filler.run("net-2", attempt=1)
    filler.connection.execute("UPDATE runs SET spec = ? WHERE run_id = 'net-2'", (json.dumps(spec),))
    bench.filler.workspace.run_dir("net-2").mkdir()
    write_spec(bench.filler.workspace.run_dir("net-2") / SPEC_FILE, RunSpec.from_json(spec))
    agent = bench.agent()
    assert len(bench.started) == 2
    filler.connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON main.events BEGIN SELECT raise(ABORT, 'disk is full'); END"
    )
    bench.started[0].end = Ended("no answer")
    bench.started[1].end = Ended(None)
    bench.now += RETRY_SECONDS[0]
    for _ in range(3):
        with pytest.raises(sqlite3.Error, match="disk is full"):
            agent.turn()
    assert len(bench.started) == 3, "the second goes on, the first waits for its word"
    filler.connection.execute("DROP TRIGGER full")
    agent.turn()
    assert bench.kinds() == ["sink_failed"] and "no answer" in bench.said()[0][1]
    bench.now += RETRY_SECONDS[0]
    agent.turn()
    assert len(bench.started) == 4
    bench.wrote_by(("net-1", "csv"), agent)
    filler.connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON main.events BEGIN SELECT raise(ABORT, 'disk is full'); END"
    )
    with pytest.raises(sqlite3.Error, match="disk is full"):
        agent.turn()
    filler.connection.execute("DROP TRIGGER full")
    agent.turn()
    agent.turn()
    assert bench.kinds()[1:] == ["sink_recovered"]


def test_giving_up_is_told_when_there_is_room_again(bench: Bench) -> None:
    agent = bench.agent()
    bench.over()
    agent.turn()
    bench.now += PATIENCE_SECONDS + 1
    bench.filler.connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON main.events BEGIN SELECT raise(ABORT, 'disk is full'); END"
    )
    with pytest.raises(sqlite3.Error, match="disk is full"):
        agent.turn()
    assert agent.is_busy() and not bench.started[-1].is_killed
    bench.filler.connection.execute("DROP TRIGGER full")
    agent.turn()
    assert bench.started[-1].is_killed and not agent.is_busy()
    assert bench.kinds() == ["sink_incomplete"] and len(bench.started) == 1


def test_a_lock_that_is_held_out_of_sight_is_asked_less_and_less(bench: Bench) -> None:
    agent, waits = bench.agent(), []
    for _ in range(len(RETRY_SECONDS) + 1):
        bench.elsewhere()
        agent.turn()
        begun, count = bench.now, len(bench.started)
        while len(bench.started) == count:
            bench.now += 1.0
            agent.turn()
        waits.append(bench.now - begun)
    assert waits == [*RETRY_SECONDS, RETRY_SECONDS[-1]] and bench.said() == []
    bench.over()
    agent.turn()
    while agent.is_busy():
        bench.elsewhere()
        agent.turn()
        bench.now += 10.0
        assert bench.now < 4 * PATIENCE_SECONDS
    [(kind, text)] = bench.said()
    assert kind == "sink_incomplete" and "elsewhere" in text


@pytest.mark.parametrize("is_agents", [True, False])
def test_only_what_an_agent_started_is_ended(bench: Bench, is_agents: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a person started for the same target is let go of, and goes on."""
    with subprocess.Popen(["sleep", "60"]) as other:
        own = identify(other.pid)
        assert own is not None
        monkeypatch.setattr(child_processes, "holder", lambda lock: process_lock.Holder(own, is_agents))
        monkeypatch.setattr(live_sink, "adopt", adopt)
        agent = bench.agent()
        bench.over()
        agent.turn()
        bench.now += PATIENCE_SECONDS + 1
        agent.turn()
        assert not bench.started and not agent.is_busy() and bench.kinds()[-1] == "sink_incomplete"
        if is_agents:
            assert other.wait() == -9
        else:
            assert other.poll() is None
            other.kill()


def test_the_lock_says_who_started_its_process(bench: Bench) -> None:
    place = MemoryPlace(bench.filler.workspace.run_dir("net-1"), "csv-1")
    place.make()
    for is_agents in (True, False):
        descriptor = place.take(is_agents=is_agents)
        holder = process_lock.holder(place.lock)
        assert holder is not None and holder.identity.pid == os.getpid() and holder.is_agents is is_agents
        os.close(descriptor)
