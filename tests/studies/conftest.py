"""A home with a study, its process in this one, and the agent's part done by hand: what only chance would show with
processes."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputui.agent.commands import dispatch
from gputui.agent.commands.request import RefusedError
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core.config import Workspace
from gputui.recovery.checkpoints.content import content_of
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.spec import CheckpointSpec, RunSpec
from gputui.runs.submission import read_ticket, write_spec
from gputui.store import checkpoints, commands
from gputui.store.commands import PendingCommand
from gputui.store.json_shapes import number_or_word
from gputui.store.rows import insert, update
from gputui.store.run_states import RunState
from gputui.store.studies import StudyRecord, TrialRecord, TrialState, get_study, read_trials
from gputui.studies import rows
from gputui.studies.process import StudyProcess
from gputui.studies.spec import Dimension, Objective, PbtSpec, SamplerSpec, StudySpec
from tests.homes import Home, add_attempt
from tests.ledgers import ledger_row

WORKER = """
import optuna, sys
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
study = optuna.load_study(study_name="s-1", storage=JournalStorage(JournalFileBackend(sys.argv[1])))
for value in map(float, sys.argv[2:]):
    trial = study.ask(study.trials[0].distributions)
    study.tell(trial, value)
print(len(study.trials))
"""

STUDY = "s-1"
BASE = RunSpec(
    "net", "python", ("net.py",), "/", "/usr/bin/python", params={"rate": 0.5, "steps": 100},
    checkpoints=CheckpointSpec("{run_dir}/checkpoints", "step_*.pt", ("--resume", "{checkpoint}")),
)  # fmt: skip
GRID = StudySpec(
    "s", "net", (Dimension("rate", "choice", choices=(0.1, 0.2, 0.3, 0.4)),), (Objective("loss", over="last"),),
    SamplerSpec("grid"), parallel=2,
)  # fmt: skip
RATE = Dimension("rate", "float", 0.01, 1.0, log=True)
POPULATION = replace(GRID, space=(RATE,), sampler=SamplerSpec("tpe"), pbt=PbtSpec(4, every=10), parallel=4)


class StudyHome(Home):
    """A home with the study ``s-1``."""

    def __init__(self, workspace: Workspace, spec: StudySpec, base: RunSpec = BASE) -> None:
        super().__init__(workspace)
        folder = workspace.studies / STUDY
        folder.mkdir(parents=True)
        write_spec(folder / rows.SPEC_FILE, base)
        with transaction(self.connection):
            rows.begin_study(self.connection, STUDY, spec, source="", now=self.now, actor="me")
        self.restart()

    def restart(self) -> None:
        """Put another process in place of the one that was."""
        self.process = StudyProcess(self.workspace, self.connection, STUDY, lambda: self.now)

    # --- what the agent does --------------------------------------------------------------------------------------

    def work(self, turns: int = 12) -> None:
        """Let process and agent go on until neither has anything to do."""
        idle = 0
        for _ in range(turns):
            self.process.turn()
            # Judging a trial takes one turn, acting on the verdict the next.
            idle = 0 if self.carry_out() else idle + 1
            if idle == 3:
                break

    def pending(self, *verbs: str) -> list[PendingCommand]:
        return [command for command in commands.pending(self.connection) if not verbs or command.verb in verbs]

    def carry_out(self) -> int:
        """Do what is asked for at once: how much it was."""
        pending = self.pending()
        for command in pending:
            if command.verb == "run":
                self._make_run(command)
            elif command.verb == "stop":
                self.move(command.run_id or "", RunState.STOPPING, RunState.STOPPED, cause=command.args["reason"])
            else:
                run = self.run_of(command.run_id or "")
                params = {**run.params, **command.args.get("set", {})}
                with transaction(self.connection):
                    repository.set_next_attempt(
                        self.connection,
                        run.run_id,
                        params=params,
                        resume_from=command.args.get("from"),
                        not_before=None,
                    )
                self.move(run.run_id, RunState.QUEUED)
                self.begin_attempt(run.run_id)
            with transaction(self.connection):
                commands.give_answer(self.connection, command.command_id, "done", now=self.now, result={})
        return len(pending)

    def ask(self, verb: str, run_id: str | None = None, **args: Any) -> None:
        """Send a person's command to the agent's own handler. Raises RefusedError."""
        command_id = commands.submit(self.connection, verb, run_id, {"study": STUDY, **args}, "me", now=self.now)
        (command,) = [command for command in self.pending(verb) if command.command_id == command_id]
        with selectors.DefaultSelector() as selector:
            try:
                dispatch.carry_out(Supervisor(self.context(), selector), command)
            except RefusedError:
                commands.give_answer(self.connection, command_id, "refused", now=self.now)
                raise

    def refuse(self, *verbs: str, kind: str | None = None) -> int:
        pending = self.pending(*verbs)
        for command in pending:
            result = None if kind is None else {"refusal": kind}
            commands.give_answer(
                self.connection, command.command_id, "refused", now=self.now, reason="refused", result=result
            )
        return len(pending)

    def _make_run(self, command: PendingCommand) -> None:
        ticket, spec = read_ticket(self.workspace, command.args["ticket"])
        run_id = f"{command.args['name']}-1"
        sequence = self.value("SELECT coalesce(max(sequence), 0) + 1 FROM runs")
        with transaction(self.connection):
            repository.insert_run(
                self.connection,
                repository.NewRun(
                    run_id=run_id, sequence=sequence, name=command.args["name"], spec=spec, params=spec.params
                ),
                now=self.now,
                actor=command.actor,
            )
            assert rows.adopt_run(self.connection, STUDY, spec.trial or 0, command.command_id, run_id)
        ticket.unlink()
        self.begin_attempt(run_id)

    def begin_attempt(self, run_id: str) -> None:
        """Begin the next attempt of a queued run."""
        run = self.run_of(run_id)
        with transaction(self.connection):
            add_attempt(
                self.connection, run_id, run.attempt + 1, self.now, params=json.dumps(dict(run.params)),
                resumed_from=run.resume_from,
            )  # fmt: skip
            update(self.connection, "runs", {"run_id": run_id}, attempt=run.attempt + 1)
        self.move(run_id, RunState.STARTING, RunState.RUNNING)

    def move(self, run_id: str, *states: RunState, cause: str = "test") -> None:
        for state in states:
            with transaction(self.connection):
                repository.move(self.connection, self.run_of(run_id), state, cause=cause, now=self.now)
        if states[-1].is_over:
            attempt = {"run_id": run_id, "number": self.run_of(run_id).attempt}
            update(self.connection, "attempts", attempt, state=states[-1], ended_at=self.now)

    # --- what runs do ---------------------------------------------------------------------------------------------

    def report(self, number: int, step: int, loss: float) -> None:
        """A line of a trial's run, in its newest attempt."""
        self.line(self.trial(number).run_id or "", step, loss)

    def line(self, run_id: str, step: int, loss: float) -> None:
        """A line of a run, in its newest attempt."""
        self.metrics(run_id, self.run_of(run_id).attempt, [{"step": step, "loss": number_or_word(loss)}])

    def save(self, number: int, step: int, attempt: int = 1, *, is_known: bool = True, **more: Any) -> Path:
        """A whole checkpoint of a trial's run, in the ledger, of a format that can be checked or not."""
        run_id = self.trial(number).run_id or ""
        path = self.workspace.run_dir(run_id) / "checkpoints" / f"step_{step}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_known:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("state", f"{run_id} {step}")
        else:
            path.write_text(json.dumps({"run": run_id, "step": step}))
        moment = self.value("SELECT 1 + count(*) FROM checkpoints")
        verdict = "valid" if is_known else "unexamined"
        row = ledger_row(str(path), moment, attempt, step, content=content_of(path), verdict=verdict)
        self.connection.execute("DELETE FROM checkpoints WHERE path = ?", (str(path),))
        checkpoints.save(self.connection, run_id, (), [msgspec.structs.replace(row, **more)])
        return path

    def end(self, number: int, state: RunState, *, incident: str | None = None) -> None:
        """A trial's run ends."""
        run_id = self.trial(number).run_id or ""
        if incident is not None:
            insert(
                self.connection, "incidents", run_id=run_id, attempt=self.run_of(run_id).attempt, at=self.now,
                kind=incident, summary=incident, fingerprint=incident, evidence="[]",
            )  # fmt: skip
        self.move(run_id, state, cause=incident or state)

    # --- what there is --------------------------------------------------------------------------------------------

    @property
    def study(self) -> StudyRecord:
        study = get_study(self.connection, STUDY)
        assert study is not None
        return study

    @property
    def trials(self) -> list[TrialRecord]:
        return read_trials(self.connection, STUDY)

    def trial(self, number: int) -> TrialRecord:
        return self.trials[number]

    def states(self) -> list[str]:
        return [trial.state.value for trial in self.trials]

    def attempts(self, number: int) -> list[dict[str, Any]]:
        query = "SELECT params, resumed_from FROM attempts WHERE run_id = ? ORDER BY number"
        attempts = self.rows(query, self.trial(number).run_id)
        return [{"params": json.loads(params), "from": resumed} for params, resumed in attempts]


Begin = Callable[[StudySpec], StudyHome]


@pytest.fixture
def begin(workspace: Workspace) -> Iterator[Begin]:
    """Begin a study on a home of its own."""
    with ExitStack() as stack:
        yield lambda spec: stack.enter_context(closing(StudyHome(workspace, spec)))


def ask_outside(file: Path, *values: float) -> str:
    """Another process asks for a trial for each value, and tells it."""
    argv = [sys.executable, "-c", WORKER, str(file), *map(str, values)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def trial(
    number: int,
    *values: float,
    state: TrialState = TrialState.COMPLETE,
    params: Mapping[str, Any] | None = None,
    constraints: tuple[float, ...] = (),
) -> TrialRecord:
    ended_at = 100.0 + number if state.is_over else None
    return TrialRecord(
        "s-1",
        number,
        f"s-1-{number}",
        state=state,
        origin="sampled",
        params=params or {},
        rung=None,
        values=values,
        constraints=constraints,
        reason=None,
        parent=None,
        generation=None,
        starts=1,
        command_id=None,
        population={},
        created_at=float(number),
        ended_at=ended_at,
    )
