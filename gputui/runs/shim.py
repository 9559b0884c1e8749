"""The shim: one per attempt, standard library only, started as a file by any Python of at least
3.9.

It becomes a session leader and child subreaper, holds the GPU lock files, starts the attempt's
command with its output going to a file, forwards a stop, ends every descendant that outlives the
command, and writes ``exit.json``. It never restarts anything and never opens the database, so it
outlives the agent and loses no exit.

Usage: shim.py ATTEMPT_DIR [DESCRIPTOR ...], where attempt.json says what to start
(docs/architecture.md). The descriptors are its GPUs' locks, if the agent holds them already.

SIGTERM, SIGINT and SIGQUIT ask for a graceful stop, SIGUSR2 kills at once, and other signals are
ignored.

`python -I -S` finds no package: the shim adds the folder of its own, from which it imports the modules
`shim_*`. All is imported at the start, so that an upgrade leaves a living shim alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

if not __package__:
    # Started as a file. Last, so that nothing there takes the place of a module of the standard library.
    sys.path.append(str(Path(__file__).parents[2]))

from gputui.runs.shim_agent import start_agent
from gputui.runs.shim_command import CommandProcess, free_bytes, spawn
from gputui.runs.shim_locks import note_holder, take_locks
from gputui.runs.shim_processes import (
    Descendant,
    Family,
    OomWatch,
    Stat,
    all_pids,
    below,
    boot_id,
    catches,
    children_in,
    name_of,
    start_ticks_of,
    stat_of,
    wait_status_of,
)
from gputui.runs.shim_records import reserve_record, write_record
from gputui.runs.shim_signals import WATCHED, awaited_signal, signal_all, survive_signals

# All of the program: it imports nothing else of gputui.
SHIM_FILES = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in ("shim", "shim_agent", "shim_command", "shim_locks", "shim_processes", "shim_records", "shim_signals")
)

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# What the command left behind has the rest of its grace, and at least so long, to close its files.
STRAY_GRACE_SECONDS = 2.0
# Helpers of Python's multiprocessing end by themselves at once; what lives longer was left behind.
HELPER_SECONDS = 0.3
# A data loader or a shell ends within it, and the script keeps nearly all of its grace.
LAST_CALL_SECONDS = 2.0
# The driver may take as long to free the memory of a killed process.
UNKILLABLE_SECONDS = 30.0
KILL_AGAIN_SECONDS = 1.0  # for processes that began meanwhile
# How often the list of processes is updated, and the share of a core that this may cost.
TREE_SECONDS = 1.0
TREE_SHARE = 0.001
# Temporary errors: too many processes, no memory, no descriptor, or a program that is just being
# written.
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
PASSING_SECONDS = 60.0  # a burst of processes or of memory is over by then
PASSING_PAUSE_SECONDS = 1.0  # sixty tries cost a full machine nothing
T = TypeVar("T")


def main() -> int:
    os.umask(0o077)
    return Shim(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]).run()


class Shim:
    """One attempt from its start to exit.json.

    Attributes:
        locks: the descriptors of its GPUs' locks, which whoever started this process may hold already.
        plan: attempt.json.
        unwritten_start: the content of started.json until that is written; None before the start.
        asked_pids: the processes that this one has sent SIGTERM.
        left_behind: the names of processes that outlived a command that succeeded.
    """

    def __init__(self, directory: Path, locks: list[int] | None = None) -> None:
        self.directory = directory
        self.locks = locks or []
        for descriptor in self.locks:
            os.set_inheritable(descriptor, False)
        self.plan: dict[str, Any] = json.loads((directory / "attempt.json").read_text("utf-8"))
        self.command = CommandProcess()
        self.stop = Stop(float(self.plan["grace_seconds"]))
        self.processes = ProcessList(directory)
        self.oom = OomWatch()
        self.unwritten_start: dict[str, Any] | None = None
        self.asked_pids: set[int] = set()
        self.left_behind: list[str] = []

    def run(self) -> int:
        """Serve the attempt until exit.json is written; return this process's exit code."""
        started_at = time.time()
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # If it were ignored, as in some starters, no exit status could be collected.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        survive_signals()
        if not self.claim():
            return 0
        for name in ("exit.json", "started.json"):
            reserve_record(self.directory / name)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        conflict = self.lock_gpus()
        error = None
        if conflict is None:
            error = self.start()
        survivors: list[int] = []
        if self.command.has_started:
            survivors = self.supervise()
        record = self.outcome(survivors)
        record |= {"started_at": started_at, "error": error, "lease_conflict": None}
        if conflict is not None:
            record["lease_conflict"] = [conflict]
        self.note_start()
        self.remove_working_files(survivors)
        self.patiently(lambda: write_record(self.directory / "exit.json", record))
        for descriptor in self.locks:
            os.close(descriptor)
        # Who asked for a graceful stop knows of the end, and a machine that shuts down needs no
        # agent.
        if not self.stop.is_graceful:
            start_agent(self.plan.get("agent"))
        return 0

    def lock_gpus(self) -> str | None:
        """Lock the GPUs, unless whoever started this process has; return the lock file that another process holds."""
        conflict = None
        if not self.locks:
            is_shared = self.plan.get("gpu_share", 1.0) < 1
            descriptors, conflict, _ = take_locks(self.plan["lock_files"], shared=is_shared)
            self.locks = list(descriptors.values())
        for descriptor in self.locks:
            note_holder(descriptor, self.plan["run_id"], self.plan["workspace"])
        return conflict

    def remove_working_files(self, survivors: list[int]) -> None:
        """Remove the files that are of no use after the end."""
        names = ["started.json.tmp", "processes.json.tmp"]
        if survivors:
            # The list names those that could not be ended.
            self.list_processes()
        else:
            names.append("processes.json")
        for name in names:
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()

    def claim(self) -> bool:
        """Lock the attempt; return whether it is this shim's.

        The successor of an agent that was killed while starting one may have started another.
        """
        # Held, because never closed, until this process has ended.
        descriptor = os.open(self.directory / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return not (self.directory / "exit.json").exists()

    def outcome(self, survivors: list[int]) -> dict[str, Any]:
        """The command's outcome and resources, as in exit.json. ``survivors`` could not be
        killed."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "code": self.command.exit_code,
            "signal": self.command.signal_number,
            "ended_at": time.time(),
            "ran_seconds": self.command.ran_seconds,
            "stop_requested": self.stop.is_requested,
            "stop_signal": self.stop.signal_number,
            "forced": self.stop.is_forced,
            "survivors": survivors,
            "left_behind": self.left_behind,
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "disk_free_bytes": self.command.free_bytes,
            "killed_ranks": list(self.processes.killed_ranks.values()),
            "oom_kills": self.oom.record(),
        }

    def start(self) -> str | None:
        """Start the command. Return why that is not possible, or None."""

        def spawn_unless_stopped() -> subprocess.Popen[bytes]:
            if self.stop.is_requested:
                raise OSError(errno.ECANCELED, "stopped before the command could be started")
            return spawn(self.plan, self.directory)

        try:
            process = self.patiently(spawn_unless_stopped)
        except OSError as error:
            return f"{error.strerror or error}: {error.filename or self.plan['argv'][0]}"
        self.command.pid = process.pid
        self.command.started_clock = time.monotonic()
        # Only `reap` may collect exit statuses; a Popen without one would, when it is deleted.
        process.returncode = 0
        self.unwritten_start = {
            "shim_pid": os.getpid(),
            "shim_start_ticks": start_ticks_of(os.getpid()),
            "pid": process.pid,
            "start_ticks": start_ticks_of(process.pid),
            "boot_id": boot_id(),
            "at": time.time(),
        }
        self.note_start()
        return None

    def patiently(self, action: Callable[[], T]) -> T:
        """The result of ``action``, repeated for a minute while it fails with a temporary error.
        Raises OSError."""
        give_up_at = time.monotonic() + PASSING_SECONDS
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in PASSING or time.monotonic() >= give_up_at:
                    raise
            again_at = time.monotonic() + PASSING_PAUSE_SECONDS
            # A child that failed to start sends SIGCHLD, which must not shorten the pause.
            while (seconds := again_at - time.monotonic()) > 0:
                self.wait_for_signal(seconds)

    def note_start(self) -> None:
        """Write the record of the start; if the disk is full, the next look tries again."""
        if self.unwritten_start is not None:
            with contextlib.suppress(OSError):
                write_record(self.directory / "started.json", self.unwritten_start)
                self.unwritten_start = None

    def supervise(self) -> list[int]:
        """Wait for the command, then end everything it left behind. Return what could not be
        killed."""
        while True:
            wake_at = min(self.oom.look_at, self.processes.look_at, self.stop.next_step_at)
            self.wait_for_signal(wake_at - time.monotonic())
            self.reap()
            if self.command.has_ended:
                return self.sweep()
            now = time.monotonic()
            if now >= self.oom.look_at:
                self.oom.look(now)
            if now >= self.processes.look_at:
                self.list_processes()
            if now >= self.stop.last_call_at:
                self.stop.last_call_at = math.inf
                self.ask(set(self.descendants()))
            if now >= self.stop.kill_at:
                self.stop.is_forced = True
                self.stop.killed_at = min(self.stop.killed_at, now)
                living = set(self.descendants()) | {self.command.pid}
                if now - self.stop.killed_at > UNKILLABLE_SECONDS:
                    # Another user's (sudo), or stuck in the kernel.
                    return sorted(living)
                signal_all(living, signal.SIGKILL)
                self.stop.kill_at = now + KILL_AGAIN_SECONDS

    def list_processes(self) -> None:
        """Update processes.json, for an agent that comes when this shim is gone. The slower a look,
        the longer the time to the next one."""
        began = time.process_time()
        self.processes.look(self.command.pid)
        self.note_start()
        self.processes.look_at = time.monotonic() + max(TREE_SECONDS, (time.process_time() - began) / TREE_SHARE)

    def sweep(self) -> list[int]:
        """Ask the remaining processes to end, then kill them. Return what could not be killed.

        They are killed soon, but after a graceful stop only when the grace is over, because the script
        that saves may run behind a command that SIGTERM ends at once (a shell, a launcher). A single
        look misses a process whose parent ends meanwhile: nothing is left when this subreaper has no
        child.
        """
        stop = self.stop
        # A stop that begins during the sweep does not extend these times.
        times = SweepTimes.of(stop, time.monotonic())
        kill_at = times.kill_at
        is_graceful = stop.is_graceful
        has_succeeded = self.command.wait_status == 0 and not stop.is_requested
        while self.reap():
            descendants = self.descendants()
            living = set(descendants)
            now = time.monotonic()
            if stop.is_forced:
                kill_at = min(kill_at, now)
            if now > kill_at + UNKILLABLE_SECONDS:
                return sorted(living)
            if now >= kill_at:
                signal_all(living, signal.SIGKILL)
                stop.is_forced = stop.is_forced or (is_graceful and bool(living))
            elif not has_succeeded or now >= times.began + HELPER_SECONDS:
                if has_succeeded and not self.left_behind:
                    self.left_behind = sorted(filter(None, map(name_of, living)))
                if now >= times.last_call_at:
                    self.ask(living)
                else:
                    self.ask(self.first_of(descendants))
            self.asked_pids &= living
            if living:
                self.processes.expects_ends = True
            self.wait_for_signal(times.pause_seconds(now))
        return []

    def first_of(self, descendants: dict[int, Stat]) -> set[int]:
        """The processes to ask before the last call: those without a living parent, and of these first the ones that
        handle SIGTERM.

        A script that saves may need its data loaders, or the ``tee`` behind its pipe.
        """
        shim_pid = os.getpid()
        orphans = {pid for pid, process in descendants.items() if process.parent == shim_pid}
        heads = orphans - self.asked_pids
        savers = {pid for pid in heads if catches(pid, signal.SIGTERM)}
        if savers or self.asked_pids & descendants.keys():
            return savers
        return heads

    def ask(self, pids: set[int]) -> None:
        """Ask processes to end, each once: a script may take a second signal as an order to end
        without a save."""
        signal_all(pids - self.asked_pids, signal.SIGTERM)
        self.asked_pids |= pids

    def descendants(self) -> dict[int, Stat]:
        """Every living process of the run below this one."""
        processes = {pid: process for pid in all_pids() if (process := stat_of(pid)) is not None}
        shim_pid = os.getpid()
        alive = {
            pid: process
            for pid, process in processes.items()
            # A child of this process that looks dead and cannot be reaped has living threads.
            if not process.is_dead or process.parent == shim_pid
        }
        return {pid: alive[pid] for pid in below(shim_pid, children_in(alive))}

    def wait_for_signal(self, timeout: float) -> None:
        """Wait until a signal arrives or ``timeout`` seconds have passed, and note what it asks
        for."""
        number = awaited_signal(WATCHED, max(timeout, 0.0))
        if number is None or number == signal.SIGCHLD:
            return
        is_first = not self.stop.is_requested
        self.stop.note(number)
        self.processes.expects_ends = True
        # First only the command: torchrun passes it on to its ranks, which need their data
        # loaders to finish a step. All others are asked shortly before the grace ends, and by
        # the sweep.
        if is_first and self.stop.is_graceful and self.command.has_started and not self.command.has_ended:
            self.ask({self.command.pid})

    def reap(self) -> bool:
        """Collect every child that ended; return whether one is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.processes.note_end(pid, status)
            if pid == self.command.pid:
                self.command.wait_status = status
                self.command.free_bytes = free_bytes(self.directory)


class Stop:
    """A stop of the attempt, and how far it has come. Times are monotonic seconds, infinite where nothing is to happen.

    Attributes:
        is_requested: a signal has asked for it.
        is_graceful: the signal that asked first left the attempt its grace.
        is_forced: processes were killed, or are to be.
        signal_number: the first signal that asked for it.
        last_call_at: when all processes are to be sent SIGTERM that were not yet.
        kill_at: when what still lives is to be killed, for the first time or again.
        killed_at: when it first was.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self.is_requested = False
        self.is_graceful = False
        self.is_forced = False
        self.signal_number: int | None = None
        self.last_call_at = math.inf
        self.kill_at = math.inf
        self.killed_at = math.inf

    @property
    def next_step_at(self) -> float:
        """When `Shim.supervise` has something to do for it."""
        if self.last_call_at < math.inf:
            return self.last_call_at
        return self.kill_at

    def note(self, number: int) -> None:
        """Note a signal that asks for a stop. Only the first one begins the grace; SIGUSR2 ends it."""
        self.signal_number = self.signal_number or number
        if number == signal.SIGUSR2:
            self.is_requested = True
            self.is_forced = True
            self.last_call_at = math.inf
            self.kill_at = time.monotonic()
        elif not self.is_requested:
            self.is_requested = True
            self.is_graceful = True
            self.kill_at = time.monotonic() + self.grace_seconds
            self.last_call_at = self.kill_at - min(LAST_CALL_SECONDS, self.grace_seconds / 2)


class SweepTimes(NamedTuple):
    """When a sweep goes from one step to the next (monotonic seconds).

    Attributes:
        last_call_at: before that only the first processes are asked to end, then all.
        kill_at: when what still lives is killed.
    """

    began: float
    last_call_at: float
    kill_at: float

    @classmethod
    def of(cls, stop: Stop, now: float) -> SweepTimes:
        """The times of a sweep that begins now, which leaves a graceful stop its grace."""
        kill_at = now + STRAY_GRACE_SECONDS
        last_call_at = now
        if stop.is_graceful:
            kill_at = max(kill_at, stop.kill_at)
            if stop.last_call_at < math.inf:
                last_call_at = stop.last_call_at
        return cls(now, last_call_at, kill_at)

    def pause_seconds(self, now: float) -> float:
        """The time to the next look: short while processes are about to end."""
        if now < self.began + STRAY_GRACE_SECONDS or now >= self.last_call_at:
            return 0.05
        return 0.5


class ProcessList:
    """processes.json, and the ranks among these processes that a signal has ended.

    Attributes:
        look_at: when to look for processes again (monotonic).
        is_written: processes.json says what the last look has seen.
        watched_ranks: the PIDs of the ranks whose ends are waited for.
        killed_ranks: the ranks that a signal ended, by PID, in order.
        expects_ends: this process ends the others itself, or is to: how ranks end is no news any more.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.family = Family(str(directory))
        self.look_at = time.monotonic()
        self.is_written = True
        self.watched_ranks: set[int] = set()
        self.killed_ranks: dict[int, dict[str, int]] = {}
        self.expects_ends = False

    def look(self, command_pid: int) -> None:
        """Look for processes, and write those that changed."""
        if self.family.look(time.monotonic()):
            self.is_written = False
            self.watch_ranks(command_pid)
        if not self.is_written:
            self.is_written = self.write()

    def write(self) -> bool:
        """Return whether there was room for the list. It need not survive a power cut, so it is not
        synced."""
        temporary = self.directory / "processes.json.tmp"
        record = {"boot_id": boot_id(), "processes": [member.to_json() for member in self.family.members.values()]}
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(record, file)
            temporary.replace(self.directory / "processes.json")
        except OSError:
            return False
        return True

    def watch_ranks(self, command_pid: int) -> None:
        """Watch the ranks of a script that starts them itself, with a thread for each: how they end
        is told to the script alone, and the thread sees it first."""
        if self.family.first is None:
            return
        for pid, member in self.family.members.items():
            if pid in (command_pid, *self.watched_ranks) or self.family.leader(pid) is None:
                continue
            self.watched_ranks.add(pid)
            with contextlib.suppress(OSError, AttributeError):
                descriptor = os.pidfd_open(pid)
                threading.Thread(target=self.await_end, args=(descriptor, member), daemon=True).start()

    def await_end(self, descriptor: int, rank: Descendant) -> None:
        """Wait until a rank has ended, and read how before its parent has asked."""
        select.select([descriptor], [], [])
        wait_status = wait_status_of(rank.pid, rank.start_ticks)
        if wait_status is not None:
            self.note_end(rank.pid, wait_status)
        os.close(descriptor)

    def note_end(self, pid: int, wait_status: int) -> None:
        """Note a rank that a signal ended; its launcher may not report it."""
        rank = self.family.leader(pid)
        if rank is None or self.expects_ends or not os.WIFSIGNALED(wait_status):
            return
        number = os.WTERMSIG(wait_status)
        if number not in (signal.SIGTERM, signal.SIGINT):
            self.killed_ranks.setdefault(pid, {"rank": int(rank.rank or 0), "pid": pid, "signal": number})


if __name__ == "__main__":
    sys.exit(main())
