"""The supervisor's own promises, where whole runs would show them only by chance."""

from __future__ import annotations

import json
import os
import selectors
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import RUN_REST_SECONDS
from gputui.agent.lifecycle import checkpoint_survey, execution, postmortem
from gputui.agent.lifecycle.execution import LATE_SECONDS
from gputui.agent.lifecycle.live_attempt import LiveAttempt, Postmortem, Sweeping
from gputui.agent.lifecycle.postmortem import EXAMINE_SECONDS
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.config import Workspace
from gputui.core.redaction import BY_LOOK
from gputui.recovery.evidence import Evidence
from gputui.recovery.policies import POLICIES
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec
from gputui.runs.submission import SPEC_FILE
from gputui.store.attempts import Attempt
from gputui.store.events import read_events, read_news
from gputui.store.rows import insert
from gputui.store.run_history import read_transitions
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from tests.conftest import wait_until
from tests.homes import NOW, SPEC, add_line, add_run, add_source, attempt_of, run_of
from tests.texts import mentions

# Checkpoints are looked for around the working folder: in that of `SPEC`, others' may be found.
ELSEWHERE = replace(SPEC, workdir="/nowhere")
RESOLVED = ResolvedRun(ELSEWHERE, POLICIES["standard"], BY_LOOK)


class Doctored(Supervisor):
    """A supervisor with a clock of the test's, whose look at a run may meet an unforeseen error."""

    clock = 1000.0
    problem: Exception | None = None
    looks = 0

    def step(self, attempt: LiveAttempt, read_until: float) -> None:
        self.looks += 1
        if self.problem is not None:
            raise self.problem
        super().step(attempt, read_until)


@pytest.fixture
def supervisor(workspace: Workspace, connection: sqlite3.Connection) -> Doctored:
    context = AgentContext.of(
        connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: supervisor.clock
    )
    supervisor = Doctored(context, selectors.DefaultSelector())
    return supervisor


def begin_one(supervisor: Supervisor, run: Run, now: float = NOW) -> LiveAttempt:
    """Let the supervisor watch an attempt of a queued run."""
    connection = supervisor.context.connection
    launch = Launch(("x",), {}, "/", 1.0)
    with transaction(connection):
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=launch, now=now)
        repository.move(connection, run, RunState.STARTING, cause="test", now=now)
    live = LiveAttempt(attempt_of(connection), ExecutorProcess(None, Path()), RESOLVED)
    supervisor.attempts[run.run_id] = live
    return live


def end_one(supervisor: Supervisor, run: Run, *, code: int | None, intent: str | None = None, **record: Any) -> Path:
    """Let the supervisor watch an attempt whose command has ended, if need be after ann's stop; its folder."""
    begin_one(supervisor, run)
    if intent is not None:
        with transaction(supervisor.context.connection) as connection:
            supervisor.note_stop(run_of(connection), intent=intent, actor="ann", at_once=False)
        record["stop_requested"] = True
    folder = supervisor.context.workspace.run_dir(run.run_id) / "attempts/1"
    folder.mkdir(parents=True)
    if code is not None:
        (folder / "started.json").write_text(json.dumps({"at": NOW}))
    (folder / "exit.json").write_text(json.dumps({"code": code, "signal": None, "ended_at": NOW, **record}))
    return folder


def wait_for_ends(supervisor: Supervisor) -> None:
    wait_until(lambda: supervisor.notice_ends() or not supervisor.attempts, what="the end of all attempts")


def test_a_run_whose_specification_is_damaged_is_given_up_with_the_reason(
    workspace: Workspace, connection: sqlite3.Connection, supervisor: Doctored
) -> None:
    add_run(connection, workspace=workspace)
    (workspace.run_dir("a-1") / SPEC_FILE).write_text("{")
    supervisor.poll()
    assert run_of(connection).state is RunState.FAILED
    assert "cannot start: cannot read" in read_events(connection)[-1].message


def test_what_nobody_foresaw_in_one_run_is_told_once_and_left_alone_for_a_while(
    connection: sqlite3.Connection, supervisor: Doctored
) -> None:
    supervisor.problem = ValueError("an odd file")
    record = Attempt("a-1", 1, "running", params={}, gpus=(), launch={}, created_at=0.0, started_at=0.0)
    supervisor.attempts["a-1"] = LiveAttempt(record, ExecutorProcess(None, Path()), RESOLVED)
    for _ in range(3):
        supervisor.poll()
    (event,) = read_events(connection)
    assert "an odd file" in event.message
    assert supervisor.looks == 1
    supervisor.clock += RUN_REST_SECONDS + 1
    supervisor.poll()
    assert supervisor.looks == 2
    assert len(read_events(connection)) == 1
    supervisor.problem = sqlite3.OperationalError("database or disk is full")
    supervisor.clock += RUN_REST_SECONDS + 1
    supervisor.poll()
    assert supervisor.barrier.unwritable == "database or disk is full"


def test_checkpoints_that_cannot_be_reached_do_not_keep_a_run_from_ending(
    workspace: Workspace,
    connection: sqlite3.Connection,
    supervisor: Doctored,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(checkpoint_survey, "surveyed", lambda *_: over.wait(60) and ())
    spec = replace(SPEC, checkpoints=CheckpointSpec("/dead/checkpoints", "*.pt", ()))
    folder = end_one(supervisor, add_run(connection, spec=spec, workspace=workspace), code=1)
    (folder / "output.log").write_text("ValueError: odd\n")
    supervisor.poll()
    assert isinstance(supervisor.attempts["a-1"].phase, Postmortem)
    supervisor.poll()
    assert run_of(connection).state is RunState.STARTING
    assert run_of(connection).waiting_for is None
    supervisor.clock += LATE_SECONDS + 1
    caplog.clear()
    for _ in range(2):
        supervisor.poll()
    run = run_of(connection)
    assert run.waiting_for is not None
    assert len(caplog.records) == 1
    # The command has ended, so that its time does not count on.
    assert run.trained_seconds(NOW + 100) == 0.0
    supervisor.clock += EXAMINE_SECONDS + 1
    wait_until(lambda: supervisor.poll() or not supervisor.attempts, what="the end")
    assert connection.execute("SELECT kind FROM incidents").fetchone() is not None
    assert not over.is_set()
    over.set()


def test_ends_are_stepped_in_turn_where_one_step_spends_the_turn(
    connection: sqlite3.Connection, supervisor: Doctored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[str] = []
    for run_id in ("a-1", "b-1", "c-1"):
        record = Attempt(run_id, 1, "running", params={}, gpus=(), launch={}, created_at=0.0, started_at=0.0)
        supervisor.attempts[run_id] = LiveAttempt(record, ExecutorProcess(None, Path()), RESOLVED, phase=Sweeping())
    monkeypatch.setattr(type(supervisor), "_adopt_attempts", lambda _: None)
    monkeypatch.setattr(type(supervisor), "step", lambda _, live, __: stepped.append(live.record.run_id))
    monkeypatch.setattr(type(supervisor.context.budget), "is_spent", lambda _: True)
    for _ in range(6):
        supervisor.notice_ends()
    assert stepped == ["a-1", "b-1", "c-1"] * 2


def test_a_run_ends_whatever_its_logs_hold(
    workspace: Workspace,
    connection: sqlite3.Connection,
    supervisor: Doctored,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end is then concluded from its exit alone."""
    real = postmortem.collect

    def collect(folder: Path, **others: object) -> Evidence:
        if folder.name != "unread":
            raise TypeError("an odd line")
        return real(folder, **others)

    monkeypatch.setattr(postmortem, "collect", collect)
    end_one(supervisor, add_run(connection, workspace=workspace), code=3)
    wait_for_ends(supervisor)
    assert connection.execute("SELECT kind FROM incidents").fetchall() == [("nonzero_exit",)]


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_ends_when_its_last_command_exited_and_not_when_that_was_examined(
    workspace: Workspace, connection: sqlite3.Connection, supervisor: Doctored, code: int
) -> None:
    run = add_run(connection, spec=ELSEWHERE, workspace=workspace)
    folder = end_one(supervisor, run, code=code)
    (folder / "exit.json").write_text(json.dumps({"code": code, "signal": None, "ended_at": NOW - 40}))
    wait_for_ends(supervisor)
    run = run_of(connection)
    assert run.state.is_over
    assert run.ended_at == attempt_of(connection).ended_at == NOW - 40


def test_moves_are_recorded_in_the_order_in_which_they_were_made(
    connection: sqlite3.Connection, workspace: Workspace
) -> None:
    """Also if the clock was set back meanwhile."""
    run = add_run(connection, workspace=workspace)
    with transaction(connection):
        repository.move(connection, run, RunState.STARTING, cause="test", now=NOW + 3600)
        repository.move(connection, run_of(connection), RunState.FAILED, cause="test", now=NOW)
    times = [move.at for move in read_transitions(connection, "a-1")]
    assert times == sorted(times)
    assert run_of(connection).ended_at == NOW


@pytest.mark.parametrize("sign", ["log", "line", "sample", "process"])
def test_an_attempt_without_a_record_ended_at_its_last_sign_of_life(
    workspace: Workspace, connection: sqlite3.Connection, supervisor: Doctored, sign: str
) -> None:
    """After a night without power, the agent finds what ran in the evening."""
    begun_at = NOW - 40_000.0
    seen_at = NOW - 39_000.0
    live = begin_one(supervisor, add_run(connection, workspace=workspace), begun_at)
    repository.set_attempt_started(connection, "a-1", 1, begun_at)
    live.record = attempt_of(connection)
    output = workspace.run_dir("a-1") / "attempts/1/nodes/0/output.log"
    output.parent.mkdir(parents=True)
    output.touch()
    os.utime(output, (begun_at, begun_at))
    if sign == "log":
        os.utime(output, (seen_at, seen_at))
    elif sign == "line":
        add_line(connection, 5, seen_at, {}, source=add_source(connection))
    elif sign == "sample":
        insert(
            connection, "agent", id=1, pid=1, start_ticks=1, boot_id="boot", version="0", started_at=NOW - 10,
            heartbeat_at=NOW, recording=0, interval_seconds=1.0,
        )  # fmt: skip
        connection.executemany("INSERT INTO host_samples (at) VALUES (?)", [(seen_at,), (NOW - 5,)])
    else:
        live.seen_at = seen_at
    wait_for_ends(supervisor)
    assert attempt_of(connection).ended_at == seen_at


def test_a_run_that_goes_on_after_a_retry_says_so_once_and_what_differs(
    workspace: Workspace, connection: sqlite3.Connection, supervisor: Doctored
) -> None:
    context = supervisor.context
    launch = Launch(("x",), {}, "/", 1.0)
    run = replace(add_run(connection, workspace=workspace, now=NOW - 9), params={"batch_size": 128, "lr": 0.1})
    with transaction(connection):
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=launch, now=NOW - 9)
        repository.move(connection, run_of(connection), RunState.STARTING, cause="test", now=NOW - 9)
        execution.note_running(context, "a-1", 1, "first step read", NOW - 8)
        assert read_events(connection) == [], "an attempt that follows no retry"
        repository.move(connection, run_of(connection), RunState.RECOVERING, cause="test", now=NOW - 7)
        context.note("decision", "lowered batch_size 128 → 64", "a-1", 1, key="retry")
        run = replace(run, params={"batch_size": 64, "lr": 0.1}, resume_from="/r/step_049400.safetensors")
        repository.insert_attempt(connection, run, number=2, gpus=(), launch=launch, now=NOW - 6)
        for state in (RunState.QUEUED, RunState.STARTING):
            repository.move(connection, run_of(connection), state, cause="test", now=NOW - 6)
        for _ in range(2):
            execution.note_running(context, "a-1", 2, "first step read", NOW - 5)
    [event] = [event for event in read_events(connection) if event.kind == "runs_again"]
    assert (event.at, event.attempt) == (NOW - 5, 2)
    assert mentions(event.message, "step 49 400", "batch_size 64")
    assert "lr" not in event.message
    assert event in read_news(connection, limit=3)


def test_a_restart_of_an_active_run_is_by_the_person_who_asked_for_it(
    workspace: Workspace, connection: sqlite3.Connection, supervisor: Doctored
) -> None:
    end_one(supervisor, add_run(connection, workspace=workspace), code=0, intent="restart")
    wait_for_ends(supervisor)
    assert run_of(connection).state is RunState.QUEUED
    last = read_transitions(connection, "a-1")[-1]
    assert (last.cause, last.actor) == ("restart", "ann")


def test_a_stop_that_its_target_never_answered_says_what_may_still_run(
    workspace: Workspace, connection: sqlite3.Connection, supervisor: Doctored
) -> None:
    run = add_run(connection, workspace=workspace)
    end_one(supervisor, run, code=None, intent="stop", target="lab", given_up="no route", job="7")
    wait_for_ends(supervisor)
    ended = run_of(connection)
    assert ended.state is RunState.STOPPED
    assert mentions(ended.reason or "", "given up", "no route", "job 7")
