"""Preparing an attempt: intent first, then its executor, so that a successor can tell at any moment what was meant."""

from __future__ import annotations

import logging
import socket
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.run_files import metrics_bytes
from gputui.config import PRIVATE_DIR_MODE, Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.redaction import Redactor
from gputui.runs import next_attempt, repository
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
"""Stands in attempt.json for the checkpoint that the executor finds where the attempt runs."""


class LaunchError(Exception):
    """The attempt cannot be started now; the text says why. Nothing was changed."""


class UnusableSpecError(LaunchError):
    """The run's files describe nothing that can be started, now or later."""


def attempt_dir(workspace: Workspace, run_id: str, number: int) -> Path:
    return workspace.run_dir(run_id) / "attempts" / str(number)


def free_port() -> int:
    """A TCP port on loopback that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    lock_group: str | None = None,
    executor: Executor,
) -> Attempt:
    """Write down the next attempt: its folder, its leases, its row and where its metrics begin. What the run leased
    besides ``uuids`` is given up; ``replaced`` says why. ``taken_from`` are leases that end, each a run and a GPU.
    ``lock_files`` are what its ``executor`` holds meanwhile: with a ``lock_group`` together with others of that, with
    which its leases are shared, too.

    Raises LaunchError (UnusableSpecError where trying again is in vain) or sqlite3.Error with nothing changed but, at
    worst, an unused folder.
    """
    folder = workspace.run_dir(run.run_id) / "attempts"
    try:
        folder.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        # A number is never used twice, even where a row was lost: torchrun truncates the logs it finds.
        used = [
            int(entry.name) for entry in folder.iterdir() if entry.name.isdigit() and (entry / "attempt.json").exists()
        ]
        number = max([run.attempt, *used]) + 1
        spec = read_spec(workspace.run_dir(run.run_id) / SPEC_FILE)
        extra = next_attempt.get(connection, run.run_id).env
        spec = replace(spec, env={**spec.env, **extra})
        real = restore(run.params, spec.params)
        visible = tuple(uuids) if spec.visible == "uuid" else tuple(str(index) for index in indices)
        placement = (
            Placement.here(visible, ranks_for(spec, len(uuids)), free_port())
            if executor.places_gpus
            else executor.placement(spec)
        )
        build = partial(
            build_launch,
            spec,
            run_id=run.run_id,
            run_dir=str(workspace.run_dir(run.run_id)),
            attempt=number,
            params=real,
            placement=placement,
        )
        launch = build(checkpoint=run.resume_from)
        elsewhere = (
            {}
            if executor.places_gpus
            else _elsewhere(
                spec,
                workspace.run_dir(run.run_id),
                build,
                []
                if executor.sees_checkpoints(spec.target or {})
                else checkpoint_survey.course_elsewhere(connection, workspace, run),
                # What a person starts is the code as it is.
                keeps_code=run.not_before is not None,
            )
        )
        if elsewhere:
            launch = without_gpus(launch)
        for below in ("", "nodes", FIRST_NODE):
            (folder / str(number) / below).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        write_private(
            folder / str(number) / "attempt.json",
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
                "lock_group": lock_group,
                "shell": None if spec.shell is None else asdict(spec.shell),
                "agent": agent_for_executor(workspace),
                "metrics_bytes": metrics_bytes(spec, workspace.run_dir(run.run_id)),
                **elsewhere,
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
        repository.take_leases(connection, run.run_id, uuids, now, shared=lock_group is not None)
        if replaced:
            text = f"{'; '.join(replaced)}: replaced"
            add_event(connection, "gpus_replaced", text, now=now, severity="warning", run_id=run.run_id)
        repository.insert_attempt(connection, run, number=number, gpus=uuids, launch=stored, now=now)
        next_attempt.take_away(connection, run.run_id)
        folder_of_checkpoints = checkpoint_directory(spec_of(run), workspace.run_dir(run.run_id))
        checkpoint_survey.attempt_begins(connection, run, number, folder_of_checkpoints)
        output = rank_output(spec, len(uuids), folder / str(number))
        ingest.begin_attempt(run.run_id, number, output)
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


def _elsewhere(
    spec: RunSpec, run_dir: Path, build: Callable[..., Launch], course: list[dict[str, Any]], *, keeps_code: bool
) -> dict[str, Any]:
    """What a courier must know besides: the target, what to ask of it, and how the attempt continues from a checkpoint
    that is found there, with NEWEST_CHECKPOINT in its place. ``course`` are the attempts whose checkpoints may be taken
    at its first start, none where it is to begin as specified; ``keeps_code``, whether it has the code of the one
    before."""
    folder = checkpoint_directory(spec, run_dir)
    resume = None
    if spec.checkpoints is not None:
        again = without_gpus(build(checkpoint=NEWEST_CHECKPOINT))
        resume = {"folder": str(folder), "pattern": spec.checkpoints.pattern, "argv": again.argv, "env": again.env}
    return {
        # Limits and environment are those of the target; who may read what it writes is for its launcher to say.
        "shell": None if spec.shell is None or spec.shell.umask is None else {"umask": spec.shell.umask},
        "target": dict(spec.target or {}),
        "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
        "metrics": [str(in_run(source.path, spec, run_dir)) for source in spec.metrics if source.path is not None],
        "resume": resume,
        "checkpoints": None if folder is None else str(folder),
        "course": course if resume is not None else [],
        "keeps_code": keeps_code,
    }


def ranks_for(spec: RunSpec, gpus_given: int) -> int:
    """Ranks on this machine: as many per GPU as the profile has, on as many GPUs as there are."""
    asked = len(spec.gpus.uuids) or spec.gpus.count
    return max(1, spec.nproc * gpus_given // asked) if asked and gpus_given else spec.nproc


def rank_output(spec: RunSpec, gpus_given: int, folder: Path) -> str:
    """Where the first rank's output is below the attempt's ``folder``, as `MetricsIngest.begin_attempt` takes it."""
    output = LAUNCHERS[spec.launcher].rank_output(ranks_for(spec, gpus_given))
    return str(node_folder(folder).relative_to(folder) / output)


def read_record(path: Path) -> dict[str, Any] | None:
    """A record that the executor wrote, or None while there is none. A damaged one counts as an empty record: something
    was written, so the executor has ended."""
    try:
        value = read_foreign_json(path, RECORD_BYTES)
    except OSError:
        return None
    except ValueError as error:
        log.warning("%s cannot be read: %s", path, error)
        return {}
    return value if isinstance(value, dict) else {}
