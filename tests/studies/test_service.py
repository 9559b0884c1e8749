"""The agent's processes of studies, and their restarts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.agent import children
from gputui.agent.children import STEADY_SECONDS
from gputui.agent.context import AgentContext
from gputui.agent.studies import AGAIN_SECONDS, Studies
from gputui.core.config import Workspace
from gputui.runs.repository import transaction
from gputui.store.studies import get_study
from gputui.studies import __main__ as studies_main
from gputui.studies import rows
from tests.agent.processes import FakeProcess
from tests.homes import open_store
from tests.studies.desk import GRID, STUDY


class Service:
    """The agent's part at a clock of its own; ``started`` are the processes so far."""

    def __init__(self, workspace: Workspace, connection: sqlite3.Connection, patched: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        self.started: list[FakeProcess] = []
        self.connection = connection
        patched.setattr(children.subprocess, "Popen", FakeProcess.starter(self.started))
        context = AgentContext.of(
            connection, workspace, wake=lambda: None, now=lambda: 1_790_000_000.0, monotonic=lambda: self.seconds
        )
        self.studies = Studies(context)

    def lives_for(self, seconds: float) -> None:
        """The newest process fails after so long."""
        self.seconds += seconds
        self.started[-1].end("was killed")
        self.studies.turn()

    def seconds_to_next(self) -> float:
        """The seconds until another process is started."""
        count, began = len(self.started), self.seconds
        self.studies.turn()
        while len(self.started) == count:
            self.seconds += 0.5
            self.studies.turn()
        return self.seconds - began

    def problem(self) -> str | None:
        study = get_study(self.connection, STUDY)
        assert study is not None
        return study.problem

    def reported(self) -> int:
        found: int = self.connection.execute(
            "SELECT count(*) FROM events WHERE kind = 'study_process_failed'"
        ).fetchone()[0]
        return found


@pytest.fixture
def service(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with closing(open_store(workspace.database)) as connection:
        with transaction(connection):
            rows.begin_study(connection, STUDY, GRID, source="", now=1_790_000_000.0, actor="me")
        made = Service(workspace, connection, monkeypatch)
        made.studies.turn()
        assert len(made.started) == 1
        yield made


def test_failures_in_a_row_are_tried_again_less_and_less_often(service: Service) -> None:
    for seconds in (*AGAIN_SECONDS, AGAIN_SECONDS[-1]):
        service.lives_for(0.0)
        assert service.seconds_to_next() == seconds
    assert service.reported() == 1
    failures = len(AGAIN_SECONDS) + 1
    log_file = service.studies.context.workspace.studies / STUDY / rows.LOG_FILE
    assert service.problem() == f"its process failed {failures} times in a row (log: {log_file}): was killed"
    service.seconds += STEADY_SECONDS
    service.studies.turn()
    assert service.problem() is None


def test_the_end_of_a_process_that_worked_for_long_is_a_first_failure(service: Service) -> None:
    for _ in AGAIN_SECONDS:
        service.lives_for(STEADY_SECONDS)
        assert service.seconds_to_next() == AGAIN_SECONDS[0]
    assert service.reported() == len(AGAIN_SECONDS)


def test_a_stop_does_not_wait_for_the_next_try(service: Service) -> None:
    for _ in AGAIN_SECONDS:
        service.lives_for(0.0)
        service.seconds_to_next()
    service.lives_for(0.0)
    service.connection.execute("UPDATE studies SET state = 'stopping'")
    assert service.seconds_to_next() == 0.0 and service.problem() is not None
    service.connection.execute("UPDATE studies SET state = 'stopped'")
    service.started[-1].end()
    service.studies.turn()
    service.studies.turn()
    assert service.problem() is None


def test_a_process_ends_when_its_database_was_replaced(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(workspace.database).close()
    backup = workspace.database.with_suffix(".backup")
    backup.write_bytes(workspace.database.read_bytes())
    # The agent has replaced it too, and is there.
    monkeypatch.setattr(studies_main, "AGENT_SECONDS", 0.0)
    monkeypatch.setattr(studies_main, "read_identity", lambda _: backup.exists() and backup.replace(workspace.database))
    monkeypatch.setattr(studies_main.StudyProcess, "turn", lambda _: True)
    assert studies_main.serve(workspace, STUDY) == (studies_main.EXIT_OK, "")
