"""Readings of a home: its disk, database and agent, and the agents of other homes."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
from msgspec import Struct

from gputui.core.config import Workspace, file_system_of
from gputui.machine.child import ChildError, run_child
from gputui.runs.agent_process import read_identity
from gputui.runs.identity import is_stopped
from gputui.store.agent import read_agent
from gputui.store.database import StoreError, StoreMissingError, open_reader
from gputui.store.hardware import quarantined, read_gpus

WRITE_BYTES = 64 * 2**20
WRITE_DEADLINE_SECONDS = 10.0
QUICK_CHECK_SECONDS = 3.0
_STEPS_BETWEEN_CHECKS = 10_000


class AgentReading(Struct, frozen=True):
    """The agent of this home. ``heartbeat_seconds`` is the age of its last heartbeat, None without one; ``is_stopped``:
    it was stopped by SIGSTOP."""

    pid: int
    version: str
    interval_seconds: float | None
    heartbeat_seconds: float | None
    sampler_state: str | None
    is_stopped: bool = False


class HomeReading(Struct, frozen=True):
    """The state of a home. ``write_bytes_per_second`` was measured, or ``write_problem`` says why not. ``database``:
    ``ok``, ``missing``, ``slow`` (not read completely in time), or an error. ``other_agents``: (PID, state
    directory)."""

    state: str
    file_system: str | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    write_bytes_per_second: float | None = None
    write_problem: str | None = None
    database: str = "missing"
    database_bytes: int | None = None
    schema_version: int | None = None
    agent: AgentReading | None = None
    other_agents: tuple[tuple[int, str], ...] = ()


def read_home(workspace: Workspace, now: float) -> HomeReading:
    """Read a home. Writes a temporary file of 64 MiB into the state directory, or above it if that does not exist."""
    place = next(folder for folder in (workspace.state, *workspace.state.parents) if folder.is_dir())
    free, total = _usage(place)
    speed, problem = measure_write(place)
    state, size, version = check_database(workspace.database)
    return HomeReading(
        state=str(workspace.state),
        file_system=_file_system(place),
        disk_free_bytes=free,
        disk_total_bytes=total,
        write_bytes_per_second=speed,
        write_problem=problem,
        database=state,
        database_bytes=size,
        schema_version=version,
        agent=_agent(workspace, now),
        other_agents=_other_agents(workspace),
    )


def measure_write(
    folder: Path, size_bytes: int = WRITE_BYTES, deadline_seconds: float = WRITE_DEADLINE_SECONDS
) -> tuple[float | None, str | None]:
    """Bytes per second of a write with fsync, or why there is no figure. A child process writes, because a broken disk
    or server may block; its file is always removed."""
    path = folder / f".gputui-doctor-{os.getpid()}"
    if (room := _usage(folder)[0]) is not None and room < 4 * size_bytes:
        return None, "too full to try"
    argv = [sys.executable, "-P", "-m", "gputui.profiles.doctor.disk_write", str(path), str(size_bytes)]
    try:
        answered = run_child(argv, deadline_seconds=deadline_seconds)
        if answered.status != 0:
            return None, answered.stderr_tail
        return size_bytes / float(answered.output), None
    except ChildError as error:
        return None, f"a write of {size_bytes >> 20} MiB {error}".replace("did not answer", "was not over")
    except (ValueError, ZeroDivisionError):
        return None, "the write could not be timed"
    finally:
        # A read-only file system refuses this even without a file.
        with suppress(OSError):
            path.unlink()


def check_database(path: Path, seconds: float = QUICK_CHECK_SECONDS) -> tuple[str, int | None, int | None]:
    """`HomeReading.database`, its size and its schema version. The check stops after ``seconds``."""
    if not path.exists():
        return "missing", None, None
    size = sum(side.stat().st_size for side in (path, path.with_name(path.name + "-wal")) if side.exists())
    version = None
    try:
        with closing(open_reader(path)) as connection:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            deadline = time.monotonic() + seconds
            connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS_BETWEEN_CHECKS)
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except StoreMissingError:
        return "missing", size, version
    except (StoreError, sqlite3.Error) as error:
        is_late = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
        return "slow" if is_late else str(error), size, version
    return found, size, version


def read_quarantine(workspace: Workspace) -> dict[str, str]:
    """UUID → reason; empty if the database is missing or unreadable (another check reports that)."""
    try:
        with closing(open_reader(workspace.database)) as connection:
            return {uuid: out.reason for uuid, out in quarantined(connection).items()}
    except (StoreError, sqlite3.Error):
        return {}


def read_leased(workspace: Workspace) -> list[str]:
    """The UUIDs of GPUs that runs of this home hold."""
    try:
        with closing(open_reader(workspace.database)) as connection:
            return [gpu.uuid for gpu in read_gpus(connection, time.time()) if gpu.run_id is not None]
    except (StoreError, sqlite3.Error):
        return []


def _agent(workspace: Workspace, now: float) -> AgentReading | None:
    identity = read_identity(workspace)
    if identity is None:
        return None
    view = None
    try:
        with closing(open_reader(workspace.database)) as connection:
            view = read_agent(connection)
    except (StoreError, sqlite3.Error):
        pass
    if view is None or view.pid != identity.process.pid:
        return AgentReading(identity.process.pid, identity.version, None, None, None, is_stopped(identity.process))
    age = max(0.0, now - view.heartbeat_at)
    stopped = is_stopped(identity.process)
    return AgentReading(view.pid, identity.version, view.interval_seconds, age, view.sampler_state, stopped)


def _other_agents(workspace: Workspace) -> tuple[tuple[int, str], ...]:
    """This user's agents of other state directories, by their command lines."""
    found, me = [], os.getuid()
    for process in psutil.process_iter(["uids", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["uids"] is None or process.info["uids"].real != me or "gputui.agent" not in words:
            continue
        if "--state" in words[:-1]:
            state = words[words.index("--state") + 1]
            if os.path.realpath(state) != str(workspace.state):
                found.append((process.pid, state))
    return tuple(found)


def _usage(path: Path) -> tuple[int | None, int | None]:
    try:
        found = psutil.disk_usage(str(path))
    except OSError:
        return None, None
    return found.free, found.total


def _file_system(path: Path) -> str | None:
    try:
        return file_system_of(path, Path("/proc/self/mountinfo").read_text("utf-8", "replace"))
    except OSError:
        return None
