"""Preparation of an attempt: its plan is on disk and in the store before its executor starts, so
that the agent can be killed at any time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.run_files import attempt_numbers, rank_output
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import Redactor
from gputui.core.units import count_of
from gputui.metrics.source_state import SourceState
from gputui.runs import repository
from gputui.runs.agent_process import agent_for_executor
from gputui.runs.command import Launch, build_launch, checkpoint_directory, in_run, watched_checkpoints, without_gpus
from gputui.runs.executors.base import Executor
from gputui.runs.executors.remote_checkpoints import NEWEST_CHECKPOINT
from gputui.runs.launchers.base import OUTPUT, Placement
from gputui.runs.logs import FIRST_NODE
from gputui.runs.redaction import redact_launch, restore, secrets_of
from gputui.runs.scheduler import Start
from gputui.runs.spec import RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import SPEC_FILE, read_spec, write_private
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.run_states import RunState
from gputui.store.runs import Run


class LaunchError(Exception):
    """The attempt cannot be started now; the message says why. Nothing was changed."""


class UnusableSpecError(LaunchError):
    """The run's specification cannot be started, now or later."""


class Grant(NamedTuple):
    """The resources of an attempt.

    Attributes:
        indices: of its GPUs.
        lock_files: which the executor holds for them.
        gpu_share: the part of its GPU that it takes.
    """

    executor: Executor
    indices: Sequence[int]
    lock_files: Sequence[str] = ()
    gpu_share: float = 1.0


class _Prepared(NamedTuple):
    """An attempt whose folder is written.

    Attributes:
        created_at: UTC unix seconds.
        ends: the ends of the metrics files, behind which its lines begin, by source.
    """

    number: int
    created_at: float
    folder: Path
    spec: RunSpec
    launch: Launch
    ends: Mapping[int, SourceState]


def prepare_attempt(context: AgentContext, start: Start, grant: Grant) -> Attempt:
    """Prepare the next attempt: its folder, leases, row, and the position where its metrics begin.

    Leases of the run besides those of ``start`` end. After an error an unused folder may remain.

    Raises:
        UnusableSpecError: the run can never be started.
        LaunchError: it cannot be started now.
        sqlite3.Error: nothing can be stored now.
    """
    try:
        prepared = _write_folder(context, start, grant)
    except ValueError as error:
        raise UnusableSpecError(str(error)) from error
    except OSError as error:
        raise LaunchError(str(error)) from error
    _write_rows(context, start, grant, prepared)
    attempt = get_attempt(context.connection, start.run.run_id, prepared.number)
    assert attempt is not None
    return attempt


def _write_folder(context: AgentContext, start: Start, grant: Grant) -> _Prepared:
    """Write the folder of the attempt, with its plan in attempt.json. Raises ValueError, SpecError
    or OSError."""
    run = start.run
    ingest = context.ingest
    now = context.now()
    run_dir = context.workspace.run_dir(run.run_id)
    (run_dir / "attempts").mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    # None is used twice, even if a row was lost: torchrun truncates existing logs.
    number = max([run.attempt, *attempt_numbers(run_dir)]) + 1
    spec = read_spec(run_dir / SPEC_FILE)
    spec = replace(spec, env={**spec.env, **repository.get_next_attempt(context.connection, run.run_id).env})
    build = partial(
        build_launch,
        spec,
        run_dir=str(run_dir),
        attempt=number,
        params=restore(run.params, spec.params),
        placement=_placement(spec, start, grant),
    )
    launch = build(checkpoint=run.resume_from)
    plan = _plan(context, start, grant, spec, number=number, now=now)
    if not grant.executor.places_gpus:
        launch = without_gpus(launch)
        plan |= _runner_fields(spec, run_dir, build, _history_for_target(context, run, grant.executor, spec))
        # A start by a person uses the current code, a restart the code of the attempt before.
        plan["keeps_code"] = run.not_before is not None
    folder = run_dir / "attempts" / str(number)
    ends = ingest.ends.of(run.run_id)
    for name in ("", "nodes", FIRST_NODE):
        (folder / name).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    plan["metrics_bytes"] = ingest.ends.sizes(run.run_id, ends)
    write_private(folder / "attempt.json", {**launch.to_json(), **plan})
    return _Prepared(number, now, folder, spec=spec, launch=launch, ends=ends)


def _plan(
    context: AgentContext, start: Start, grant: Grant, spec: RunSpec, *, number: int, now: float
) -> dict[str, Any]:
    """The fields of attempt.json besides the command, as every executor needs them."""
    run = start.run
    shell = None
    if spec.shell is not None:
        shell = asdict(spec.shell)
    return {
        "output": f"{FIRST_NODE}/{OUTPUT}",
        "run_id": run.run_id,
        "attempt": number,
        "created_at": now,
        "gpus": list(start.uuids),
        "params": dict(run.params),
        "resume_from": run.resume_from,
        "lock_files": list(grant.lock_files),
        "gpu_share": grant.gpu_share,
        "workspace": context.workspace.label,
        "shell": shell,
        "agent": agent_for_executor(context.workspace),
    }


def _history_for_target(context: AgentContext, run: Run, executor: Executor, spec: RunSpec) -> list[dict[str, Any]]:
    """The attempts whose checkpoints the target may choose from; none where they are seen from here."""
    if executor.sees_checkpoints(spec.target or {}):
        return []
    return checkpoint_survey.attempts_to_resume(context.connection, context.workspace, run)


def _placement(spec: RunSpec, start: Start, grant: Grant) -> Placement:
    if not grant.executor.places_gpus:
        return grant.executor.placement(spec)
    visible = start.uuids
    if spec.visible != "uuid":
        visible = tuple(str(index) for index in grant.indices)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        _, port = probe.getsockname()
    return Placement.here(visible, spec.ranks_on(len(start.uuids)), port=int(port))


def _write_rows(context: AgentContext, start: Start, grant: Grant, prepared: _Prepared) -> None:
    """Write the attempt's row, its leases and its event in one transaction."""
    run = start.run
    uuids = start.uuids
    number = prepared.number
    now = prepared.created_at
    folder = prepared.folder
    spec = prepared.spec
    stored = redact_launch(prepared.launch, Redactor(secrets_of(spec)))
    with repository.transaction(context.connection) as connection:
        repository.release_leases(connection, run.run_id, keep=uuids)
        repository.take_leases(connection, run.run_id, uuids, now, share=grant.gpu_share)
        if start.replaced:
            text = f"{'; '.join(start.replaced)}: replaced"
            context.note("gpus_replaced", text, run.run_id, severity="warning")
        repository.insert_attempt(connection, run, number=number, gpus=uuids, launch=stored, now=now)
        repository.drop_next_attempt(connection, run.run_id)
        checkpoints, _ = watched_checkpoints(spec_of(run), context.workspace.run_dir(run.run_id))
        checkpoint_survey.attempt_begins(connection, run, number, checkpoints, folder)
        output = rank_output(spec, len(uuids), folder)
        context.ingest.begin_attempt(run.run_id, number, output, prepared.ends)
        repository.move(connection, run, RunState.STARTING, cause=f"attempt {number}", now=now)
        context.note("attempt_started", _start_text(start, prepared), run.run_id, number)


def _start_text(start: Start, prepared: _Prepared) -> str:
    """``attempt 2 starts on 4 GPUs from step_90.pt``."""
    target = prepared.spec.target
    resume_from = start.run.resume_from
    text = f"attempt {prepared.number} starts"
    if target is not None:
        text += f" on {target['name']}"
    elif start.uuids:
        text += f" on {count_of(len(start.uuids), 'GPU')}"
    if resume_from:
        text += f" from {Path(resume_from).name}"
    return text


def _runner_fields(
    spec: RunSpec, run_dir: Path, build: Callable[..., Launch], history: list[dict[str, Any]]
) -> dict[str, Any]:
    """The fields of attempt.json for a runner: the target, the requested resources, and how to resume.

    Args:
        build: makes the command, given a checkpoint; here NEWEST_CHECKPOINT stands for one on the target.
        history: the attempts whose checkpoints the first start may use.
    """
    folder = checkpoint_directory(spec, run_dir)
    resume: dict[str, Any] | None = None
    if spec.checkpoints is not None:
        again = without_gpus(build(checkpoint=NEWEST_CHECKPOINT))
        resume = {"folder": str(folder), "pattern": spec.checkpoints.pattern}
        resume |= {"argv": again.argv, "env": again.env}
    # Limits and environment are those of the target; file permissions those of the shell here.
    shell = None
    clients = None
    if spec.shell is not None:
        clients = spec.shell.clients
        if spec.shell.umask is not None:
            shell = {"umask": spec.shell.umask}
    checkpoints = None
    if folder is not None:
        checkpoints = str(folder)
    lineage = history
    if resume is None:
        lineage = []
    paths = [source.path for source in spec.metrics if source.path is not None]
    return {
        "shell": shell,
        "target": dict(spec.target or {}),
        "client_environment": clients,
        "asks": {"gpus": spec.gpus.count, "ranks": spec.nproc},
        "metrics": [str(in_run(path, spec, run_dir)) for path in paths],
        "resume": resume,
        "checkpoints": checkpoints,
        "lineage": lineage,
    }
