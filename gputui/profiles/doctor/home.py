"""Checks of a home: its disk, database and agent, and the agents of other homes. Thresholds are this product's own.

    python -m gputui.profiles.doctor.home PATH BYTES

writes a file and prints how many seconds that took.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil
from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE, Workspace, file_system_of, is_network_file_system
from gputui.core.units import bytes_text
from gputui.core.yaml_forms.problems import ProfileError
from gputui.machine.child import ChildError, run_child
from gputui.profiles.doctor.disk_use import check_disk_use
from gputui.profiles.doctor.host import disk_room
from gputui.profiles.home_files import load_recipients, mistakes
from gputui.runs.agent_process import read_identity
from gputui.runs.checks import CheckResult, graded
from gputui.runs.identity import is_stopped
from gputui.runs.notices import PendingMessage, pending, problem_of
from gputui.store.agent import read_agent
from gputui.store.database import StoreError, StoreMissingError, open_reader
from gputui.version import VERSION

LITTLE_DISK_BYTES = 10 * 2**30
TOO_LITTLE_DISK_BYTES = 2**30  # less than a single checkpoint of a small model
SLOW_DISK_BYTES_PER_SECOND = 50e6  # a checkpoint of 10 GB would take over three minutes
AGENT_SILENT_SECONDS = 10.0  # its loop has a turn several times a second
WRITE_BYTES = 64 * 2**20
WRITE_DEADLINE_SECONDS = 10.0  # the 64 MiB at an eighth of a slow disk's speed
QUICK_CHECK_SECONDS = 3.0  # a database of some gigabytes is checked in part
TOO_FULL = "too full to try"
ANOTHERS = "who is told of what is its owner's"
ONLY_READ = "not measured in a home that is only read here"
_STEPS_BETWEEN_CHECKS = 10_000  # of SQLite's virtual machine: less than a millisecond
_CHUNK_BYTES = 4 * 2**20


class AgentReading(Struct, frozen=True):
    """The agent of a home.

    Attributes:
        interval_seconds: The time between two ticks that it stored, None if it stored none.
        sampler_state: The state of its sampler that it stored, None if it stored none.
        heartbeat_seconds: The age of its last heartbeat, None without one.
        is_stopped: It was stopped by SIGSTOP.
    """

    pid: int
    version: str
    interval_seconds: float | None
    heartbeat_seconds: float | None
    sampler_state: str | None
    is_stopped: bool = False


def check_home(workspace: Workspace, now: float, *, is_readonly: bool = False) -> list[CheckResult]:
    """All checks of a home, in the order in which they are shown.

    Args:
        now: UTC unix seconds.
        is_readonly: Do not write a temporary file of 64 MiB into the state directory, or above it if that does not
            exist.
    """
    state = str(workspace.state)
    place = next(folder for folder in (workspace.state, *workspace.state.parents) if folder.is_dir())
    speed: tuple[float | None, str | None] = (None, ONLY_READ)
    if not is_readonly:
        speed = measure_write(place)
    is_anothers = workspace.state.is_dir() and not os.access(workspace.state, os.W_OK)
    recipients: Sequence[tuple[str, str | None]] | str = ANOTHERS
    if not is_anothers:
        recipients = _recipients(workspace)
    return [
        check_disk(state, disk_room(place)),
        check_write(state, *speed),
        check_file_system(state, file_system_of(place, Path("/proc/self/mountinfo").read_text("utf-8", "replace"))),
        check_database(state, *read_database(workspace.database)),
        check_settings(mistakes(workspace, is_anothers=is_anothers)),
        check_messages(recipients),
        check_agent(_agent(workspace, now)),
        check_other_agents(_other_agents(workspace)),
        *check_disk_use(workspace),
    ]


def check_disk(state: str, room: tuple[int, int] | None) -> CheckResult:
    """Check the room for checkpoints and history."""
    if room is None:
        return CheckResult("disk", "skip", f"cannot tell how full the disk of {state} is")
    free_bytes, total_bytes = room
    detail = f"{bytes_text(free_bytes)} of {bytes_text(total_bytes)} free for {state}"
    remedy = "remove old runs (gputui rm --older 30d --dry-run lists them), or choose another --home"
    too_little = free_bytes < TOO_LITTLE_DISK_BYTES
    little = free_bytes < LITTLE_DISK_BYTES
    return graded("disk", detail, remedy, fails=too_little, warns=little)


def check_write(state: str, bytes_per_second: float | None, problem: str | None) -> CheckResult:
    """Check the write speed, which checkpoints depend on."""
    if problem in (TOO_FULL, ONLY_READ):
        return CheckResult("disk speed", "skip", problem)
    if bytes_per_second is None:
        return CheckResult("disk speed", "fail", f"{state}: {problem}", "check permissions, the mount and dmesg")
    detail = f"{bytes_per_second / 1e6:.0f} MB/s written and synced"
    remedy = "checkpoints will be slow: put the home on a faster disk"
    return graded("disk speed", detail, remedy, warns=bytes_per_second < SLOW_DISK_BYTES_PER_SECOND)


def check_file_system(state: str, kind: str | None) -> CheckResult:
    """Check for a local file system: SQLite's WAL needs the shared memory of one machine."""
    if kind is None:
        return CheckResult("file system", "skip", f"unknown for {state}")
    if is_network_file_system(kind):
        detail = f"{state} is on {kind}, where the database cannot work"
        return CheckResult("file system", "fail", detail, "set GPUTUI_HOME, or --home, to a folder on a local disk")
    return CheckResult("file system", "pass", f"local ({kind})")


def check_database(state: str, condition: str, size_bytes: int | None, schema: int | None) -> CheckResult:
    """Check that the database is intact; arguments behind ``state`` are of `read_database`."""
    size = "" if size_bytes is None else f", {bytes_text(size_bytes)}"
    if condition == "missing":
        return CheckResult("database", "skip", f"nothing has been recorded in {state} yet")
    if condition == "slow":
        return CheckResult("database", "skip", f"too large to be read to its end here{size}")
    if condition == "ok":
        return CheckResult("database", "pass", f"whole, schema {schema}{size}")
    remedy = "gputui agent stop, then start: the agent rebuilds what it can and keeps the old file beside it"
    if "another version" in condition:
        remedy = f"move {state} away, or choose another --home"
    return CheckResult("database", "fail", f"{condition}{size}", remedy)


def check_settings(mistake_lines: Sequence[str]) -> CheckResult:
    """Check that the settings files of the home have no mistakes, by the first one of each."""
    if not mistake_lines:
        return CheckResult(
            "settings", "pass", "no mistake in alerts, notify, gpus, record and targets.yaml as far as readable"
        )
    remedy = "correct it: until then what the file said before counts, or nothing"
    return CheckResult("settings", "fail", "; ".join(mistake_lines), remedy)


def check_messages(recipients: Sequence[tuple[str, str | None]] | str) -> CheckResult:
    """Check that messages can be sent: ``recipients`` are labels with what keeps messages from each, or why they are
    not known."""
    if isinstance(recipients, str):
        return CheckResult("messages", "skip", recipients)
    if not recipients:
        return CheckResult("messages", "skip", "notify.yaml names nobody to be told when runs end or fail")
    problems = [f"{label}: {problem}" for label, problem in recipients if problem is not None]
    if problems:
        remedy = "correct notify.yaml if it is at fault; gputui notify test tries each"
        return CheckResult("messages", "fail", "; ".join(dict.fromkeys(problems)), remedy)
    labels = ", ".join(dict.fromkeys(label for label, _ in recipients))
    return CheckResult("messages", "pass", f"to {labels}; gputui notify test sends one")


def _recipients(workspace: Workspace) -> list[tuple[str, str | None]] | str:
    try:
        recipients = load_recipients(workspace.notify)
    except ProfileError:
        return "notify.yaml has a mistake; until it is corrected, the agent follows what it said before"
    unsent: list[PendingMessage] = []
    with suppress(StoreError, sqlite3.Error), closing(open_reader(workspace.database)) as connection:
        unsent = pending(connection)
    return [(recipient.label, problem_of(recipient, unsent)) for recipient in recipients]


def check_agent(agent: AgentReading | None) -> CheckResult:
    """Check that the agent is alive, responsive and of this version."""
    if agent is None:
        return CheckResult("agent", "skip", "none runs; whatever needs one starts it")
    if agent.is_stopped:
        remedy = f"kill -CONT {agent.pid} continues it; runs continue meanwhile"
        return CheckResult("agent", "fail", f"pid {agent.pid} was stopped (state T)", remedy)
    if agent.heartbeat_seconds is None:
        return CheckResult("agent", "warn", f"pid {agent.pid} has written nothing yet", "ask again in a moment")
    if agent.heartbeat_seconds > AGENT_SILENT_SECONDS + (agent.interval_seconds or 0.0):
        remedy = "gputui agent stop, then start; runs continue meanwhile; the log is agent.log"
        return CheckResult("agent", "fail", f"pid {agent.pid} silent for {agent.heartbeat_seconds:.0f} s", remedy)
    detail = f"pid {agent.pid}, last heartbeat {agent.heartbeat_seconds:.1f} s ago"
    if agent.sampler_state not in (None, "ok", "starting"):
        remedy = "the driver may hang: see dmesg and agent.log"
        return CheckResult("agent", "warn", f"{detail}; its reader of the GPUs is {agent.sampler_state}", remedy)
    if agent.version != VERSION:
        remedy = "gputui agent stop; the next command starts the new one, and runs continue"
        return CheckResult("agent", "warn", f"{detail}, but of version {agent.version}, not {VERSION}", remedy)
    return CheckResult("agent", "pass", detail)


def check_other_agents(agents: list[tuple[int, str]]) -> CheckResult:
    """Report agents of this user's other homes (PID, state directory), which share the GPUs. Lock
    files keep their runs apart."""
    if not agents:
        return CheckResult("other agents", "pass", "none of this user")
    processes = ", ".join(f"pid {pid} ({state})" for pid, state in agents)
    return CheckResult("other agents", "pass", f"{len(agents)} of other homes: {processes}")


def measure_write(
    folder: Path, size_bytes: int = WRITE_BYTES, deadline_seconds: float = WRITE_DEADLINE_SECONDS
) -> tuple[float | None, str | None]:
    """Bytes per second of a write with fsync, or why there is no figure. A child process writes,
    because a broken disk or server may block; its file is always removed."""
    path = folder / f".gputui-doctor-{os.getpid()}"
    if (room := disk_room(folder)) is not None and room[0] < 4 * size_bytes:
        return None, TOO_FULL
    argv = [sys.executable, "-P", "-m", "gputui.profiles.doctor.home", str(path), str(size_bytes)]
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


def read_database(path: Path, seconds: float = QUICK_CHECK_SECONDS) -> tuple[str, int | None, int | None]:
    """The state, size in bytes and schema version of a database. The state is ``ok``, ``missing``,
    ``slow`` (not read completely within ``seconds``), or an error."""
    if not path.exists():
        return "missing", None, None
    size = sum(side.stat().st_size for side in (path, path.with_name(path.name + "-wal")) if side.exists())
    version = None
    try:
        with closing(open_reader(path)) as connection:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            deadline = time.monotonic() + seconds
            connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS_BETWEEN_CHECKS)
            condition = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except StoreMissingError:
        return "missing", size, version
    except (StoreError, sqlite3.Error) as error:
        condition = str(error)
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            condition = "slow"
        return condition, size, version
    return condition, size, version


def _agent(workspace: Workspace, now: float) -> AgentReading | None:
    identity = read_identity(workspace)
    if identity is None:
        return None
    view = None
    with suppress(StoreError, sqlite3.Error), closing(open_reader(workspace.database)) as connection:
        view = read_agent(connection)
    stopped = is_stopped(identity.process)
    if view is None or view.pid != identity.process.pid:
        return AgentReading(
            identity.process.pid,
            identity.version,
            interval_seconds=None,
            heartbeat_seconds=None,
            sampler_state=None,
            is_stopped=stopped,
        )
    age = max(0.0, now - view.heartbeat_at)
    return AgentReading(
        view.pid,
        identity.version,
        view.interval_seconds,
        heartbeat_seconds=age,
        sampler_state=view.sampler_state,
        is_stopped=stopped,
    )


def _other_agents(workspace: Workspace) -> list[tuple[int, str]]:
    """This user's agents of other state directories, by their command lines."""
    agents = []
    me = os.getuid()
    for process in psutil.process_iter(["uids", "cmdline"]):
        arguments = process.info["cmdline"] or []
        if process.info["uids"] is None or process.info["uids"].real != me or "gputui.agent" not in arguments:
            continue
        if "--state" in arguments[:-1]:
            state = arguments[arguments.index("--state") + 1]
            if os.path.realpath(state) != str(workspace.state):
                agents.append((process.pid, state))
    return agents


def main(path: str, size_bytes: int) -> int:
    """Write random bytes, because some disks and file systems compress."""
    chunk = os.urandom(_CHUNK_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        # Unlinked at once, so that nothing is left if this process is killed.
        os.unlink(path)  # noqa: PTH108
        began = time.monotonic()
        bytes_left = size_bytes
        while bytes_left > 0:
            bytes_left -= os.write(descriptor, chunk[:bytes_left])
        os.fsync(descriptor)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    sys.stdout.write(f"{time.monotonic() - began}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
