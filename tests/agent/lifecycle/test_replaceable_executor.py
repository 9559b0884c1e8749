"""An executor whose attempts run elsewhere: no GPU here is waited for, and one that was killed is replaced."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gputui.agent.lifecycle.execution import REPLACE_SECONDS, REPORTS_SECONDS
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.config import Workspace
from gputui.runs.executors.base import Executor
from gputui.runs.executors.kinds import EXECUTORS
from gputui.runs.spec import GpuRequest
from gputui.store.attempts import Attempt
from gputui.store.events import read_events
from gputui.store.placements import UNKNOWN_AFTER_SECONDS, PlacementView
from gputui.store.runs import read_runs
from gputui.ui.cli.context import Session
from gputui.ui.cli.ps import command as ps
from gputui.ui.views.run_words import placement_words
from tests.conftest import wait_until
from tests.homes import SPEC as BASE
from tests.homes import Home, add_run, attempt_of

SPEC = replace(BASE, gpus=GpuRequest(8), nproc=8, target={"name": "far", "kind": "runner"})
SCRIPT = Path(__file__).with_name("runner.py")


class RemoteRunner(Executor):
    places_gpus = False
    is_replaceable = True
    sees_processes = False
    file_name = SCRIPT.name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", str(SCRIPT), str(folder))


class CourierHome(Home):
    """A home with a supervisor whose executor is a runner."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.folder = workspace.run_dir("a-1") / "attempts" / "1"
        add_run(self.connection, spec=SPEC, workspace=workspace)
        self.supervisor = Supervisor(self.context(), selectors.DefaultSelector())

    def newest(self) -> Attempt:
        return attempt_of(self.connection)

    def pid(self) -> int:
        executor = self.newest().executor
        assert executor is not None
        return executor[0]

    def state(self) -> str:
        self.supervisor.poll()
        return self.run_of().state

    def placement(self) -> PlacementView | None:
        self.uptime += REPORTS_SECONDS
        self.supervisor.poll()
        return read_runs(self.connection)[-1].placement

    def is_served_by_another(self, pid: int) -> bool:
        self.supervisor.poll()
        return self.pid() != pid


@pytest.fixture
def home(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[CourierHome]:
    monkeypatch.setitem(EXECUTORS, "runner", f"{__name__}:RemoteRunner")
    home = CourierHome(workspace)
    yield home
    # Also after a failed test, the processes of both sides must end.
    home.folder.mkdir(parents=True, exist_ok=True)
    (home.folder / "finish").touch()
    wait_until(lambda: home.state() == "succeeded", what="the end")
    home.close()


def test_one_that_is_killed_finds_its_job_again(home: CourierHome) -> None:
    home.supervisor.poll()
    wait_until(lambda: home.placement() is not None and home.newest().started_at is not None, what="the start")
    first = home.pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not home.supervisor.attempts["a-1"].executor.is_alive, what="its end")
    assert not home.is_served_by_another(first), "one that ends at once is not begun again and again"
    home.uptime += REPLACE_SECONDS
    wait_until(lambda: home.is_served_by_another(first), what="another runner")
    (home.folder / "finish").touch()
    wait_until(lambda: home.state() == "succeeded", what="the end of the job")
    assert (home.folder / "submitted").read_text() == "once\n"
    assert home.value("SELECT count(*) FROM attempts") == 1


def test_its_place_is_stored_and_shown_and_waiting_there_is_no_start(home: CourierHome) -> None:
    home.folder.mkdir(parents=True)
    (home.folder / "far-state").write_text("pending")
    wait_until(lambda: home.placement() is not None, what="the first report")
    run = read_runs(home.connection)[-1]
    placement = run.placement
    assert run.target == "far"
    assert placement is not None
    assert (placement.state, placement.reason, placement.nodes) == ("pending", "Priority", ("node1",))
    assert home.newest().started_at is None
    assert home.state() == "starting"
    heard = placement.contact_at
    assert heard is not None
    assert placement_words(run, heard + 1.0)[1] == "text"
    assert "(Priority)" in CliRunner().invoke(ps, obj=Session(home.workspace)).output
    text, style = placement_words(run, heard + UNKNOWN_AFTER_SECONDS)
    assert "unknown since" in text
    assert style == "warn"
    (home.folder / "far-state").write_text("running")
    wait_until(lambda: home.placement() != placement and home.newest().started_at is not None, what="the start")
    keys = [event.key for event in read_events(home.connection, run_id="a-1") if event.kind == "placed"]
    assert keys == ["pending", "running"]
