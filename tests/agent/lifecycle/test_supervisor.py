"""The supervisor's own promises, where whole runs would show them only by chance."""

from __future__ import annotations

import errno
import json
import os
import selectors
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import TROUBLE_SECONDS
from gputui.agent.lifecycle import execution, postmortem
from gputui.agent.lifecycle.active_run import ActiveRun, Adopting, LiveAttempt, Postmortem, Running
from gputui.agent.lifecycle.execution import ALIVE_SECONDS, SILENT_SECONDS
from gputui.agent.lifecycle.postmortem import EXAMINE_SECONDS, REPORT_AFTER_SECONDS
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.config import Workspace
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.identity import ProcessIdentity, identify, is_alive
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec, spec_of
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store import commands, queue
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.events import read_events
from gputui.store.run_states import RunState
from gputui.store.runs import find_run, get_run
from tests.conftest import wait_until
from tests.recovery.attempts import recorded
from tests.stores import open_store


class Clock:
    def __init__(self) -> None:
        self.wall = 1_790_000_000.0
        self.monotonic = 1000.0


class Troubled(Supervisor):
    """One whose look at a run meets something that nobody foresaw."""

    trouble: Exception = ValueError("an odd file")
    looks = 0

    def step(self, run: ActiveRun, attempt: LiveAttempt, read_until: float) -> None:
        self.looks += 1
        raise self.trouble


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    made = open_store(workspace.database)
    yield made
    made.close()


def supervisor(
    kind: type[Supervisor], workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> Supervisor:
    with selectors.DefaultSelector() as selector:
        context = AgentContext.of(
            connection, workspace, wake=lambda: None, now=lambda: clock.wall, monotonic=lambda: clock.monotonic
        )
        return kind(context, selector)


def recovering_run(connection: sqlite3.Connection, not_before: float, now: float) -> None:
    spec = RunSpec(name="a", launcher="python", program=("x.py",), python="/p", workdir="/")
    with transaction(connection):
        repository.insert_run(connection, run_id="a-1", sequence=1, name="a", spec=spec, params={}, now=now, actor="me")
        for target in (RunState.STARTING, RunState.RECOVERING):
            run = get_run(connection, "a-1")
            assert run is not None
            repository.move(connection, run, target, cause="test", now=now)
        repository.set_next_attempt(connection, "a-1", params={}, resume_from=None, not_before=not_before)


def queued_run(
    connection: sqlite3.Connection, workspace: Workspace, now: float, run_id: str = "a-1", sequence: int = 1
) -> Path:
    """A run that may start; its folder."""
    spec = RunSpec(name="a", launcher="python", program=("x.py",), python="/p", workdir="/")
    with transaction(connection):
        repository.insert_run(
            connection, run_id=run_id, sequence=sequence, name="a", spec=spec, params={}, now=now, actor="me"
        )
    folder = workspace.run_dir(run_id)
    folder.mkdir(exist_ok=True)
    write_spec(folder / SPEC_FILE, spec)
    return folder


def test_every_gpu_that_a_run_left_is_drained_after_adoption(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    queued_run(connection, workspace, clock.wall)
    run = get_run(connection, "a-1")
    assert run is not None
    with transaction(connection):
        repository.take_leases(connection, "a-1", ["GPU-1", "GPU-2", "GPU-3"], clock.wall)
        repository.move(connection, run, RunState.STOPPED, cause="test", now=clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    made.adopt()
    assert made.release.uuids() == {"GPU-1", "GPU-2", "GPU-3"}


def test_a_run_whose_specification_is_damaged_is_given_up_with_the_reason(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    (queued_run(connection, workspace, clock.wall) / SPEC_FILE).write_text("{")
    supervisor(Supervisor, workspace, connection, clock).turn()
    assert state(connection) == "failed"
    assert "cannot start: cannot read" in read_events(connection)[-1].message


def test_what_may_pass_is_tried_again_and_said_once(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    (queued_run(connection, workspace, clock.wall) / "attempts").write_text("no folder")
    made = supervisor(Supervisor, workspace, connection, clock)
    for _ in range(3):
        made.needs_schedule = True
        made.turn()
    assert state(connection) == "queued"
    (event,) = read_events(connection)
    assert event.severity == "warning" and event.message.startswith("cannot start: ")


def test_a_run_whose_metrics_lie_on_a_dead_file_system_holds_up_no_other(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers, touched_by = threading.Event(), set()

    def slow(real: Any) -> Any:
        def call(path: Any = ".", *rest: Any, **options: Any) -> Any:
            if str(path).startswith(str(tmp_path / "far")):
                touched_by.add(threading.current_thread())
                answers.wait(30)
            return real(path, *rest, **options)

        return call

    made = supervisor(Supervisor, workspace, connection, clock)
    for sequence, (run_id, where) in enumerate([("far-1", tmp_path / "far"), ("near-1", workspace.run_dir("near-1"))]):
        queued_run(connection, workspace, clock.wall, run_id, sequence)
        made.context.ingest.open_source(run_id, str(where / "m.jsonl"), "jsonl")
    started: list[str] = []
    made.admission.spawn = lambda attempt, *_: started.append(attempt.run_id)
    for name in ("open", "stat", "lstat", "scandir"):
        monkeypatch.setattr(os, name, slow(getattr(os, name)))
    for _ in range(3):
        made.needs_schedule = True
        made.turn()
        clock.monotonic += 2.0
    assert started == ["near-1"]
    far = get_run(connection, "far-1")
    assert far is not None and far.waiting_for == f"waits for {tmp_path}/far/m.jsonl to answer"
    answers.set()

    def is_started() -> bool:
        made.turn()
        return "far-1" in started

    wait_until(is_started)
    assert threading.current_thread() not in touched_by and touched_by


def state(connection: sqlite3.Connection) -> str:
    return str(connection.execute("SELECT state FROM runs").fetchone()[0])


def test_what_nobody_foresaw_in_one_run_is_told_once_and_left_alone_for_a_while(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Troubled, workspace, connection, clock)
    record = Attempt("a-1", 1, "running", {}, (), {}, 0.0, 0.0)
    made.runs.of("a-1").begin(LiveAttempt(record, ExecutorProcess(None)))
    for _ in range(3):
        made.turn()
    (event,) = read_events(connection)
    assert "an odd file" in event.message
    assert made.looks == 1
    clock.monotonic += TROUBLE_SECONDS + 1
    made.turn()
    assert made.looks == 2 and len(read_events(connection)) == 1
    made.trouble = sqlite3.IntegrityError("NOT NULL constraint failed: incidents.at")
    clock.monotonic += TROUBLE_SECONDS + 1
    made.turn()
    assert any("NOT NULL" in event.message for event in read_events(connection))
    made.trouble = sqlite3.OperationalError("database or disk is full")
    clock.monotonic += TROUBLE_SECONDS + 1
    made.turn()
    assert made.parts.unwritable == "database or disk is full"
    made.trouble = sqlite3.OperationalError("database is locked")
    made.trouble.sqlite_errorcode = sqlite3.SQLITE_BUSY
    with pytest.raises(sqlite3.OperationalError):
        made.turn()


PARTS = ["health", "gpu_faults", "outbox", "release", "waits", "admission"]


@pytest.mark.parametrize("broken", PARTS)
@pytest.mark.parametrize("error", [ValueError("odd"), sqlite3.OperationalError("database or disk is full")])
def test_a_part_that_fails_keeps_no_other_from_its_work_and_is_tried_again(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, broken: str, error: Exception
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    done: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def turn(self, *_: object) -> bool:
            if self.name == broken and clock.monotonic < 1050:
                connection.execute("BEGIN IMMEDIATE")
                raise error
            done.append(self.name)
            return False

    for name in PARTS:
        setattr(made, name, Part(name))
    for _ in range(3):
        made.turn()
    assert set(done) == set(PARTS) - {broken} and not connection.in_transaction
    is_unforeseen = isinstance(error, ValueError)
    assert len(read_events(connection)) == is_unforeseen
    assert (made.parts.unwritable is None) == is_unforeseen
    clock.monotonic = 1100.0
    made.turn()
    assert broken in done


def test_the_longest_turn_is_known_by_the_part_that_took_it(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    parts = supervisor(Supervisor, workspace, connection, clock).parts

    def take(seconds: float) -> None:
        clock.monotonic += seconds

    for long, short in ((0.2, 0.01), (0.1, 0.02)):
        parts.begin_turn()
        parts.do("metrics", lambda: take(short))  # noqa: B023
        parts.do("commands", lambda: take(long))  # noqa: B023
        parts.end_turn()
    assert parts.longest_seconds == pytest.approx(0.21) and parts.longest_part == "commands"


def test_a_wait_ends_when_it_should_although_the_wall_clock_was_set_back(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    recovering_run(connection, clock.wall + 5, clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    made.turn()
    assert state(connection) == "recovering"
    clock.wall -= 3600
    clock.monotonic += 4
    made.turn()
    assert state(connection) == "recovering"
    clock.monotonic += 2
    made.turn()
    assert state(connection) != "recovering"


def test_a_wait_ends_at_once_when_the_wall_clock_jumps_ahead(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    recovering_run(connection, clock.wall + 5, clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    made.turn()
    clock.wall += 3600
    made.turn()
    assert state(connection) != "recovering"


def live_run(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, made: Supervisor
) -> tuple[Path, LiveAttempt]:
    """A run whose command was started now and whose shim lives (it is this process); its attempt's folder."""
    queued_run(connection, workspace, clock.wall)
    with transaction(connection):
        run = get_run(connection, "a-1")
        assert run is not None
        launch = Launch(("x",), {}, "/", 1.0)
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=launch, now=clock.wall)
        repository.set_attempt_started(connection, "a-1", 1, clock.wall)
        repository.move(connection, run, RunState.STARTING, cause="test", now=clock.wall)
    record = get_attempt(connection, "a-1", 1)
    assert record is not None
    live = LiveAttempt(record, ExecutorProcess(identify(os.getpid())))
    made.runs.of("a-1").begin(live)
    folder = workspace.run_dir("a-1") / "attempts" / "1"
    folder.mkdir(parents=True)
    return folder, live


def after(made: Supervisor, clock: Clock, connection: sqlite3.Connection, seconds: float) -> str:
    """The run's state so many seconds later."""
    clock.wall += seconds
    clock.monotonic += seconds
    made.turn()
    return state(connection)


def test_a_command_that_writes_is_running_without_steps(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    folder, live = live_run(workspace, connection, clock, made)
    (folder / "output.log").touch()
    assert after(made, clock, connection, ALIVE_SECONDS + 1) == "starting"
    rank = folder / "ranks/none_x/attempt_0/0"
    rank.mkdir(parents=True)
    (rank / "stderr.log").write_text("Loading")
    assert after(made, clock, connection, 2.0) == "running"
    assert live in made.runs.running() and isinstance(made.runs.of("a-1").phase, Running)


def test_output_at_once_is_not_yet_a_command_that_runs(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    folder, _ = live_run(workspace, connection, clock, made)
    (folder / "output.log").write_text("usage: train.py")
    assert after(made, clock, connection, ALIVE_SECONDS - 1) == "starting"
    assert after(made, clock, connection, 2.0) == "running"


def test_a_silent_command_is_running_after_a_minute(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    live_run(workspace, connection, clock, made)
    assert after(made, clock, connection, SILENT_SECONDS - 1) == "starting"
    assert after(made, clock, connection, 2.0) == "running"


def test_what_a_command_could_not_be_given_of_its_shell_is_named_once(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    folder, live = live_run(workspace, connection, clock, made)
    live.record = replace(live.record, started_at=None)
    (folder / "started.json").write_text(json.dumps({"at": clock.wall, "refused": ["NOFILE", "nice"]}))
    after(made, clock, connection, 1.0)
    after(made, clock, connection, 1.0)
    found = connection.execute("SELECT message FROM events WHERE kind = 'limits_refused' AND run_id = 'a-1'").fetchall()
    assert len(found) == 1 and "NOFILE, nice" in found[0][0]


def test_a_start_is_stored_with_all_that_it_says_or_not_at_all(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    """The disk is full for a moment."""
    made = supervisor(Supervisor, workspace, connection, clock)
    folder, live = live_run(workspace, connection, clock, made)
    live.record = replace(live.record, started_at=None)
    connection.execute("UPDATE attempts SET started_at = NULL")
    (folder / "started.json").write_text(json.dumps({"at": clock.wall, "refused": ["NOFILE"]}))
    connection.execute("CREATE TEMP TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(sqlite3.Error):
        execution.step(live, Running(), made.context)
    assert connection.execute("SELECT started_at FROM attempts").fetchall() == [(None,)]
    connection.execute("DROP TRIGGER full")
    execution.step(live, Running(), made.context)
    assert live.record.started_at == clock.wall
    assert [event.kind for event in read_events(connection, run_id="a-1")].count("limits_refused") == 1


# --- the end of a long run --------------------------------------------------------------------------------------------

LONG = 60_000


def ended_run(connection: sqlite3.Connection, workspace: Workspace, made: Supervisor, now: float) -> Path:
    """A run whose command has just ended well; its metrics file, which is still to be written."""
    folder = queued_run(connection, workspace, now)
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "attempts/1/started.json").write_text(json.dumps({"at": now}))
    (folder / "attempts/1/exit.json").write_text(json.dumps({"code": 0, "signal": None, "ended_at": now}))
    path = folder / "metrics.jsonl"
    with transaction(connection):
        run = get_run(connection, "a-1")
        assert run is not None
        made.context.ingest.open_source("a-1", str(path), "jsonl")
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=Launch(("x",), {}, "/", 1.0), now=now)
        made.context.ingest.begin_attempt("a-1", 1)
        repository.move(connection, run, RunState.STARTING, cause="test", now=now)
    made.runs.of("a-1").begin(LiveAttempt(record_of(connection), ExecutorProcess(None)))
    return path


def record_of(connection: sqlite3.Connection) -> Attempt:
    record = get_attempt(connection, "a-1", 1)
    assert record is not None
    return record


def test_what_an_attempt_left_unread_is_read_over_many_turns(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    path = ended_run(connection, workspace, made, clock.wall)
    path.write_text("".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(LONG)))
    turns = 0
    while not isinstance(made.runs.of("a-1").phase, Postmortem):
        made.turn()
        turns += 1
        assert made.next_due() == clock.monotonic or isinstance(made.runs.of("a-1").phase, Postmortem)
    assert turns > 2 and made.parts.unwritable is None
    wait_until(lambda: made.turn() or state(connection) == "succeeded", what="the end")
    ended = record_of(connection)
    assert (ended.first_step, ended.last_step) == (0, LONG - 1) and ended.first_step_at is not None


def test_the_end_of_a_long_run_looks_at_few_of_its_lines(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    ended_run(connection, workspace, made, clock.wall)
    connection.execute(
        "INSERT INTO metrics WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) "
        "SELECT (SELECT source_id FROM metric_sources), 0, i * 30, 1, NULL, i, i, "
        'printf(\'{"step": %d, "loss": 0.5}\', i) FROM n',
        (LONG,),
    )
    thousands = [0]

    def count() -> int:
        thousands[0] += 1
        return 0

    connection.set_progress_handler(count, 1000)
    wait_until(lambda: made.turn() or state(connection) == "succeeded", what="the end")
    connection.set_progress_handler(None, 0)
    # Instructions of SQLite: a walk over all lines takes several for each.
    assert thousands[0] * 1000 < LONG


# --- a row that cannot be understood ----------------------------------------------------------------------------------

BROKEN = {
    "not JSON": "spec = '{'",
    "another kind of value": "spec = '[1]'",
    "a launcher of a newer gputui": "spec = json_set(spec, '$.launcher', 'spaceship')",
    "no program": "spec = json_remove(spec, '$.program')",
    "damaged parameters": "params = '{'",
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("state_before", ["queued", "recovering"])
def test_a_row_that_cannot_be_understood_sets_only_its_own_run_aside(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, change: str, state_before: str
) -> None:
    queued_run(connection, workspace, clock.wall, "b-1")
    queued_run(connection, workspace, clock.wall, "a-1", sequence=2)
    connection.execute(f"UPDATE runs SET {change}, state = ? WHERE run_id = 'b-1'", (state_before,))
    made = supervisor(Supervisor, workspace, connection, clock)
    started: list[str] = []
    made.admission.spawn = lambda record, *_: started.append(record.run_id)
    made.adopt()
    made.turn()
    states = dict(connection.execute("SELECT run_id, state FROM runs").fetchall())
    assert states == {"b-1": "failed", "a-1": "starting"} and started == ["a-1"]
    [reason] = connection.execute("SELECT reason FROM runs WHERE run_id = 'b-1'").fetchone()
    assert "this gputui cannot read" in reason
    assert find_run(connection, "b-1") is not None
    # It can be removed, and a resume is refused in a sentence.
    answers = []
    for verb in ("resume", "rm"):
        command_id = commands.submit(connection, verb, "b-1", {}, "me", now=clock.wall)
        assert dispatch.answer_all(made) == 1
        answers.append(commands.answer(connection, command_id))
    assert [answer and answer.state for answer in answers] == ["refused", "done"]


def test_what_a_newer_gputui_added_to_a_specification_is_left_out(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    queued_run(connection, workspace, clock.wall)
    connection.execute(
        "UPDATE runs SET spec = json_set(spec, '$.stars', 5, '$.gpus.kind', 'H100', "
        '\'$.checkpoints\', json(\'{"directory": "/c", "pattern": "*", "odd": 1}\'))'
    )
    run = get_run(connection, "a-1")
    assert run is not None
    found = spec_of(run).checkpoints
    assert found is not None and found.directory == "/c"


def test_a_run_that_cannot_be_understood_is_watched_to_its_end_and_then_fails(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    ended_run(connection, workspace, made, clock.wall)
    connection.execute("UPDATE runs SET spec = '{'")
    repository.take_leases(connection, "a-1", ["g0"], clock.wall)
    made.turn()
    assert state(connection) == "failed" and not made.runs.attempts()
    assert connection.execute("SELECT state FROM attempts").fetchone() == ("failed",)
    assert not repository.leases(connection)


def test_specifications_are_understood_once(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        queued_run(connection, workspace, clock.wall, f"c-{number}", number)
    connection.execute("UPDATE runs SET spec = json_set(spec, '$.nproc', sequence)")
    queue.set_pause(connection, actor="me", now=clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    parsed = []
    original = RunSpec.from_json
    monkeypatch.setattr(RunSpec, "from_json", lambda data: parsed.append(1) or original(data))
    for _ in range(5):
        made.needs_schedule = True
        made.turn()
    assert len(parsed) <= 30


def test_a_run_for_which_no_process_is_left_starts_when_there_is_one(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued_run(connection, workspace, clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    made.selector = selectors.DefaultSelector()
    own = identify(os.getpid())
    answers = iter([BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), own])

    def start(*_: object) -> ProcessIdentity | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("gputui.agent.lifecycle.supervisor.start", start)
    for _ in range(3):
        made.turn()
    assert state(connection) == "starting" and made.runs.attempt("a-1") is None
    assert [event.kind for event in read_events(connection)][-1] == "agent_error"
    clock.monotonic += TROUBLE_SECONDS + 1
    made.turn()
    live = made.runs.attempt("a-1")
    assert live is not None and live.executor.identity == own and live.record.number == 1
    made.selector.close()


def test_a_stop_of_a_run_that_is_not_taken_over_yet_reaches_it_when_it_is(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued_run(connection, workspace, clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    made.selector = selectors.DefaultSelector()
    with subprocess.Popen(["sleep", "600"]) as process:
        alive = identify(process.pid)
        assert alive is not None
        monkeypatch.setattr("gputui.agent.lifecycle.supervisor.start", lambda *_: alive)
        made.turn()
        successor = supervisor(Supervisor, workspace, connection, clock)
        successor.selector = made.selector
        successor.runs.of("a-1").phase = Adopting()
        successor.runs.of("a-1").trouble.until = clock.monotonic + TROUBLE_SECONDS
        commands.submit(connection, "stop", "a-1", {"now": True}, "me", now=clock.wall)
        dispatch.answer_all(successor)
        assert state(connection) == "stopping"
        clock.monotonic += TROUBLE_SECONDS + 1
        successor.turn()
        wait_until(lambda: not is_alive(alive), what="its end")
    made.selector.close()


def test_a_queue_that_is_opened_starts_its_runs_over_many_turns(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    for number in range(8):
        queued_run(connection, workspace, clock.wall, f"c-{number}", number)
    made = supervisor(Supervisor, workspace, connection, clock)
    started: list[str] = []

    def spawn(record: Attempt, *_: object) -> None:
        started.append(record.run_id)
        clock.monotonic += 0.015

    made.admission.spawn = spawn
    for count in (2, 4, 6, 8):
        made.context.turn.begin()
        made.turn()
        assert len(started) == count and (made.next_due() == clock.monotonic) == (count < 8)


def test_attempts_that_end_together_are_noticed_over_many_turns(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    for number in range(5):
        record = Attempt(f"a-{number}", 1, "running", {}, (), {}, 0.0, 0.0)
        made.runs.of(record.run_id).begin(LiveAttempt(record, ExecutorProcess(None)))
    looked: list[str] = []

    def step(_: Supervisor, run: ActiveRun, *__: object) -> None:
        looked.append(run.run_id)
        clock.monotonic += 0.015

    monkeypatch.setattr(Supervisor, "step", step)
    for count in (2, 4, 5, 7):
        made.context.turn.begin()
        made.notice_ends()
        assert len(looked) == count and (made.next_due() == clock.monotonic) == (count != 5)
    assert looked == [f"a-{number}" for number in (0, 1, 2, 3, 4, 0, 1)]


# --- a file system that does not answer -------------------------------------------------------------------------------


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Whoever looks into a folder of checkpoints waits for the end of the test."""
    over = threading.Event()
    monkeypatch.setattr(postmortem, "surveyed", lambda _search: over.wait(60) and ())
    yield over
    over.set()


def failed_run(workspace: Workspace, connection: sqlite3.Connection, clock: Clock, made: Supervisor) -> None:
    """A run with checkpoints whose command has just failed."""
    ended_run(connection, workspace, made, clock.wall)
    spec = json.dumps({"directory": "/dead/checkpoints", "pattern": "*.pt", "resume": []})
    connection.execute("UPDATE runs SET spec = json_set(spec, '$.checkpoints', json(?))", (spec,))
    exit_record = {"code": 1, "signal": None, "ended_at": clock.wall}
    (workspace.run_dir("a-1") / "attempts/1/exit.json").write_text(json.dumps(exit_record))
    (workspace.run_dir("a-1") / "attempts/1/output.log").write_text("ValueError: odd\n")


def test_checkpoints_that_cannot_be_reached_do_not_keep_a_run_from_ending(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, hanging: threading.Event
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    failed_run(workspace, connection, clock, made)
    made.turn()
    assert isinstance(made.runs.of("a-1").phase, Postmortem)
    made.turn()
    assert state(connection) == "starting"
    clock.monotonic += EXAMINE_SECONDS + 1
    wait_until(lambda: made.turn() or not made.runs.attempts(), what="the end")
    assert connection.execute("SELECT kind FROM incidents").fetchone() is not None
    assert not hanging.is_set()


def test_a_run_that_is_stopped_while_its_checkpoints_are_read_waits_for_none(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock, hanging: threading.Event
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    failed_run(workspace, connection, clock, made)
    made.turn()
    commands.submit(connection, "stop", "a-1", {}, "me", now=clock.wall)
    assert dispatch.answer_all(made) == 1
    clock.monotonic += REPORT_AFTER_SECONDS + 1
    wait_until(lambda: made.turn() or not made.runs.attempts(), what="the end")
    assert state(connection) == "stopped" and not hanging.is_set()


def test_a_stop_by_which_the_launcher_had_to_kill_a_rank_says_so(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Supervisor, workspace, connection, clock)
    ended_run(connection, workspace, made, clock.wall)
    connection.execute("UPDATE runs SET spec = json_set(spec, '$.launcher', 'torchrun')")
    connection.execute("UPDATE attempts SET stop_requested = 'stop'")
    forced = next(case for case in recorded() if case.name == "stopped_rank_forced")
    folder = workspace.run_dir("a-1") / "attempts/1"
    folder.joinpath("output.log").write_text(forced.files["output.log"])
    # torchrun itself ended in time; it is its rank that did not.
    exit_record = {"code": 1, "signal": None, "ended_at": clock.wall, "stop_requested": True, "forced": False}
    folder.joinpath("exit.json").write_text(json.dumps(exit_record))
    wait_until(lambda: made.turn() or not made.runs.attempts(), what="the end")
    run, attempt = get_run(connection, "a-1"), get_attempt(connection, "a-1", 1)
    assert run is not None and attempt is not None and attempt.exit is not None
    assert run.state is RunState.STOPPED and attempt.exit["forced"] is True
    assert "killed" in (run.reason or "")
