"""Starting an attempt: intent first, then the shim, so that a successor can tell at any moment what was meant."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gputui.agent.rundirs import metrics_bytes
from gputui.config import PRIVATE_DIR_MODE, Workspace, runtime_dir
from gputui.metrics.ingest import MetricsIngest
from gputui.redaction import Redactor
from gputui.runs import next_attempt, repository, shim
from gputui.runs.agent_process import AGENT_MARK
from gputui.runs.command import build_launch
from gputui.runs.identity import ProcessIdentity, boot_id, identify, marked_processes
from gputui.runs.redaction import redact_launch, restore, secrets_of
from gputui.runs.repository import AttemptRecord, RunRecord, transaction
from gputui.runs.states import RunState
from gputui.runs.submission import SPEC_FILE, read_spec, write_private


class LaunchError(Exception):
    """The attempt cannot be started now; the text says why. Nothing was changed."""


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
    run: RunRecord,
    uuids: Sequence[str],
    indices: Sequence[int],
    now: float,
) -> AttemptRecord:
    """Write down the next attempt: its folder, its leases, its row and where its metrics begin.

    Raises LaunchError or sqlite3.Error with nothing changed but, at worst, an unused folder.
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
        launch = build_launch(
            spec,
            run_id=run.run_id,
            run_dir=str(workspace.run_dir(run.run_id)),
            attempt=number,
            params=real,
            visible_gpus=tuple(uuids) if spec.visible == "uuid" else tuple(str(index) for index in indices),
            nproc=ranks_for(spec.nproc, len(spec.gpus.uuids) or spec.gpus.count, len(uuids)),
            port=free_port(),
            checkpoint=run.resume_from,
        )
        (folder / str(number)).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        write_private(
            folder / str(number) / "attempt.json",
            {
                **launch.to_json(),
                "run_id": run.run_id,
                "attempt": number,
                "created_at": now,
                "gpus": list(uuids),
                "params": run.params,
                "resume_from": run.resume_from,
                "lock_files": lock_files(uuids),
                "metrics_bytes": metrics_bytes(spec, workspace.run_dir(run.run_id)),
            },
        )
    except (OSError, ValueError) as error:
        raise LaunchError(str(error)) from error
    stored = redact_launch(launch, Redactor(secrets_of(spec)))
    with transaction(connection):
        repository.take_leases(connection, run.run_id, uuids, now)
        repository.insert_attempt(connection, run, number=number, gpus=uuids, launch=stored, now=now)
        next_attempt.take_away(connection, run.run_id)
        ingest.begin_attempt(run.run_id, number)
        repository.move(connection, run, RunState.STARTING, cause=f"attempt {number}", now=now)
        where = f" on {len(uuids)} GPU{'s' if len(uuids) != 1 else ''}" if uuids else ""
        resumed = f" from {Path(run.resume_from).name}" if run.resume_from else ""
        repository.add_event(
            connection, f"attempt {number} starts{where}{resumed}", now=now, run_id=run.run_id, attempt=number
        )
    attempt = repository.get_attempt(connection, run.run_id, number)
    assert attempt is not None
    return attempt


def ranks_for(nproc: int, gpus_asked: int, gpus_given: int) -> int:
    """Ranks on this machine: as many per GPU as the profile has, on as many GPUs as there are."""
    if not gpus_asked or not gpus_given:
        return nproc
    return max(1, nproc * gpus_given // gpus_asked)


def lock_files(uuids: Sequence[str]) -> list[str]:
    """A lock file per GPU in the user's runtime directory, so that two homes of one user cannot collide.

    Raises OSError when that directory is not ours.
    """
    if not uuids:
        return []
    folder = runtime_dir() / "leases"
    folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR_MODE)
    if folder.stat().st_uid != os.getuid() or folder.parent.stat().st_uid != os.getuid():
        raise OSError(f"{folder} belongs to another user")
    return [str(folder / f"{uuid}.lock") for uuid in sorted(uuids)]


def spawn_shim(workspace: Workspace, attempt: AttemptRecord) -> ProcessIdentity | None:
    """Start the attempt's shim: own session, no standard input, nothing inherited. None when it ended at once."""
    folder = attempt_dir(workspace, attempt.run_id, attempt.number)
    environment = {name: value for name, value in os.environ.items() if name != AGENT_MARK}
    environment |= {
        "GPUTUI_RUN_ID": attempt.run_id,
        "GPUTUI_RUN_DIR": str(workspace.run_dir(attempt.run_id)),
        "GPUTUI_ATTEMPT": str(attempt.number),
    }
    descriptor = os.open(folder / "shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", shim.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
    finally:
        os.close(descriptor)
    # The loop reaps by PID; Popen's own bookkeeping would complain about a process that outlives it.
    process.returncode = 0
    return identify(process.pid)


def find_shim(workspace: Workspace, run_id: str, number: int) -> ProcessIdentity | None:
    """The shim of an attempt whose starter died before noting it."""
    for identity in marked_processes(workspace.run_dir(run_id), number):
        try:
            argv = Path(f"/proc/{identity.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(shim.__file__) in argv:
            return identity
    return None


def is_of_former_boot(attempt: AttemptRecord, folder: Path) -> bool:
    """Whether the machine was rebooted since the attempt began; told by its shim, also where its starter died before
    noting that."""
    if attempt.shim is not None:
        return attempt.shim.boot_id != boot_id()
    try:
        started = json.loads((folder / "started.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    noted = started.get("boot_id") if isinstance(started, dict) else None
    return isinstance(noted, str) and noted != boot_id()


def reap(pid: int) -> None:
    """Collect a shim that has ended, where it was a child of this process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
