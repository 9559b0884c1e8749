"""Commands: what they do and their answer are one thing, and no row can bring the agent down."""

from __future__ import annotations

import json
import os
import selectors
import sqlite3
import sys
import threading
import time
import zipfile
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from msgspec.structs import replace

from gputui.agent.commands import dispatch, runs
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.gpus import gpu_availability
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.config import Workspace
from gputui.machine.gpu_model import GpuFacts, Inventory
from gputui.recovery.checkpoints.choices import CheckpointChoice
from gputui.recovery.checkpoints.search import CheckpointSearch
from gputui.runs import repository
from gputui.runs.labels import Labels, read_labels
from gputui.runs.launch_shell import LaunchShell
from gputui.runs.spec import CheckpointSpec, RunSpec
from gputui.runs.submission import SPEC_FILE, read_spec, submit_run, ticket_path, write_ticket
from gputui.store import commands, queue
from gputui.store.commands import AgentVerb
from gputui.store.database import open_commander
from gputui.store.events import read_events
from gputui.store.hardware import quarantined
from gputui.store.runs import get_run
from tests.conftest import wait_until
from tests.homes import NOW, add_attempt
from tests.tables import table
from tests.texts import mentions

SPEC = RunSpec(
    name="demo",
    launcher="python",
    program=("x.py",),
    python=sys.executable,
    workdir="/",
    params={"steps": 5, "api_key": "quite-a-secret"},
    checkpoints=CheckpointSpec("{run_dir}/checkpoints", "*.pt", ("--resume", "{checkpoint}", "--api-key", "hush-hush")),
)

ARGUMENTS = ('{"set": 5}', '{"set": ["steps"]}', "[]", "garbage", '{"ticket": 5, "name": []}')


@pytest.fixture
def supervisor(workspace: Workspace, connection: sqlite3.Connection) -> Supervisor:
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=lambda: 0.0)
    return Supervisor(context, selectors.DefaultSelector())


def launch(supervisor: Supervisor, spec: RunSpec = SPEC, name: str | None = None) -> int:
    return submit_run(supervisor.context.workspace, supervisor.context.connection, spec, name=name, actor="me", now=NOW)


def answered(supervisor: Supervisor, command_id: int) -> commands.CommandAnswer:
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None
    return answer


def ask(supervisor: Supervisor, verb: str, run_id: str | None, args: dict[str, object]) -> commands.CommandAnswer:
    command_id = commands.submit(supervisor.context.connection, verb, run_id, args, "me", now=NOW)
    dispatch.answer_all(supervisor)
    return answered(supervisor, command_id)


def move(supervisor: Supervisor, state: str) -> None:
    supervisor.context.connection.execute("UPDATE runs SET state = ?", (state,))


def launch_run(supervisor: Supervisor, spec: RunSpec = SPEC, state: str | None = None) -> None:
    """Launch a run, and put it into a state where one is given."""
    launch(supervisor, spec)
    dispatch.answer_all(supervisor)
    if state is not None:
        move(supervisor, state)


class Killed(BaseException):
    """The process ends here."""


def raise_disk_full(*_args: object, **_options: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def resumable(supervisor: Supervisor, name: str = "step_1.pt") -> int:
    """A failed run with a checkpoint, and the command to resume it."""
    launch_run(supervisor, state="failed")
    folder = supervisor.context.workspace.run_dir("demo-1") / "checkpoints"
    folder.mkdir()
    now = time.time()
    add_attempt(supervisor.context.connection, "demo-1", 1, now - 100, now + 100, state="failed", last_step=5)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("weights", "w")
    return commands.submit(supervisor.context.connection, "resume", "demo-1", {}, "me", now=NOW)


@pytest.mark.parametrize("owner, place", [(repository, "insert_run"), (commands, "give_answer")])
def test_an_agent_killed_around_the_answer_launches_one_run(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, owner: ModuleType, place: str
) -> None:
    command_id = launch(supervisor)
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
    answer = answered(supervisor, command_id)
    assert answer.state == "done"
    assert answer.result is not None
    assert answer.result["state"] == "queued"


def test_a_launch_that_is_withdrawn_while_it_is_carried_out_does_nothing(
    workspace: Workspace, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(supervisor.context.connection.iterdump())
    command_id = launch(supervisor)
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
    assert list(workspace.runs.glob("[!.]*")) == []


def test_a_command_whose_write_fails_holds_up_no_other_and_is_tried_again(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = commands.submit(supervisor.context.connection, "restart", "demo-1", {}, "me", now=NOW)
    monkeypatch.setitem(dispatch.HANDLERS, "restart", raise_disk_full)
    second_id = commands.submit(supervisor.context.connection, "queue_pause", run_id=None, args={}, actor="me", now=NOW)
    assert dispatch.answer_all(supervisor) == 1
    assert answered(supervisor, second_id).state == "done"
    assert commands.answer(supervisor.context.connection, failing) is None
    monkeypatch.undo()
    assert dispatch.answer_all(supervisor) == 1
    answer = answered(supervisor, failing)
    assert answer.state == "refused"
    assert "no run" in (answer.reason or "")


def test_the_agent_answers_all_that_its_clients_may_ask() -> None:
    assert set(dispatch.HANDLERS) == set(get_args(AgentVerb))


@table("verb, args", [(verb, args) for verb in (*dispatch.HANDLERS, "nonsense") for args in ARGUMENTS])
def test_no_row_brings_the_agent_down(supervisor: Supervisor, verb: str, args: str) -> None:
    if get_run(supervisor.context.connection, "demo-1") is None:
        launch(supervisor)
        dispatch.answer_all(supervisor)
    move(supervisor, "failed")
    supervisor.context.connection.execute(
        "INSERT INTO commands (created_at, verb, run_id, args, actor) VALUES (?, ?, 'demo-1', ?, 'me')",
        (NOW, verb, args),
    )
    wait_until(lambda: dispatch.answer_all(supervisor) == 1, what="an answer")
    assert dispatch.answer_all(supervisor) == 0


def test_a_resume_looks_for_its_checkpoint_without_holding_up_the_loop(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_id = resumable(supervisor)
    may_end = threading.Event()
    for_person = runs.for_person

    def slow(search: CheckpointSearch, path: Path | None) -> CheckpointChoice:
        may_end.wait(60)
        return for_person(search, path)

    monkeypatch.setattr(runs, "for_person", slow)
    assert dispatch.answer_all(supervisor) == 0
    assert supervisor.is_busy()
    assert dispatch.answer_all(supervisor) == 0
    assert commands.answer(supervisor.context.connection, command_id) is None
    # Other commands are answered meanwhile.
    assert ask(supervisor, "stop", "demo-1", {}).state == "refused"
    may_end.set()
    wait_until(lambda: dispatch.answer_all(supervisor) == 1, what="the resume")
    assert answered(supervisor, command_id).state == "done"
    [resume_from] = supervisor.context.connection.execute("SELECT resume_from FROM runs").fetchone()
    assert resume_from.endswith("step_1.pt")


def test_a_start_again_changes_the_target_and_the_shell_and_nothing_else(supervisor: Supervisor) -> None:
    launch_run(supervisor, replace(SPEC, target={"name": "lab", "kind": "slurm", "time": "1h"}), "stopped")
    workspace = supervisor.context.workspace
    path = supervisor.context.workspace.run_dir("demo-1") / SPEC_FILE
    before = read_spec(path)
    shell = LaunchShell(clients={"SLURM_JWT": "another-secret"})
    changed = replace(before, target={**(before.target or {}), "time": "2h"}, shell=shell, program=("other.py",))
    ticket = write_ticket(workspace, changed)
    assert ask(supervisor, "restart", "demo-1", {"ticket": ticket}).state == "done"
    assert read_spec(path) == replace(before, target=changed.target, shell=shell)
    [text] = supervisor.context.connection.execute("SELECT spec FROM runs").fetchone()
    assert json.loads(text)["target"]["time"] == "2h"
    assert "secret" not in text
    assert not ticket_path(workspace, ticket).exists()


def test_a_launch_whose_asker_died_is_refused(supervisor: Supervisor) -> None:
    command_id = launch(supervisor)
    connection = supervisor.context.connection
    assert connection.execute("SELECT json_extract(args, '$.asker.pid') FROM commands").fetchone() == (os.getpid(),)
    connection.execute("UPDATE commands SET args = json_set(args, '$.asker.start_ticks', 1)")
    dispatch.answer_all(supervisor)
    assert answered(supervisor, command_id).state == "refused"
    assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


@pytest.mark.parametrize("change", [{"api_key": "another"}, {"steps": "with a [redacted] in it"}])
def test_a_secret_is_not_changed_by_a_resume_and_not_stored(supervisor: Supervisor, change: dict[str, str]) -> None:
    launch_run(supervisor, state="failed")
    answer = ask(supervisor, "resume", "demo-1", {"set": change})
    assert answer.state == "refused"
    assert "secret" in (answer.reason or "")
    stored = json.dumps(supervisor.context.connection.execute("SELECT spec, params FROM runs").fetchall())
    assert "quite-a-secret" not in stored
    assert "hush-hush" not in stored


def test_a_waiting_run_moves_one_place_and_one_that_runs_does_not(supervisor: Supervisor) -> None:
    for _ in range(3):
        launch_run(supervisor)
    connection = supervisor.context.connection

    def order() -> list[str]:
        return [entry.run_id for entry in queue.entries(connection)]

    def go(run_id: str, place: str) -> commands.CommandAnswer:
        return ask(supervisor, "queue_move", run_id, {"place": place})

    answer = go("demo-3", "up")
    assert answer.result is not None
    assert answer.result["position"] == 2
    assert order() == ["demo-1", "demo-3", "demo-2"]
    for _ in range(2):
        assert go("demo-3", "down").state == "done"
        assert order() == ["demo-1", "demo-2", "demo-3"]
    connection.execute("UPDATE runs SET state = 'recovering' WHERE run_id = 'demo-1'")
    refused = go("demo-1", "up")
    assert refused.state == "refused"
    assert mentions(refused.reason, "demo-1", "recovering")


@table("verb, args, reason", [
    ("alert_ack", {"ids": [7]}, "there is no alert 7"),
    ("alert_silence", {"id": 7, "seconds": 60}, "there is no alert 7"),
    ("alert_silence", {"rule": "diskk", "seconds": 60}, "there is no rule 'diskk'"),
])  # fmt: skip
def test_commands_about_alerts_that_are_not_there(
    supervisor: Supervisor, verb: str, args: dict[str, object], reason: str
) -> None:
    answer = ask(supervisor, verb, run_id=None, args=args)
    assert answer.state == "refused"
    assert reason in str(answer.reason)


def test_ids_and_names_are_one_space(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    launch_run(supervisor)
    assert ask(supervisor, "label", "demo-1", {"name": "demo-2"}).state == "done"
    assert repository.next_run_id(connection, "demo", set())[0] == "demo-3"
    assert ask(supervisor, "label", "demo-1", {"name": "baseline"}).state == "done"
    assert repository.next_run_id(connection, "demo", set())[0] == "demo-2"
    namesake = launch(supervisor, name="demo-1")
    dispatch.answer_all(supervisor)
    assert answered(supervisor, namesake).state == "refused"


def test_a_name_that_cannot_be_taken_as_it_is_is_refused_and_one_that_stays_is_not_looked_at(
    supervisor: Supervisor,
) -> None:
    refused = launch(supervisor, name="vit base (v2)")
    launch_run(supervisor)
    assert answered(supervisor, refused).state == "refused"
    supervisor.context.connection.execute("UPDATE runs SET name = 'ends-with-'")
    assert ask(supervisor, "label", "demo-1", {"add": ["small"]}).state == "done"
    assert ask(supervisor, "label", "demo-1", {"name": "ends-with-"}).state == "refused"


def test_a_waiting_run_is_not_begun_again_for_what_the_queue_says(supervisor: Supervisor) -> None:
    launch_run(supervisor)
    repository.set_waiting_for(supervisor.context.connection, "demo-1", "waits for a-1, which failed")
    refused = ask(supervisor, "restart", "demo-1", {})
    assert refused.state == "refused"
    assert mentions(str(refused.reason), "waits for a-1, which failed")


def test_a_run_that_is_stopping_is_not_to_be_stopped_before_it_is_removed(supervisor: Supervisor) -> None:
    launch_run(supervisor)
    for state, remedy in (("running", "stop it first"), ("stopping", "wait for its end")):
        supervisor.context.connection.execute("UPDATE runs SET state = ?", (state,))
        refused = ask(supervisor, "rm", "demo-1", {})
        assert refused.state == "refused"
        assert remedy in str(refused.reason)


def test_labels_that_are_not_stored_do_not_stay_in_the_folder(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_run(supervisor)

    def withdrawn(*_args: object, **_values: object) -> None:
        raise commands.WithdrawnError

    monkeypatch.setattr(commands, "give_answer", withdrawn)
    commands.submit(supervisor.context.connection, "label", "demo-1", {"name": "baseline"}, "me", now=NOW)
    assert dispatch.answer_all(supervisor) == 0
    assert read_labels(supervisor.context.workspace.run_dir("demo-1")) == Labels("demo")


def test_a_person_sets_a_gpu_aside_and_clears_it(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    recorder = supervisor.context.recorder
    recorder.take([Inventory(NOW, "nvml", "580.95", (GpuFacts("GPU-0", 0, "H200"),))])
    done = ask(supervisor, "quarantine_gpu", run_id=None, args={"uuid": "GPU-0", "why": "the fan\x1b[2J rattles"})
    assert done.state == "done"
    gpu = quarantined(connection)["GPU-0"]
    assert (gpu.actor, gpu.run_id, gpu.since) == ("me", None, NOW)
    assert mentions(gpu.words, "me", "the fan", "rattles")
    assert "\x1b" not in gpu.reason
    assert [gpu.out_of_service for gpu in gpu_availability(supervisor.context) or ()] == [True]
    again = ask(supervisor, "quarantine_gpu", run_id=None, args={"uuid": "GPU-0", "why": "heat"})
    assert again.state == "refused"
    assert mentions(again.reason or "", "me", "rattles")
    assert ask(supervisor, "quarantine_gpu", run_id=None, args={"uuid": "GPU-9", "why": "heat"}).state == "refused"
    assert ask(supervisor, "clear_gpu", run_id=None, args={"uuid": "GPU-0"}).state == "done"
    assert not quarantined(connection)
    kinds = [event.kind for event in read_events(connection)]
    assert sorted(filter(None, kinds)) == ["gpu_cleared", "gpu_quarantined"]
