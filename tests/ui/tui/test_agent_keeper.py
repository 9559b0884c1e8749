"""Keeping an agent running while the screen is open."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Iterator

import pytest

from gputui.core.config import Workspace
from gputui.runs.agent_process import AgentIdentity, AgentUnreachableError, has_views
from gputui.runs.identity import ProcessIdentity
from gputui.ui.tui import app as module
from gputui.ui.tui.app import GONE, NOT_STARTED, STARTING, keep_agent
from tests.conftest import wait_until
from tests.texts import mentions

ALIVE = AgentIdentity(ProcessIdentity(1, 1, "boot"), "0.1.0", 0.0, recording=False, ready=True)


class Agents:
    """A world in which an agent lives or does not, and can be started or not."""

    def __init__(self) -> None:
        self.identity: AgentIdentity | None = None
        self.problems: list[str] = []
        self.starts = self.looks = 0
        self.told: queue.Queue[str | None] = queue.Queue()

    def read_identity(self, _workspace: Workspace) -> AgentIdentity | None:
        self.looks += 1
        return self.identity

    def ensure_agent(self, _workspace: Workspace, report: Callable[[str], None]) -> AgentIdentity:
        self.starts += 1
        if self.problems:
            raise AgentUnreachableError(self.problems.pop(0))
        self.identity = ALIVE
        return ALIVE

    def next_word(self) -> str | None:
        return self.told.get(timeout=60.0)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    agents = Agents()
    for name, value in (
        ("read_identity", agents.read_identity), ("ensure_agent", agents.ensure_agent), ("LOOK_SECONDS", 0.01),
        ("FIRST_PAUSE_SECONDS", 0.02),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    return agents


@pytest.fixture
def keep(agents: Agents, workspace: Workspace) -> Iterator[Callable[[], threading.Event]]:
    """Starts the keeper; returns what ends it."""
    stop = threading.Event()

    def start() -> threading.Event:
        threading.Thread(target=keep_agent, args=(workspace, agents.told.put, stop)).start()
        return stop

    yield start
    stop.set()


def test_a_read_only_screen_starts_no_agent_and_leaves_no_trace(agents: Agents, workspace: Workspace) -> None:
    shutil.rmtree(workspace.state)
    stop = threading.Event()
    keeper = threading.Thread(target=keep_agent, args=(workspace, agents.told.put, stop), kwargs={"is_readonly": True})
    keeper.start()
    assert agents.next_word() == NOT_STARTED
    agents.identity = ALIVE
    assert agents.next_word() is None
    stop.set()
    keeper.join()
    assert agents.starts == 0
    assert not workspace.state.exists()


def test_an_agent_that_lives_is_left_alone_and_the_presence_ends_with_the_keeper(
    keep: Callable[[], threading.Event], agents: Agents, workspace: Workspace
) -> None:
    agents.identity = ALIVE
    stop = keep()
    wait_until(lambda: agents.looks > 3, what="some looks")
    assert agents.starts == 0
    assert agents.told.empty()
    assert has_views(workspace)
    stop.set()
    assert wait_until(lambda: not has_views(workspace), what="its end")


def test_an_agent_is_started_and_started_again(keep: Callable[[], threading.Event], agents: Agents) -> None:
    """Failures are told, and tried again after a growing pause."""
    agents.problems = ["no room on the disk.", "no room on the disk."]
    keep()
    assert agents.next_word() == STARTING
    said = agents.next_word()
    assert mentions(said, "does not start", "no room on the disk", "again in")
    while said is not None:
        said = agents.next_word()
    assert agents.starts == 3
    agents.identity = None
    assert agents.next_word() == GONE
    assert agents.next_word() is None
    assert agents.starts == 4
