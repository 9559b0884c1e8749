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

`python -I -S` finds no package: the shim adds the folder of its own, with nothing but `shim_processes` to import from
it. All is imported at the start, so that an upgrade leaves a living shim alone.
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
import stat
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

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STRAY_GRACE_SECONDS = 2.0
# Helpers of Python's multiprocessing end by themselves at once; what lives longer was left behind.
HELPER_SECONDS = 0.3
LAST_CALL_SECONDS = 2.0
UNKILLABLE_SECONDS = 30.0
RECORD_BYTES = 4096
# Whoever only tests a lock holds it for an instant.
LOCK_SECONDS = 0.04
# How often the list of processes is updated, and the share of a core that this may cost.
TREE_SECONDS = 1.0
TREE_SHARE = 0.001
# Temporary errors: too many processes, no memory, no descriptor, or a program that is just being
# written.
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
PASSING_SECONDS = 60.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
WATCHED = (*STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD)
# Faults of the shim itself, job control, and signals without an effect by default.
LEFT_ALONE = (
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    *(signal.SIGURG, signal.SIGWINCH),
)
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
        conflicts = []
        if not self.locks:
            gpu_locks = take_locks(self.plan["lock_files"], shared=self.plan.get("gpu_share", 1.0) < 1)
            self.locks = list(gpu_locks.descriptors.values())
            if gpu_locks.conflict is not None:
                conflicts.append(gpu_locks.conflict)
        for descriptor in self.locks:
            note_holder(descriptor, self.plan.get("run_id"), self.plan["workspace"])
        error = None
        if not conflicts:
            error = self.start()
        survivors: list[int] = []
        if self.command.has_started:
            survivors = self.supervise()
        record = self.outcome(survivors)
        record |= {"started_at": started_at, "error": error, "lease_conflict": conflicts or None}
        self.note_start()
        obsolete_files = ["started.json.tmp", "processes.json.tmp"]
        if survivors:
            # The list names those that could not be ended.
            self.list_processes()
        else:
            obsolete_files.append("processes.json")
        for name in obsolete_files:
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()
        self.patiently(lambda: write_record(self.directory / "exit.json", record))
        for descriptor in self.locks:
            os.close(descriptor)
        # Who asked for a graceful stop knows of the end, and a machine that shuts down needs no
        # agent.
        if not self.stop.is_graceful:
            start_agent(self.plan.get("agent"))
        return 0

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
        shell = self.plan.get("shell") or {}
        environment = {**(shell.get("environment") or os.environ), **self.plan["env"]}
        limits = limits_to_set(shell.get("limits") or {})

        def prepare() -> None:
            restore_signals()
            apply_shell(limits, shell.get("nice"), shell.get("affinity"), shell.get("umask"))

        def spawn() -> subprocess.Popen[bytes]:
            if self.stop.is_requested:
                raise OSError(errno.ECANCELED, "stopped before the command could be started")
            with (self.directory / self.plan.get("output", "output.log")).open("ab", buffering=0) as output:
                return subprocess.Popen(
                    self.plan["argv"],
                    cwd=self.plan["cwd"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    # The shim still has a single thread, so code between fork and exec is safe.
                    preexec_fn=prepare,
                )

        try:
            process = self.patiently(spawn)
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
            again_at = time.monotonic() + 1.0
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
                self.stop.kill_at = now + 1.0

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
        began = time.monotonic()
        stop = self.stop
        # A stop that begins during the sweep does not extend these times.
        is_graceful = stop.is_graceful
        kill_at = began + STRAY_GRACE_SECONDS
        last_call_at = began
        if is_graceful:
            kill_at = max(kill_at, stop.kill_at)
            if stop.last_call_at < math.inf:
                last_call_at = stop.last_call_at
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
            elif not has_succeeded or now >= began + HELPER_SECONDS:
                if has_succeeded and not self.left_behind:
                    self.left_behind = sorted(filter(None, map(name_of, living)))
                if now >= last_call_at:
                    self.ask(living)
                else:
                    self.ask(self.first_of(descendants))
            self.asked_pids &= living
            if living:
                self.processes.expects_ends = True
            pause_seconds = 0.5
            if now < began + STRAY_GRACE_SECONDS or now >= last_call_at:
                pause_seconds = 0.05
            self.wait_for_signal(pause_seconds)
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


class CommandProcess:
    """The process of the attempt's command.

    Attributes:
        pid: 0 before the start.
        started_clock: when it was started (monotonic seconds), None before.
        wait_status: how it ended, as `os.waitpid` says it; None until then.
        free_bytes: free space when it ended: on a full disk it could not write why it failed.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.started_clock: float | None = None
        self.wait_status: int | None = None
        self.free_bytes: int | None = None

    @property
    def has_started(self) -> bool:
        return self.pid != 0

    @property
    def has_ended(self) -> bool:
        return self.wait_status is not None

    @property
    def exit_code(self) -> int | None:
        """None before its end, and if a signal ended it."""
        if self.wait_status is None or os.WIFSIGNALED(self.wait_status):
            return None
        return os.waitstatus_to_exitcode(self.wait_status)

    @property
    def signal_number(self) -> int | None:
        """The signal that ended it; None if none has."""
        if self.wait_status is None or not os.WIFSIGNALED(self.wait_status):
            return None
        return os.WTERMSIG(self.wait_status)

    @property
    def ran_seconds(self) -> float | None:
        """The time since its start; a clock that was set meanwhile would make the difference of two dates false."""
        if self.started_clock is None:
            return None
        return time.monotonic() - self.started_clock


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


def awaited_signal(numbers: tuple[int, ...], timeout: float) -> int | None:
    """One of the blocked signals ``numbers`` that arrives within ``timeout`` seconds."""
    info = signal.sigtimedwait(numbers, timeout)
    # If the process was stopped (SIGSTOP) beyond the timeout, Python returns uninitialized memory.
    if info is not None and info.si_signo in numbers:
        return info.si_signo
    return None


def signal_all(pids: set[int], number: int) -> None:
    """Signal descendants. A stopped one handles signals only when continued."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)


def free_bytes(directory: Path) -> int | None:
    """The free space of a folder's disk, or None if unknown."""
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
    return None


# --- the locks of GPUs -------------------------------------------------------------------------


class TakenLocks(NamedTuple):
    """The outcome of `take_locks`.

    Attributes:
        descriptors: those of the locked files, by path.
        conflict: the path that another process holds.
        unusable: why others cannot be locked, by path.
    """

    descriptors: dict[str, int]
    conflict: str | None
    unusable: dict[str, str]


def take_locks(paths: list[str], *, shared: bool = False) -> TakenLocks:
    """Lock files, all or none, in sorted order: alone, or ``shared``.

    A file that cannot be opened or locked is left out: it must not block a GPU.
    """
    descriptors: dict[str, int] = {}
    unusable: dict[str, str] = {}
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + LOCK_SECONDS
    for name in sorted(paths):
        while True:
            descriptor = -1
            try:
                descriptor = open_lock(name)
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
                descriptors[name] = descriptor
                break
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() >= deadline:
                    for lock in descriptors.values():
                        os.close(lock)
                    return TakenLocks({}, name, unusable)
                time.sleep(0.01)
            except OSError as error:
                if descriptor >= 0:
                    os.close(descriptor)
                unusable[name] = error.strerror or str(error)
                break
    return TakenLocks(descriptors, conflict=None, unusable=unusable)


def note_holder(descriptor: int, run_id: str | None, workspace: str) -> None:
    """Write into a held lock file who holds it, for other homes and users; ``workspace`` is the label of its home.

    Without permission to write it stays unknown: the lock holds all the same.
    """
    # From the environment, because a directory of users in the network may not answer.
    user = os.environ.get("LOGNAME") or os.environ.get("USER") or f"uid {os.getuid()}"
    record = {
        "pid": os.getpid(),
        "start_ticks": start_ticks_of(os.getpid()),
        "boot_id": boot_id(),
        "uid": os.getuid(),
        "user": user,
        "run_id": run_id,
        "workspace": workspace,
    }
    note = json.dumps(record).encode()
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, note, 0)
        os.ftruncate(descriptor, len(note))


def open_lock(name: str, *, create: bool = True) -> int:
    """Open a lock file. Raises OSError if it cannot be opened or is no plain file of one name.

    Its folder may be writable for everybody: no link is followed, and no FIFO is waited for. A file that this user may
    not write is only read, which is enough for a lock.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(name, flags)
            break
        except PermissionError:
            descriptor = os.open(name, flags & ~os.O_ACCMODE | os.O_RDONLY)
            break
        except FileNotFoundError:
            if not create:
                raise
        # O_CREAT alone would be refused for another user's file in a sticky folder
        # (fs.protected_regular).
        with contextlib.suppress(FileExistsError):
            mode = 0o666 if Path(name).parent.stat().st_mode & stat.S_IWOTH else 0o600
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode)
            os.fchmod(descriptor, mode)
            break
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", name)
    return descriptor


# --- the settings of the launching shell -------------------------------------------------------


def limits_to_set(limits: dict[str, list[int]]) -> list[tuple[int, tuple[int, int]]]:
    """Resource limits as far as this process may set them."""
    settable = []
    for name, (soft, hard) in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is None:
            continue
        most = resource.getrlimit(number)[1]
        if os.geteuid() != 0 and most != resource.RLIM_INFINITY:
            hard = most if hard == resource.RLIM_INFINITY else min(hard, most)
            soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
        settable.append((number, (soft, hard)))
    return settable


def apply_shell(
    limits: list[tuple[int, tuple[int, int]]], nice: int | None, affinity: list[int] | None, umask: int | None
) -> None:
    """Set what the launching shell had; runs between fork and exec. What the kernel refuses stays
    as it is."""
    if umask is not None:
        os.umask(umask)
    with contextlib.suppress(OSError):
        if nice is not None:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    with contextlib.suppress(OSError):
        if affinity:
            os.sched_setaffinity(0, affinity)
    for number, pair in limits:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, pair)


def survive_signals() -> None:
    """Make this process outlive all other signals, because an attempt whose shim is killed loses its exit.

    They are caught, not ignored: the command would inherit ignored ones.
    """
    for number in signal.valid_signals() - {*WATCHED, *LEFT_ALONE}:
        if signal.getsignal(number) is signal.SIG_DFL:
            with contextlib.suppress(OSError):
                signal.signal(number, lambda *_: None)


def restore_signals() -> None:
    """Give the command the usual signal settings; runs between fork and exec."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# --- an agent, if none is alive ----------------------------------------------------------------


def start_agent(agent: dict[str, Any] | None) -> None:
    """Start an agent if none lives and no person ended it on purpose; ``agent`` is that entry of attempt.json.

    One that was killed together with its sampler has no other successor.
    """
    if agent is None or Path(agent["stopped"]).exists() or is_agent_alive(Path(agent["lock"])):
        return
    environment = {name: value for name, value in os.environ.items() if name not in agent["unset"]}
    try:
        with open(agent["log"], "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
            process = subprocess.Popen(
                agent["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
                cwd="/",
                preexec_fn=restore_signals,
            )
    except OSError as error:
        print(f"no agent could be started: {error}", file=sys.stderr)  # noqa: T201 - for shim.log
        return
    # It outlives this process, which does not wait for it.
    process.returncode = 0


def is_agent_alive(lock: Path) -> bool:
    """Return whether the process in an agent's lock file is alive.

    The lock is not tried, because an agent that just starts would find it taken.
    """
    try:
        holder = json.loads(lock.read_text("utf-8"))
        process = stat_of(int(holder["pid"]))
        if process is None or process.is_dead:
            return False
        return bool(process.start_ticks == holder["start_ticks"] and boot_id() == holder["boot_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


# --- records -----------------------------------------------------------------------------------


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write JSON so that it is complete or missing, also after a power cut. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    # Not truncated first, which would lose the reserved space.
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


def read_record(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(value, dict):
        return value
    return None


def reserve_record(path: Path) -> None:
    """Reserve space for a record: the command may fill the disk, and its end must still be
    recorded."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path.with_name(path.name + ".tmp"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RECORD_BYTES)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
