"""Keeping an agent running while the screen is open."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest

from gputui.core.config import Workspace
from gputui.runs.agent_process import AgentIdentity, AgentUnreachableError, has_views
from gputui.runs.identity import ProcessIdentity
from gputui.ui.tui import app as module
from gputui.ui.tui.app import GONE, STARTING, AgentKeeper
from tests.conftest import wait_until
from tests.texts import mentions

DEADLINE_SECONDS = 60.0
ALIVE = AgentIdentity(ProcessIdentity(1, 1, "boot"), "0.1.0", 0.0, recording=False, ready=True)


class Agents:
    """A world in which an agent lives or does not, and can be started or not."""

    def __init__(self) -> None:
        self.identity: AgentIdentity | None = None
        self.problems: list[str] = []
        self.starts = 0
        self.looks = 0

    def read_identity(self, workspace: Workspace) -> AgentIdentity | None:
        self.looks += 1
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


def test_an_agent_that_lives_is_left_alone(keeper: AgentKeeper, agents: Agents, told: queue.Queue[str | None]) -> None:
    agents.identity = ALIVE
    keeper.start()
    wait_until(lambda: agents.looks > 3, what="some looks")
    assert agents.starts == 0 and told.empty()


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
    assert wait_until(lambda: has_views(workspace), what="the presence")
    keeper.stop()
    assert wait_until(lambda: not has_views(workspace), what="its end")
