"""Commands: what they do and their answer are one thing, and no row can bring the agent down."""

from __future__ import annotations

import json
import os
import selectors
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import CheckpointWatch, LiveAttempt
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.config import Workspace
from gputui.gpu.model import GpuFacts, Inventory
from gputui.recovery.checkpoint_search import CheckpointChoice, for_person
from gputui.recovery.ledger_inputs import CheckpointSearch
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.identity import asker
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, GpuRequest, RunSpec
from gputui.runs.submission import submit_run
from gputui.store import alerts, commands, queue
from gputui.store.attempts import get_attempt
from gputui.store.database import open_commander
from gputui.store.runs import get_run
from tests.conftest import wait_until
from tests.stores import open_store
from tests.texts import mentions

NOW = 1_790_000_000.0
SPEC = RunSpec(
    name="demo",
    launcher="python",
    program=("x.py",),
    python=sys.executable,
    workdir="/",
    params={"steps": 5, "api_key": "quite-a-secret"},
    checkpoints=CheckpointSpec("{run_dir}/checkpoints", "*.pt", ("--resume", "{checkpoint}", "--api-key", "hush-hush")),
)


def make(workspace: Workspace, connection: sqlite3.Connection) -> Supervisor:
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: 0.0)
    return Supervisor(context, selectors.DefaultSelector())


@pytest.fixture
def supervisor(workspace: Workspace) -> Iterator[Supervisor]:
    connection = open_store(workspace.database)
    yield make(workspace, connection)
    connection.close()


def launch(supervisor: Supervisor) -> int:
    return submit_run(supervisor.context.workspace, supervisor.context.connection, SPEC, name=None, actor="me", now=NOW)


def move(supervisor: Supervisor, state: str) -> None:
    supervisor.context.connection.execute("UPDATE runs SET state = ?", (state,))


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(("needed_gib", "state"), [(24, "done"), (40, "refused")])
def test_memory_that_no_gpu_has_is_refused_at_once(supervisor: Supervisor, needed_gib: int, state: str) -> None:
    gpus = tuple(GpuFacts(uuid=f"GPU-{n}", index=n, name="x", memory_total_bytes=24 << 30) for n in range(2))
    supervisor.context.recorder.inventory = Inventory(at=NOW, source="nvml", driver_version=None, gpus=gpus)
    spec = replace(SPEC, gpus=GpuRequest(2, memory_bytes=needed_gib << 30))
    connection = supervisor.context.connection
    command_id = submit_run(supervisor.context.workspace, connection, spec, name=None, actor="me", now=NOW)
    dispatch.answer_all(supervisor)
    answer = commands.answer(connection, command_id)
    assert answer is not None and answer.state == state
    assert answer.reason is None or "24 GiB" in answer.reason


def test_a_stop_has_the_checkpoints_looked_for_at_once(supervisor: Supervisor) -> None:
    """What it would lose is shown while it waits for the exit."""
    connection = supervisor.context.connection
    launch(supervisor)
    dispatch.answer_all(supervisor)
    with transaction(connection):
        run = get_run(connection, "demo-1")
        assert run is not None
        start = Launch(("x",), {}, "/", 1.0)
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=start, now=NOW)
        connection.execute("UPDATE runs SET state = 'running'")
    record = get_attempt(connection, "demo-1", 1)
    assert record is not None
    look = CheckpointWatch(due_at=10.0)
    supervisor.runs.of("demo-1").begin(LiveAttempt(record, ExecutorProcess(None), checkpoint_watch=look))
    running = get_run(connection, "demo-1")
    assert running is not None
    supervisor.stop(running, intent="stop", actor="me", at_once=False)
    assert look.due_at == supervisor.context.monotonic()


@pytest.mark.parametrize("column", ["args", "verb", "run_id", "actor"])
@pytest.mark.parametrize("value", ["cast(x'7bff' as text)", "'" + "[" * 200_000 + "'"])
def test_a_command_that_nobody_can_read_hides_no_other(supervisor: Supervisor, column: str, value: str) -> None:
    connection = supervisor.context.connection
    commands.submit(connection, "stop", "a-1", {}, "me", now=NOW)
    connection.execute(f"UPDATE commands SET {column} = {value}")
    command_id = launch(supervisor)
    dispatch.answer_all(supervisor)
    answered = commands.answer(connection, command_id)
    assert answered is not None and answered.state == "done"
    assert connection.execute("SELECT count(*) FROM commands WHERE state = 'pending'").fetchone() == (0,)


@pytest.mark.parametrize("place", ["enter_run", "give_answer"])
def test_an_agent_killed_around_the_answer_launches_one_run(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    command_id = launch(supervisor)
    owner = dispatch if place == "enter_run" else commands
    original = getattr(owner, place)

    def then_die(*args: object, **options: object) -> None:
        original(*args, **options)
        raise Killed

    monkeypatch.setattr(owner, place, then_die)
    with pytest.raises(Killed):
        dispatch.answer_all(supervisor)
    monkeypatch.undo()
    dispatch.answer_all(supervisor)
    assert supervisor.context.connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None and answer.state == "done"
    assert answer.result is not None and answer.result["state"] == "queued"


@pytest.mark.parametrize(("verb", "state"), [("restart", "queued"), ("stop", "stopped"), ("rm", "removed")])
def test_a_command_is_answered_in_the_transaction_of_what_it_does(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, verb: str, state: str
) -> None:
    launch(supervisor)
    dispatch.answer_all(supervisor)
    if verb != "stop":
        move(supervisor, "failed")
    command_id = commands.submit(supervisor.context.connection, verb, "demo-1", {}, "me", now=NOW)
    original = commands.give_answer
    inside = []

    def look(connection: sqlite3.Connection, *args: object, **options: object) -> None:
        inside.append(connection.in_transaction)
        original(connection, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(commands, "give_answer", look)
    dispatch.answer_all(supervisor)
    assert inside == [True]
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None and answer.state == "done"
    assert answer.result is not None and (answer.result["id"], answer.result["state"]) == ("demo-1", state)


def test_a_folder_of_checkpoints_is_not_made_before_the_script_makes_it(supervisor: Supervisor) -> None:
    launch(supervisor)
    dispatch.answer_all(supervisor)
    assert not (supervisor.context.workspace.run_dir("demo-1") / "checkpoints").exists()


@pytest.mark.parametrize("verb", ["run", "stop", "restart", "rm", "queue_pause"])
def test_a_command_that_is_withdrawn_while_it_is_carried_out_does_nothing(
    workspace: Workspace, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    if verb in ("stop", "restart", "rm"):
        launch(supervisor)
        dispatch.answer_all(supervisor)
        move(supervisor, "queued" if verb == "stop" else "failed")
    before = list(supervisor.context.connection.iterdump())
    command_id = launch(supervisor) if verb == "run" else None
    command_id = command_id or commands.submit(supervisor.context.connection, verb, "demo-1", {}, "me", now=NOW)
    pending = commands.pending

    def read_and_withdraw(connection: sqlite3.Connection) -> list[commands.PendingCommand]:
        waiting = pending(connection)
        with closing(open_commander(workspace.database)) as client:
            assert commands.wait_for_answer(client, command_id, 0.0) is None
        return waiting

    monkeypatch.setattr(commands, "pending", read_and_withdraw)
    assert dispatch.answer_all(supervisor) == 0
    after = [line for line in supervisor.context.connection.iterdump() if "not answered in time" not in line]
    assert after == before
    assert [folder.name for folder in workspace.runs.glob("[!.]*")] == (
        [] if verb in ("run", "queue_pause") else ["demo-1"]
    )
    assert not supervisor.context.connection.in_transaction


@pytest.mark.parametrize("frees_room", [True, False])
def test_a_command_that_cannot_be_withdrawn_on_a_full_disk_is_not_said_to_be_refused(
    workspace: Workspace, supervisor: Supervisor, frees_room: bool
) -> None:
    command_id = launch(supervisor)
    seconds = 0.0
    with closing(open_commander(workspace.database)) as client:
        client.execute("PRAGMA query_only = ON")

        def pause(_: float) -> None:
            nonlocal seconds
            seconds += 1.0
            if frees_room and seconds > 5.0:
                client.execute("PRAGMA query_only = OFF")

        if frees_room:
            assert commands.wait_for_answer(client, command_id, 2.0, clock=lambda: seconds, pause=pause) is None
        else:
            with pytest.raises(commands.NotWithdrawnError):
                commands.wait_for_answer(client, command_id, 2.0, clock=lambda: seconds, pause=pause)
    assert len(commands.pending(supervisor.context.connection)) == (0 if frees_room else 1)


def full(*_args: object, **_options: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_command_whose_write_fails_holds_up_no_other_and_is_refused_in_the_end(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dispatch.HANDLERS, "restart", full)
    failing = commands.submit(supervisor.context.connection, "restart", "demo-1", {}, "me", now=NOW)
    other = commands.submit(supervisor.context.connection, "queue_pause", None, {}, "me", now=NOW)
    assert dispatch.answer_all(supervisor) == 1
    paused = commands.answer(supervisor.context.connection, other)
    assert paused is not None and paused.state == "done"
    assert commands.answer(supervisor.context.connection, failing) is None
    wait_until(lambda: dispatch.answer_all(supervisor), what="the refusal")
    answer = commands.answer(supervisor.context.connection, failing)
    assert answer is not None and answer.state == "refused" and "disk is full" in (answer.reason or "")
    assert dispatch.answer_all(supervisor) == 0 and not supervisor.failed_writes


def test_a_command_that_cannot_even_be_refused_is_not_done_later(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_id = launch(supervisor)
    with monkeypatch.context() as patched:
        patched.setattr(commands, "give_answer", full)
        for _ in range(5):
            assert dispatch.answer_all(supervisor) == 0
    assert dispatch.answer_all(supervisor) == 1
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None and answer.state == "refused"
    assert supervisor.context.connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


@pytest.mark.parametrize("verb", [*dispatch.HANDLERS, "nonsense"])
@pytest.mark.parametrize("args", ['{"set": 5}', '{"set": ["steps"]}', "[]", "garbage", '{"ticket": 5, "name": []}'])
def test_no_row_brings_the_agent_down(supervisor: Supervisor, verb: str, args: str) -> None:
    launch(supervisor)
    dispatch.answer_all(supervisor)
    move(supervisor, "failed")
    supervisor.context.connection.execute(
        "INSERT INTO commands (created_at, verb, run_id, args, actor) VALUES (?, ?, 'demo-1', ?, 'me')",
        (NOW, verb, args),
    )
    wait_until(lambda: dispatch.answer_all(supervisor) == 1, what="an answer")
    assert dispatch.answer_all(supervisor) == 0


@pytest.mark.parametrize("is_there", [True, False])
def test_a_name_that_is_not_utf8_holds_up_no_command(supervisor: Supervisor, tmp_path: Path, is_there: bool) -> None:
    first = resumable(supervisor)
    commands.give_answer(supervisor.context.connection, first, "refused", now=NOW, reason="not answered in time")
    path = tmp_path / os.fsdecode(b"\xff.pt")
    if is_there:
        with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr("weights", "w")
    odd = commands.submit(supervisor.context.connection, "resume", "demo-1", {"from": str(path)}, "me", now=NOW)
    other = commands.submit(supervisor.context.connection, "stop", "demo-1", {}, "me", now=NOW)
    wait_until(
        lambda: dispatch.answer_all(supervisor) and commands.answer(supervisor.context.connection, odd), what="it"
    )
    for command_id in (odd, other):
        answer = commands.answer(supervisor.context.connection, command_id)
        assert answer is not None and answer.state == "refused"


def resumable(supervisor: Supervisor, name: str = "step_1.pt") -> int:
    """A failed run with a checkpoint, and the command to resume it."""
    launch(supervisor)
    dispatch.answer_all(supervisor)
    move(supervisor, "failed")
    folder = supervisor.context.workspace.run_dir("demo-1") / "checkpoints"
    folder.mkdir()
    now = time.time()
    supervisor.context.connection.execute(
        "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, ended_at, last_step) "
        "VALUES ('demo-1', 1, 'failed', '{}', '[]', '{}', ?, ?, 5)",
        (now - 100, now + 100),
    )
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("weights", "w")
    return commands.submit(supervisor.context.connection, "resume", "demo-1", {}, "me", now=NOW)


def test_a_resume_looks_for_its_checkpoint_without_holding_up_the_loop(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_id = resumable(supervisor)
    may_end = threading.Event()
    for_person = dispatch.for_person

    def slow(search: CheckpointSearch, path: Path | None) -> CheckpointChoice:
        may_end.wait(30)
        return for_person(search, path)

    monkeypatch.setattr(dispatch, "for_person", slow)
    assert dispatch.answer_all(supervisor) == 0 and supervisor.is_busy()
    assert dispatch.answer_all(supervisor) == 0 and len(supervisor.searches) == 1
    assert commands.answer(supervisor.context.connection, command_id) is None
    # What else is asked meanwhile is answered.
    other = commands.submit(supervisor.context.connection, "stop", "demo-1", {}, "me", now=NOW)
    assert dispatch.answer_all(supervisor) == 1
    assert (answer := commands.answer(supervisor.context.connection, other)) is not None and answer.state == "refused"
    may_end.set()
    wait_until(lambda: dispatch.answer_all(supervisor) == 1, what="the resume")
    assert (answer := commands.answer(supervisor.context.connection, command_id)) is not None and answer.state == "done"
    [resume_from] = supervisor.context.connection.execute("SELECT resume_from FROM runs").fetchone()
    assert resume_from.endswith("step_1.pt")
    dispatch.answer_all(supervisor)
    assert not supervisor.searches


def test_a_resume_that_nobody_waits_for_any_more_is_dropped(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(dispatch, "for_person", lambda search, path: may_end.wait(30) and None)
    command_id = resumable(supervisor)
    assert dispatch.answer_all(supervisor) == 0
    commands.give_answer(supervisor.context.connection, command_id, "refused", now=NOW, reason="not answered in time")
    assert dispatch.answer_all(supervisor) == 0
    assert not supervisor.searches
    may_end.set()
    assert supervisor.context.connection.execute("SELECT state FROM runs").fetchone() == ("failed",)


def test_a_resume_whose_asker_died_is_refused_when_its_search_is_over(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(dispatch, "for_person", lambda search, path: may_end.wait(30) and for_person(search, path))
    resumable(supervisor)
    connection = supervisor.context.connection
    connection.execute("DELETE FROM commands")
    code = "import json, sys; from gputui.runs.identity import asker; print(json.dumps(asker()), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        args = {"asker": json.loads(client.stdout.readline())}
        command_id = commands.submit(connection, "resume", "demo-1", args, "me", now=NOW)
        assert dispatch.answer_all(supervisor) == 0 and len(supervisor.searches) == 1
        client.kill()
    may_end.set()
    assert dispatch.answer_all(supervisor) == 1
    assert (answer := commands.answer(connection, command_id)) is not None and answer.state == "refused"
    assert connection.execute("SELECT state FROM runs").fetchone() == ("failed",)
    dispatch.answer_all(supervisor)
    assert not supervisor.searches


def test_a_launch_whose_asker_died_is_refused(supervisor: Supervisor) -> None:
    command_id = launch(supervisor)
    connection = supervisor.context.connection
    assert connection.execute("SELECT json_extract(args, '$.asker.pid') FROM commands").fetchone() == (os.getpid(),)
    connection.execute("UPDATE commands SET args = json_set(args, '$.asker.start_ticks', 1)")
    dispatch.answer_all(supervisor)
    assert (answer := commands.answer(connection, command_id)) is not None and answer.state == "refused"
    assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


def test_what_an_asker_of_another_container_asks_is_done(supervisor: Supervisor) -> None:
    launch(supervisor)
    dispatch.answer_all(supervisor)
    args = {"asker": {**asker(), "pid": 2**22 + 1, "pid_namespace": 1}}
    command_id = commands.submit(supervisor.context.connection, "stop", "demo-1", args, "me", now=NOW)
    dispatch.answer_all(supervisor)
    assert (answer := commands.answer(supervisor.context.connection, command_id)) is not None and answer.state == "done"


def test_a_search_that_meets_something_unforeseen_is_a_refusal(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_search: CheckpointSearch, _path: Path | None) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(dispatch, "for_person", broken)
    command_id = resumable(supervisor)
    wait_until(lambda: dispatch.answer_all(supervisor) == 1, what="an answer")
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None and answer.state == "refused" and "ValueError" in (answer.reason or "")


def test_a_resume_whose_checkpoints_cannot_be_reached_is_refused_in_the_end(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, now = threading.Event(), [0.0]
    supervisor.context.jobs.clock = lambda: now[0]
    monkeypatch.setattr(dispatch, "for_person", lambda search, path: may_end.wait(30) and None)
    command_id = resumable(supervisor)
    assert dispatch.answer_all(supervisor) == 0
    now[0] = dispatch.SEARCH_SECONDS + 1
    assert dispatch.answer_all(supervisor) == 1
    may_end.set()
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None and answer.state == "refused" and "checkpoints" in (answer.reason or "")


@pytest.mark.parametrize("change", [{"api_key": "another"}, {"steps": "with a [redacted] in it"}])
def test_a_secret_is_not_changed_by_a_resume_and_not_stored(supervisor: Supervisor, change: dict[str, str]) -> None:
    launch(supervisor)
    dispatch.answer_all(supervisor)
    move(supervisor, "failed")
    command_id = commands.submit(supervisor.context.connection, "resume", "demo-1", {"set": change}, "me", now=NOW)
    dispatch.answer_all(supervisor)
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None and answer.state == "refused" and "secret" in (answer.reason or "")
    stored = json.dumps(supervisor.context.connection.execute("SELECT spec, params FROM runs").fetchall())
    assert "quite-a-secret" not in stored and "hush-hush" not in stored


def test_a_command_counts_though_the_bell_cannot_be_rung(workspace: Workspace, supervisor: Supervisor) -> None:
    workspace.runs.rmdir()
    command_id = commands.submit(
        supervisor.context.connection, "stop", "demo-1", {}, "me", now=NOW, doorbell=workspace.doorbell
    )
    assert [command.command_id for command in commands.pending(supervisor.context.connection)] == [command_id]


def test_a_waiting_run_moves_one_place_and_one_that_runs_does_not(supervisor: Supervisor) -> None:
    for _ in range(3):
        launch(supervisor)
    dispatch.answer_all(supervisor)
    connection = supervisor.context.connection

    def order() -> list[str]:
        return [entry.run_id for entry in queue.entries(connection)]

    def ask(run_id: str, place: str) -> commands.CommandAnswer:
        command_id = commands.submit(connection, "queue_move", run_id, {"place": place}, "me", now=NOW)
        dispatch.answer_all(supervisor)
        found = commands.answer(connection, command_id)
        assert found is not None
        return found

    assert order() == ["demo-1", "demo-2", "demo-3"]
    answer = ask("demo-3", "up")
    assert answer.result is not None and answer.result["position"] == 2
    assert order() == ["demo-1", "demo-3", "demo-2"]
    assert ask("demo-3", "down").state == "done" and order() == ["demo-1", "demo-2", "demo-3"]
    assert ask("demo-3", "down").state == "done" and order() == ["demo-1", "demo-2", "demo-3"]
    connection.execute("UPDATE runs SET state = 'recovering' WHERE run_id = 'demo-1'")
    refused = ask("demo-1", "up")
    assert refused.state == "refused" and mentions(refused.reason, "demo-1", "recovering")


@pytest.mark.parametrize(
    ("verb", "args", "reason"),
    [
        ("alert_ack", {"ids": [7]}, "there is no alert 7"),
        ("alert_ack", {"ids": [True]}, "there is no alert True"),
        ("alert_ack", {"ids": 7}, "say which alerts"),
        ("alert_silence", {"id": 7, "seconds": 60}, "there is no alert 7"),
        ("alert_silence", {"rule": "diskk", "seconds": 60}, "there is no rule 'diskk'"),
        ("alert_silence", {"rule": "disk", "seconds": -1}, "say for how long"),
        ("alert_silence", {"rule": "disk", "seconds": 1e9}, "say for how long"),
        ("alert_silence", {"rule": "disk"}, "say for how long"),
    ],
)
def test_commands_about_alerts_that_are_not_there(
    supervisor: Supervisor, verb: str, args: dict[str, object], reason: str
) -> None:
    number = commands.submit(supervisor.context.connection, verb, None, args, "me", now=NOW)
    dispatch.answer_all(supervisor)
    answer = commands.answer(supervisor.context.connection, number)
    assert answer is not None and answer.state == "refused" and reason in str(answer.reason)


def test_all_alerts_are_noted_as_seen_at_once(supervisor: Supervisor) -> None:
    values = {
        "severity": "warning", "subject_kind": "host", "subject_id": "", "subject_name": "the host", "raised_at": NOW,
        "unit": "%", "sentence": "full", "remedy": "remove runs",
    }  # fmt: skip
    for rule in ("disk", "shm"):
        alerts.raise_alert(supervisor.context.connection, {**values, "rule": rule})
    for said in ("acknowledged: 2 alerts", "no alert is unacknowledged"):
        number = commands.submit(supervisor.context.connection, "alert_ack", None, {"ids": None}, "me", now=NOW)
        dispatch.answer_all(supervisor)
        answer = commands.answer(supervisor.context.connection, number)
        assert answer is not None and answer.result is not None and answer.result["text"] == said
    assert {one.acknowledged_by for one in alerts.lasting(supervisor.context.connection)} == {"me"}
