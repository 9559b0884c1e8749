"""The agent's processes of studies, and their restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.agent import children
from gputui.agent.children import STEADY_SECONDS, STUDY_DELAYS_SECONDS, Studies
from gputui.core.config import Workspace
from gputui.runs.repository import transaction
from gputui.store.studies import get_study
from gputui.studies import __main__ as studies_main
from gputui.studies import rows
from tests.agent.processes import FakeProcess
from tests.homes import Home, open_store
from tests.studies.conftest import GRID, STUDY
from tests.texts import mentions


class ServiceHome(Home):
    """A home with a study and the agent's part that starts processes of studies; ``started`` are those so far."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.started: list[FakeProcess] = []
        with transaction(self.connection):
            rows.begin_study(self.connection, STUDY, GRID, source="", now=self.now, actor="me")
        self.studies = Studies(self.context())

    def lives_for(self, seconds: float) -> None:
        """The newest process fails after so long."""
        self.uptime += seconds
        self.started[-1].end("was killed")
        self.studies.poll()

    def seconds_to_next(self) -> float:
        """The seconds until another process is started."""
        count = len(self.started)
        began = self.uptime
        self.studies.poll()
        while len(self.started) == count:
            self.uptime += 0.5
            self.studies.poll()
        return self.uptime - began

    def problem(self) -> str | None:
        study = get_study(self.connection, STUDY)
        assert study is not None
        return study.problem

    def reported(self) -> int:
        return int(self.value("SELECT count(*) FROM events WHERE kind = 'study_process_failed'"))


@pytest.fixture
def home(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceHome]:
    with closing(ServiceHome(workspace)) as home:
        monkeypatch.setattr(children.subprocess, "Popen", FakeProcess.starter(home.started))
        home.studies.poll()
        assert len(home.started) == 1
        yield home


def test_failures_in_a_row_are_tried_again_less_and_less_often(home: ServiceHome) -> None:
    for seconds in (*STUDY_DELAYS_SECONDS, STUDY_DELAYS_SECONDS[-1]):
        home.lives_for(0.0)
        assert home.seconds_to_next() == seconds
    assert home.reported() == 1
    failures = len(STUDY_DELAYS_SECONDS) + 1
    log_file = home.workspace.studies / STUDY / rows.LOG_FILE
    assert mentions(home.problem(), f"{failures} times", log_file, "was killed")
    home.uptime += STEADY_SECONDS
    home.studies.poll()
    assert home.problem() is None


def test_the_end_of_a_process_that_worked_for_long_is_a_first_failure(home: ServiceHome) -> None:
    for _ in STUDY_DELAYS_SECONDS:
        home.lives_for(STEADY_SECONDS)
        assert home.seconds_to_next() == STUDY_DELAYS_SECONDS[0]
    assert home.reported() == len(STUDY_DELAYS_SECONDS)


def test_a_stop_does_not_wait_for_the_next_try(home: ServiceHome) -> None:
    for _ in STUDY_DELAYS_SECONDS:
        home.lives_for(0.0)
        home.seconds_to_next()
    home.lives_for(0.0)
    home.connection.execute("UPDATE studies SET state = 'stopping'")
    assert home.seconds_to_next() == 0.0
    assert home.problem() is not None
    home.connection.execute("UPDATE studies SET state = 'stopped'")
    home.started[-1].end()
    home.studies.poll()
    home.studies.poll()
    assert home.problem() is None


def test_a_process_ends_when_its_database_was_replaced(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(workspace.database).close()
    backup = workspace.database.with_suffix(".backup")
    backup.write_bytes(workspace.database.read_bytes())
    # By then the agent has put the backup in place, and it lives.
    monkeypatch.setattr(studies_main, "AGENT_SECONDS", 0.0)
    monkeypatch.setattr(studies_main, "read_identity", lambda _: backup.exists() and backup.replace(workspace.database))
    monkeypatch.setattr(studies_main.StudyProcess, "turn", lambda _: True)
    assert studies_main.serve(workspace, STUDY) == (studies_main.EXIT_OK, "")
