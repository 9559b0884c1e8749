"""Keeping an agent running while the screen is open."""

from __future__ import annotations

import errno
import os
import queue
import resource
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from gputui.config import Workspace
from gputui.runs.agent_process import AgentIdentity, AgentUnreachableError, has_views
from gputui.runs.identity import ProcessIdentity
from gputui.tui import agent_watchdog as module
from gputui.tui.agent_watchdog import GONE, STARTING, AgentKeeper
from tests.texts import mentions

DEADLINE_SECONDS = 10.0
HIGH_DESCRIPTOR = 1100
ALIVE = AgentIdentity(ProcessIdentity(1, 1, "boot"), "0.1.0", 0.0, recording=False, ready=True)


class Agents:
    """A world in which an agent lives or does not, and can be started or not."""

    def __init__(self) -> None:
        self.identity: AgentIdentity | None = None
        self.problems: list[str] = []
        self.starts = 0

    def read_identity(self, workspace: Workspace) -> AgentIdentity | None:
        return self.identity

    def ensure_agent(self, workspace: Workspace, report: Callable[[str], None]) -> AgentIdentity:
        self.starts += 1
        if self.problems:
            raise AgentUnreachableError(self.problems.pop(0))
        self.identity = ALIVE
        return ALIVE


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    made = Agents()
    monkeypatch.setattr(module, "read_identity", made.read_identity)
    monkeypatch.setattr(module, "ensure_agent", made.ensure_agent)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.02)
    return made


@pytest.fixture
def told() -> queue.Queue[str | None]:
    return queue.Queue()


@pytest.fixture
def keeper(agents: Agents, workspace: Workspace, told: queue.Queue[str | None]) -> Iterator[AgentKeeper]:
    made = AgentKeeper(workspace, told.put)
    yield made
    made.stop()


def test_an_agent_that_lives_is_left_alone(
    keeper: AgentKeeper, agents: Agents, workspace: Workspace, told: queue.Queue[str | None]
) -> None:
    agents.identity = ALIVE
    keeper.start()
    with pytest.raises(queue.Empty):
        told.get(timeout=0.1)
    assert agents.starts == 0
    assert has_views(workspace)


def test_an_agent_is_started_and_started_again(
    keeper: AgentKeeper, agents: Agents, told: queue.Queue[str | None]
) -> None:
    keeper.start()
    assert told.get(timeout=DEADLINE_SECONDS) == STARTING
    assert told.get(timeout=DEADLINE_SECONDS) is None
    agents.identity = None
    assert told.get(timeout=DEADLINE_SECONDS) == GONE
    assert told.get(timeout=DEADLINE_SECONDS) is None
    assert agents.starts == 2


def test_failures_are_told_and_tried_again_after_a_growing_pause(
    keeper: AgentKeeper, agents: Agents, told: queue.Queue[str | None]
) -> None:
    agents.problems = ["no room on the disk.", "no room on the disk."]
    keeper.start()
    assert told.get(timeout=DEADLINE_SECONDS) == STARTING
    said = told.get(timeout=DEADLINE_SECONDS)
    assert mentions(said, "does not start", "no room on the disk", "again in")
    while said is not None:
        said = told.get(timeout=DEADLINE_SECONDS)
    assert agents.starts == 3


def test_the_presence_ends_with_the_keeper(keeper: AgentKeeper, agents: Agents, workspace: Workspace) -> None:
    agents.identity = ALIVE
    keeper.start()
    end = time.monotonic() + DEADLINE_SECONDS
    while not has_views(workspace):
        assert time.monotonic() < end
    keeper.stop()
    while has_views(workspace):
        assert time.monotonic() < end


def test_the_end_of_an_agent_is_noticed_without_looking(
    keeper: AgentKeeper, agents: Agents, told: queue.Queue[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 10 * DEADLINE_SECONDS)
    with subprocess.Popen(["sleep", "infinity"]) as process:
        agents.identity = replace(ALIVE, process=ProcessIdentity(process.pid, 1, "boot"))
        keeper.start()
        with pytest.raises(queue.Empty):
            told.get(timeout=0.1)
        agents.identity = None
        process.kill()
        assert told.get(timeout=DEADLINE_SECONDS) == GONE
    assert told.get(timeout=DEADLINE_SECONDS) is None
    assert agents.starts == 1


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EMFILE])
def test_where_the_kernel_does_not_tell_of_an_end_it_is_looked_for(
    keeper: AgentKeeper,
    agents: Agents,
    told: queue.Queue[str | None],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module.os, "pidfd_open", refuse)
    monkeypatch.setattr(module, "BLIND_LOOK_SECONDS", 0.02)
    agents.identity = ALIVE
    keeper.start()
    with pytest.raises(queue.Empty):
        told.get(timeout=0.1)
    agents.identity = None
    assert told.get(timeout=DEADLINE_SECONDS) == GONE
    assert told.get(timeout=DEADLINE_SECONDS) is None
    assert agents.starts == 1


def test_a_high_descriptor_is_waited_for(
    keeper: AgentKeeper, agents: Agents, told: queue.Queue[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] <= HIGH_DESCRIPTOR + 1:
        pytest.skip("so many descriptors are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], HIGH_DESCRIPTOR + 1), limits[1]))
    opened = os.pidfd_open
    high: list[int] = []

    def open_high(pid: int) -> int:
        low = opened(pid)
        high.append(os.dup2(low, HIGH_DESCRIPTOR))
        os.close(low)
        return high[-1]

    monkeypatch.setattr(module.os, "pidfd_open", open_high)
    monkeypatch.setattr(module, "LOOK_SECONDS", 10 * DEADLINE_SECONDS)
    try:
        with subprocess.Popen(["sleep", "infinity"]) as process:
            agents.identity = replace(ALIVE, process=ProcessIdentity(process.pid, 1, "boot"))
            keeper.start()
            with pytest.raises(queue.Empty):
                told.get(timeout=0.1)
            agents.identity = None
            process.kill()
            assert told.get(timeout=DEADLINE_SECONDS) == GONE
        assert told.get(timeout=DEADLINE_SECONDS) is None and high
        keeper.stop()
        keeper._thread.join(DEADLINE_SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
