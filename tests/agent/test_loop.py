"""The agent's loop: what fails in one part, or at the start, ends no agent."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator

import pytest

from gputui.agent.lock import AgentLock
from gputui.agent.loop import Agent, AgentOptions
from gputui.config import Workspace
from gputui.runs.agent_process import read_identity
from gputui.store import commands
from gputui.store.events import read_events
from tests.stores import open_store


@pytest.fixture
def agent(workspace: Workspace) -> Iterator[Agent]:
    open_store(workspace.database).close()
    made = Agent(workspace, AgentOptions(), AgentLock.take(workspace.agent_lock))
    yield made
    made.context.connection.close()
    made.lock.release()


STEPS = ["removal.begin", "adopt", "repeat_stops"]


@pytest.mark.parametrize("broken", STEPS)
def test_a_step_of_the_start_that_fails_does_not_end_the_agent(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    done: list[str] = []

    def stand_in(name: str) -> None:
        if name == broken:
            raise ValueError("odd")
        done.append(name)

    supervisor = agent.supervisor
    monkeypatch.setattr(type(supervisor.removal), "begin", lambda _self: stand_in("removal.begin"))
    monkeypatch.setattr(type(supervisor), "adopt", lambda _self: stand_in("adopt"))
    monkeypatch.setattr(type(supervisor), "repeat_stops", lambda _self: stand_in("repeat_stops"))
    agent._begin()
    assert done == [name for name in STEPS if name != broken]
    assert [event.severity for event in read_events(agent.context.connection) if "odd" in event.message] == ["error"]


def test_commands_come_after_ends_and_metrics_and_each_part_fails_alone(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def note(name: str, error: Exception | None = None) -> object:
        def act(*_: object, **__: object) -> object:
            order.append(name)
            if error is not None:
                raise error
            return None

        return act

    monkeypatch.setattr(type(agent.supervisor), "notice_ends", note("ends", ValueError("odd")))
    monkeypatch.setattr(type(agent), "_pump", note("metrics", sqlite3.OperationalError("database or disk is full")))
    monkeypatch.setattr("gputui.agent.commands.dispatch.answer_all", note("commands", KeyError("odd")))
    monkeypatch.setattr(type(agent.supervisor), "advance", note("the rest"))
    agent.sampler.fileno = lambda: -1  # type: ignore[method-assign] # no process is needed here
    monkeypatch.setattr(type(agent), "_housekeeping", note("housekeeping"))
    agent.supervisor.parts.begin_turn()
    agent._turn(set())
    assert order == ["ends", "metrics", "commands", "the rest", "housekeeping"]
    assert agent.supervisor.parts.unwritable == "database or disk is full"
    agent._turn(set())
    # The two that met what nobody foresaw rest; what a full disk refused is tried again.
    assert order[5:] == ["the rest"] or "ends" not in order[5:]


def test_what_an_agent_does_before_it_is_ready_is_told_in_its_lock(agent: Agent, workspace: Workspace) -> None:
    agent._describe("reading runs back from their folders")
    identity = read_identity(workspace)
    assert identity is not None and not identity.ready
    assert identity.doing == "reading runs back from their folders"
    agent._introduce(ready=True)
    identity = read_identity(workspace)
    assert identity is not None and identity.ready and identity.doing is None
    assert commands.pending(agent.context.connection) == []


def test_what_a_full_disk_kept_from_being_shown_is_shown_later(agent: Agent) -> None:
    connection = agent.context.connection
    agent._introduce(ready=True)
    agent.supervisor.parts.longest_seconds = 0.25
    connection.execute("PRAGMA query_only = 1")
    for show in (agent._show_longest_turn, lambda: agent._watch_sampler(0.0)):
        with pytest.raises(sqlite3.OperationalError):
            show()
    connection.execute("PRAGMA query_only = 0")
    agent._show_longest_turn()
    agent._watch_sampler(0.0)
    shown = connection.execute("SELECT longest_turn_seconds, sampler_state IS NULL FROM agent").fetchone()
    assert shown == (0.25, 0)


def test_reducing_goes_on_after_a_failure(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = [sqlite3.OperationalError("database or disk is full"), True, False]

    def reduce() -> bool:
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return bool(one)

    monkeypatch.setattr(agent, "_reduce", reduce)
    dues = []
    for _ in range(3):
        agent._due["reducing"] = 0.0
        agent._turn(set())
        dues.append(agent._due["reducing"] < math.inf)
    assert dues == [True, True, False] and not found


def test_an_agent_that_took_long_to_begin_waits_for_who_started_it(agent: Agent) -> None:
    agent._needed_at = -math.inf
    agent.on_second = lambda one: setattr(one, "stopping", True)
    agent._loop()
    assert agent._needed_at > -math.inf
