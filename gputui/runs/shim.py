"""The shim: one per attempt, standard library only, started as a file by any Python of at least 3.9.

It becomes a session leader and child subreaper, holds the GPU lock files, starts the attempt's command with its output
going to a file, forwards a stop, and when the command has ended makes sure that no descendant is left. Then it writes
``exit.json``. It never restarts anything and never looks at the database, so it outlives the agent and loses no exit.

Usage: shim.py ATTEMPT_DIR, where attempt.json says what to start (see `plan_to_json` in gputui.runs.attempt).

SIGTERM or SIGINT ask for a graceful stop; SIGUSR2 kills at once; SIGHUP is nobody's business.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STRAY_GRACE_SECONDS = 2.0
LAST_CALL_SECONDS = 2.0
UNKILLABLE_SECONDS = 30.0
RECORD_BYTES = 4096
# A kill for lack of memory explains an end that follows it within one or two of these, not one hours later.
OOM_LOOK_SECONDS = 60.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
WATCHED = (*STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD)


def reserve_record(path: Path) -> None:
    """Take room for a record while there is some: the command may fill the disk, and its end must still be told."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path.with_name(path.name + ".tmp"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RECORD_BYTES)
        finally:
            os.close(descriptor)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write JSON so that it is either there whole, also after a power cut, or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    # Not emptied before: what was reserved would be lost.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def stat_of(pid: int) -> tuple[int, str, int] | None:
    """(parent, state letter, start ticks) of a process, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()
    return int(fields[1]), fields[0], int(fields[19])


def is_of_another(pid: int, run_dir: bytes) -> bool:
    """Whether a process is an agent that was started from inside this run, or of a run which that agent started:
    they hang below this shim, and are none of its business."""
    try:
        marks = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(
        mark.startswith(b"GPUTUI_AGENT=") or (mark.startswith(b"GPUTUI_RUN_DIR=") and mark[15:] != run_dir)
        for mark in marks
    )


def descendants(run_dir: bytes) -> set[int]:
    """Every living process below this one that belongs to the run in ``run_dir``. As a subreaper the shim inherits
    what its descendants leave behind, so the parent chain is complete however often they forked or called setsid."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = stat_of(int(name))
            if stat is not None and stat[1] not in ("Z", "X", "x"):
                parents[int(name)] = stat[0]
    own = os.getpid()
    found: set[int] = set()
    for start in parents:
        pid, chain = start, []
        while pid in parents and pid not in found and pid != own:
            chain.append(pid)
            pid = parents[pid]
        if pid == own or pid in found:
            found.update(chain)
    found.discard(own)
    others = {pid for pid in found if is_of_another(pid, run_dir)}
    while below := {pid for pid in found - others if parents[pid] in others}:
        others |= below
    return found - others


def signal_all(pids: set[int], number: int) -> None:
    """Signal descendants. A stopped one must be continued to notice."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)


def oom_kills(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> dict[str, int | None]:
    """How many processes the kernel has killed for lack of memory so far: in this control group, and on the host."""
    return {"cgroup": kills_of_group(proc, groups), "host": counter_in(proc / "vmstat")}


def kills_of_group(proc: Path, groups: Path) -> int | None:
    """The count of this process's own control group, of version 2 or, where memory is still with that, of 1."""
    try:
        lines = (proc / "self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        own = group.lstrip("/")
        count = None
        if not controllers:
            count = counter_in(groups / own / "memory.events")
        elif "memory" in controllers.split(","):
            count = counter_in(groups / "memory" / own / "memory.oom_control")
        if count is not None:
            return count
    return None


def counter_in(path: Path) -> int | None:
    """The count of OOM kills among the lines of a kernel's file of counters, or None where it tells none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text("ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def free_bytes(directory: Path) -> int | None:
    """What is left on a folder's disk, or None when it cannot be told."""
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
    return None


def growth(before: int | None, after: int | None) -> int | None:
    """How much a counter grew, or None when it cannot be read."""
    return None if before is None or after is None else after - before


def take_locks(paths: list[str]) -> tuple[list[int], list[str]]:
    """Lock a file per GPU, all or none, in sorted order. Returns the descriptors and the paths that were taken."""
    held: list[int] = []
    for name in sorted(paths):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            for other in held:
                os.close(other)
            return [], [name]
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        held.append(descriptor)
    return held, []


def restore_signals() -> None:
    """What the command is to find as any program does; runs between fork and exec."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Shim:
    """One attempt from start to exit.json."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plan: dict[str, Any] = json.loads((directory / "attempt.json").read_text("utf-8"))
        self.grace = float(self.plan["grace_seconds"])
        self.run_dir = os.fsencode(self.plan["env"]["GPUTUI_RUN_DIR"])
        self.status: int | None = None
        # When the command ended: a full disk leaves no message, for there is no room for one.
        self.free_bytes: int | None = None
        self.child = 0
        self.stop_requested = False
        self.forced = False
        self.last_call_at: float | None = None
        self.kill_at: float | None = None
        # The kernel's counts one look ago and at the last one.
        self.kills = (oom_kills(), oom_kills())
        self.look_at = time.monotonic() + OOM_LOOK_SECONDS

    def run(self) -> int:
        started_at = time.time()
        record: dict[str, Any] = {
            "code": None, "signal": None, "started_at": started_at, "stop_requested": False, "forced": False,
            "survivors": [], "error": None, "lease_conflict": None,
        }  # fmt: skip
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if not self.claim():
            return 0
        reserve_record(self.directory / "exit.json")
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        locks, conflict = take_locks(self.plan["lock_files"])
        if conflict:
            record["lease_conflict"] = conflict
        else:
            try:
                self.start()
            except OSError as error:
                record["error"] = f"{error.strerror or error}: {error.filename or self.plan['argv'][0]}"
        survivors = self.supervise() if self.child else []
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        before, after = self.kills[0], oom_kills()
        record |= {
            "ended_at": time.time(),
            "stop_requested": self.stop_requested,
            "forced": self.forced,
            "survivors": survivors,
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "disk_free_bytes": self.free_bytes,
            "oom_kills": {name: growth(before[name], after[name]) for name in after},
        }
        if self.status is not None:
            code = os.waitstatus_to_exitcode(self.status)
            record["code" if code >= 0 else "signal"] = abs(code)
        write_record(self.directory / "exit.json", record)
        for descriptor in locks:
            os.close(descriptor)
        return 0

    def claim(self) -> bool:
        """Whether this attempt is this shim's: an agent that was killed while starting one may have its successor
        start another."""
        self.claimed = os.open(self.directory / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return not (self.directory / "exit.json").exists()

    def start(self) -> None:
        environment = {**os.environ, **self.plan["env"]}
        with (self.directory / "output.log").open("ab", buffering=0) as output:
            process = subprocess.Popen(
                self.plan["argv"],
                cwd=self.plan["cwd"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The shim has one thread, so that code between fork and exec is safe here.
                preexec_fn=restore_signals,
            )
        self.child = process.pid
        # Only `reap` may ask how a child ended. A Popen that does not know asks once more when it is forgotten, and
        # would take the status of a command that has ended by then.
        process.returncode = 0
        own, child = stat_of(os.getpid()), stat_of(self.child)
        write_record(
            self.directory / "started.json",
            {
                "shim_pid": os.getpid(),
                "shim_start_ticks": own[2] if own else None,
                "pid": self.child,
                "start_ticks": child[2] if child else None,
                "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
                "at": time.time(),
            },
        )

    def supervise(self) -> list[int]:
        """Wait for the command, then for everything it left behind. Returns what could not be killed."""
        while self.status is None:
            deadline = self.kill_at if self.last_call_at is None else self.last_call_at
            self.wait_for_signal(min(self.look_at, deadline or self.look_at) - time.monotonic())
            self.reap()
            if time.monotonic() >= self.look_at and self.status is None:
                self.kills = (self.kills[1], oom_kills())
                self.look_at = time.monotonic() + OOM_LOOK_SECONDS
            if self.last_call_at is not None and time.monotonic() >= self.last_call_at and self.status is None:
                self.last_call_at = None
                signal_all(self.descendants(), signal.SIGTERM)
            if self.kill_at is not None and time.monotonic() >= self.kill_at and self.status is None:
                self.forced = True
                signal_all(self.descendants(), signal.SIGKILL)
                self.kill_at = time.monotonic() + 1.0
        return self.sweep()

    def sweep(self) -> list[int]:
        """Ask what is left to end, then kill it."""
        began = time.monotonic()
        asked = False
        while left := self.descendants():
            waited = time.monotonic() - began
            if waited > UNKILLABLE_SECONDS:
                return sorted(left)
            if waited > STRAY_GRACE_SECONDS or self.forced:
                signal_all(left, signal.SIGKILL)
            elif not asked:
                signal_all(left, signal.SIGTERM)
                asked = True
            self.wait_for_signal(0.05)
            self.reap()
        return []

    def descendants(self) -> set[int]:
        return descendants(self.run_dir)

    def wait_for_signal(self, timeout: float) -> None:
        """Sleep until a signal arrives or ``timeout`` seconds passed, and note what it asks for."""
        info = signal.sigtimedwait(WATCHED, max(timeout, 0.0))
        if info is None:
            return
        number = info.si_signo
        if number in STOP_SIGNALS and not self.stop_requested:
            self.stop_requested = True
            self.kill_at = time.monotonic() + self.grace
            self.last_call_at = self.kill_at - min(LAST_CALL_SECONDS, self.grace / 2)
            # First only the command itself: torchrun passes it on to its ranks, and a rank that wants to finish its
            # step must not lose its data loaders meanwhile. Everything else is asked shortly before the grace ends,
            # or by the sweep once the command has ended.
            if self.status is None and self.child:
                signal_all({self.child}, signal.SIGTERM)
        elif number == signal.SIGUSR2:
            self.stop_requested = self.forced = True
            self.last_call_at = None
            self.kill_at = time.monotonic()

    def reap(self) -> None:
        """Collect every child that ended: an unreaped one would look alive for ever."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self.child and self.status is None:
                    raise RuntimeError("somebody else has taken the command's exit status") from None
                return
            if pid == 0:
                return
            if pid == self.child:
                self.status = status
                self.free_bytes = free_bytes(self.directory)


def main() -> int:
    os.umask(0o077)
    return Shim(Path(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
