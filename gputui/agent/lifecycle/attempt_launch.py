"""Prepare an attempt: its plan is on disk and in the store before its executor starts, so that the agent can be killed
at any time."""

from __future__ import annotations

import logging
import socket
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from gputui.agent.lifecycle import checkpoint_survey
from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.core.redaction import Redactor
from gputui.metrics.ingest import MetricsIngest
from gputui.runs import repository
from gputui.runs.agent_process import agent_for_executor
from gputui.runs.command import Launch, build_launch, checkpoint_directory, in_run, without_gpus
from gputui.runs.executors.base import Executor
from gputui.runs.foreign_json import read_foreign_json
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import OUTPUT, Placement
from gputui.runs.logs import FIRST_NODE, node_folder
from gputui.runs.redaction import redact_launch, restore, secrets_of
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec, spec_of
from gputui.runs.submission import SPEC_FILE, read_spec, write_private
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run

log = logging.getLogger(__name__)

# More than any executor writes.
RECORD_BYTES = 1 << 16
NEWEST_CHECKPOINT = "{newest checkpoint}"
"""Placeholder in attempt.json for the checkpoint that the courier finds on the target."""


class LaunchError(Exception):
    """The attempt cannot be started now; the message says why. Nothing was changed."""


class UnusableSpecError(LaunchError):
    """The run's specification cannot be started, now or later."""


def attempt_dir(workspace: Workspace, run_id: str, number: int) -> Path:
    return workspace.run_dir(run_id) / "attempts" / str(number)


def prepare_attempt(
    connection: sqlite3.Connection,
    ingest: MetricsIngest,
    workspace: Workspace,
    run: Run,
    uuids: Sequence[str],
    indices: Sequence[int],
    now: float,
    *,
    replaced: Sequence[str] = (),
    taken_from: Sequence[tuple[str, str]] = (),
    lock_files: Sequence[str] = (),
    shares_gpus: bool = False,
    executor: Executor,
) -> Attempt:
    """Prepare the next attempt: its folder, leases, row, and the position where its metrics begin. Leases of the run
    besides ``uuids`` end; ``replaced`` says why. ``taken_from`` are other runs' leases that end, each a run and a GPU.
    ``lock_files`` are held by ``executor``. With ``shares_gpus``, they and the leases are
    shared within a study.

    Raises LaunchError (UnusableSpecError if a retry is pointless) or sqlite3.Error. At worst an unused folder remains.
    """
    run_dir = workspace.run_dir(run.run_id)
    try:
        number = _new_number(run_dir / "attempts", run)
        spec = read_spec(run_dir / SPEC_FILE)
        spec = replace(spec, env={**spec.env, **repository.get_next_attempt(connection, run.run_id).env})
        if executor.places_gpus:
            visible = tuple(uuids) if spec.visible == "uuid" else tuple(str(index) for index in indices)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                placement = Placement.here(visible, spec.ranks_on(len(uuids)), port=int(probe.getsockname()[1]))
        else:
            placement = executor.placement(spec)
        build = partial(
            build_launch,
            spec,
            run_id=run.run_id,
            run_dir=str(run_dir),
            attempt=number,
            params=restore(run.params, spec.params),
            placement=placement,
        )
        launch = build(checkpoint=run.resume_from)
        for_courier: dict[str, Any] = {}
        if not executor.places_gpus:
            launch = without_gpus(launch)
            history = (
                []
                if executor.sees_checkpoints(spec.target or {})
                else checkpoint_survey.attempts_to_resume(connection, workspace, run)
            )
            # A start by a person uses the current code, a restart the code of the attempt before.
            for_courier = _courier_fields(spec, run_dir, build, history, keeps_code=run.not_before is not None)
        folder = run_dir / "attempts" / str(number)
        ends = ingest.ends.of(run.run_id)
        for below in ("", "nodes", FIRST_NODE):
            (folder / below).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        write_private(
            folder / "attempt.json",
            {
                **launch.to_json(),
                "output": f"{FIRST_NODE}/{OUTPUT}",
                "run_id": run.run_id,
                "attempt": number,
                "created_at": now,
                "gpus": list(uuids),
                "params": dict(run.params),
                "resume_from": run.resume_from,
                "lock_files": list(lock_files),
                "shares_gpus": shares_gpus,
                "shell": None if spec.shell is None else asdict(spec.shell),
                "agent": agent_for_executor(workspace),
                "metrics_bytes": ingest.ends.sizes(run.run_id, ends),
                **for_courier,
            },
        )
    except ValueError as error:
        raise UnusableSpecError(str(error)) from error
    except OSError as error:
        raise LaunchError(str(error)) from error
    stored = redact_launch(launch, Redactor(secrets_of(spec)))
    with transaction(connection):
        repository.release_leases(connection, run.run_id, keep=uuids)
        for holder, uuid in taken_from:
            repository.end_lease(connection, holder, uuid)
            text = f"{uuid} was moved to {run.run_id}, because each run waited for a GPU that the other held"
            add_event(connection, "gpus_replaced", text, now=now, severity="warning", run_id=holder)
        repository.take_leases(connection, run.run_id, uuids, now, shared=shares_gpus)
        if replaced:
            text = f"{'; '.join(replaced)}: replaced"
            add_event(connection, "gpus_replaced", text, now=now, severity="warning", run_id=run.run_id)
        repository.insert_attempt(connection, run, number=number, gpus=uuids, launch=stored, now=now)
        repository.drop_next_attempt(connection, run.run_id)
        checkpoint_survey.attempt_begins(connection, run, number, checkpoint_directory(spec_of(run), run_dir), folder)
        ingest.begin_attempt(run.run_id, number, rank_output(spec, len(uuids), folder), ends)
        repository.move(connection, run, RunState.STARTING, cause=f"attempt {number}", now=now)
        where = f" on {len(uuids)} GPU{'s' if len(uuids) != 1 else ''}" if uuids else ""
        where = where if spec.target is None else f" on {spec.target['name']}"
        resumed = f" from {Path(run.resume_from).name}" if run.resume_from else ""
        add_event(
            connection,
            "attempt_started",
            f"attempt {number} starts{where}{resumed}",
            now=now,
            run_id=run.run_id,
            attempt=number,
        )
    attempt = get_attempt(connection, run.run_id, number)
    assert attempt is not None
    return attempt


def _new_number(folder: Path, run: Run) -> int:
    """The next attempt's number. None is used twice, even if a row was lost: torchrun truncates existing logs."""
    folder.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    numbers = [
        int(entry.name) for entry in folder.iterdir() if entry.name.isdigit() and (entry / "attempt.json").exists()
    ]
    return max([run.attempt, *numbers]) + 1


def _courier_fields(
    spec: RunSpec, run_dir: Path, build: Callable[..., Launch], history: list[dict[str, Any]], *, keeps_code: bool
) -> dict[str, Any]:
    """Fields of attempt.json for a courier: the target, the requested resources, and how to resume from a checkpoint
    that it finds there, with NEWEST_CHECKPOINT as placeholder. ``history`` are the attempts whose checkpoints the first
    start may use; ``keeps_code``: use the code of the previous attempt."""
    folder = checkpoint_directory(spec, run_dir)
    resume = None
    if spec.checkpoints is not None:
        again = without_gpus(build(checkpoint=NEWEST_CHECKPOINT))
        resume = {"folder": str(folder), "pattern": spec.checkpoints.pattern, "argv": again.argv, "env": again.env}
    return {
        # Limits and environment are those of the target; file permissions are those of the launching shell.
        "shell": None if spec.shell is None or spec.shell.umask is None else {"umask": spec.shell.umask},
        "target": dict(spec.target or {}),
        "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
        "metrics": [str(in_run(source.path, spec, run_dir)) for source in spec.metrics if source.path is not None],
        "resume": resume,
        "checkpoints": None if folder is None else str(folder),
        "course": history if resume is not None else [],
        "keeps_code": keeps_code,
    }


def rank_output(spec: RunSpec, gpus_given: int, folder: Path) -> str:
    """Path of the first rank's output below the attempt's ``folder``, as `MetricsIngest.begin_attempt` expects it."""
    output = LAUNCHERS[spec.launcher].rank_output(spec.ranks_on(gpus_given))
    return str(node_folder(folder).relative_to(folder) / output)


def read_record(path: Path) -> dict[str, Any] | None:
    """A record that the executor wrote, or None if there is none. A damaged one counts as an empty record, because the
    executor did write it."""
    try:
        value = read_foreign_json(path, RECORD_BYTES)
    except OSError:
        return None
    except ValueError as error:
        log.warning("%s cannot be read: %s", path, error)
        return {}
    return value if isinstance(value, dict) else {}
