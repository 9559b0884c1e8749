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
    DEAD,
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
    stat_fields,
    stat_of,
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
# An OOM kill explains an end that follows within one or two of these looks, not hours later.
OOM_LOOK_SECONDS = 60.0
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
    """One attempt from its start to exit.json. Times are monotonic seconds.

    Attributes:
        locks: descriptors of GPU locks that whoever started this process holds already.
        child, status: the command's PID, 0 before its start, and its wait status, None until its end.
        free_bytes: free space when the command ended: on a full disk it could not write why it failed.
        started: the record of the start, until it is written.
        started_clock: when the command was started.
        stop_requested, asked_politely: a stop was asked for; with grace.
        forced: processes were killed, or are to be.
        stop_signal: the signal that asked for it.
        asked: the processes that this one has sent SIGTERM.
        last_call_at: when all others are to be asked, in a stop; None once they were.
        kill_at, killed_at: when what still lives is to be killed, and when it first was.
        look_at, tree_at: when to look for OOM kills, and for processes, again.
        is_listed: processes.json is as it should be.
        killed_ranks: the ranks that a signal ended before this process sent any, by PID, in order.
        watched_ranks: the PIDs of the ranks whose ends are waited for.
        sends_signals: this process has begun to end others.
        left_behind: the names of processes that outlived a command that succeeded.
    """

    def __init__(self, directory: Path, locks: list[int] | None = None) -> None:
        self.directory = directory
        self.locks = locks or []
        for descriptor in self.locks:
            os.set_inheritable(descriptor, False)
        self.plan: dict[str, Any] = json.loads((directory / "attempt.json").read_text("utf-8"))
        self.grace = float(self.plan["grace_seconds"])
        self.child = 0
        self.status: int | None = None
        self.free_bytes: int | None = None
        self.started: dict[str, Any] | None = None
        self.stop_requested = False
        self.asked_politely = False
        self.forced = False
        self.stop_signal: int | None = None
        self.asked: set[int] = set()
        self.last_call_at: float | None = None
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        self.oom = OomWatch()
        self.look_at = time.monotonic() + OOM_LOOK_SECONDS
        self.family = Family(str(directory))
        self.tree_at = time.monotonic()
        self.started_clock: float | None = None
        self.is_listed = True
        self.killed_ranks: dict[int, dict[str, int]] = {}
        self.watched_ranks: set[int] = set()
        self.sends_signals = False
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
        locks = self.locks
        conflict = None
        if not locks:
            gpu_locks = take_locks(self.plan["lock_files"], shared=self.plan.get("gpu_share", 1.0) < 1)
            locks = list(gpu_locks.descriptors.values())
            conflict = gpu_locks.conflict
        for descriptor in locks:
            note_holder(descriptor, self.plan.get("run_id"), self.plan["workspace"])
        error = self.start() if conflict is None else None
        survivors = self.supervise() if self.child else []
        record = self.outcome(survivors)
        record |= {"started_at": started_at, "error": error, "lease_conflict": None if conflict is None else [conflict]}
        self.note_start()
        if survivors:
            # The list names those that could not be ended.
            self.list_processes()
        for name in ("started.json.tmp", "processes.json.tmp", *(() if survivors else ("processes.json",))):
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()
        self.patiently(lambda: write_record(self.directory / "exit.json", record))
        for descriptor in locks:
            os.close(descriptor)
        # Who asked for a graceful stop knows of the end, and a machine that shuts down needs no
        # agent.
        if not self.asked_politely:
            start_agent(self.plan.get("agent"))
        return 0

    def claim(self) -> bool:
        """Lock the attempt; return whether it is this shim's.

        The successor of an agent that was killed while starting one may have started another.
        """
        self.claimed = os.open(self.directory / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return not (self.directory / "exit.json").exists()

    def outcome(self, survivors: list[int]) -> dict[str, Any]:
        """The command's outcome and resources, as in exit.json. ``survivors`` could not be
        killed."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = None
        if self.status is not None:
            code = os.waitstatus_to_exitcode(self.status)
        return {
            "code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "ended_at": time.time(),
            # A clock that was set meanwhile makes the difference of the two times false.
            "ran_seconds": None if self.started_clock is None else time.monotonic() - self.started_clock,
            "stop_requested": self.stop_requested,
            "stop_signal": self.stop_signal,
            "forced": self.forced,
            "survivors": survivors,
            "left_behind": self.left_behind,
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "disk_free_bytes": self.free_bytes,
            "killed_ranks": list(self.killed_ranks.values()),
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
            if self.stop_requested:
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
        self.child = process.pid
        self.started_clock = time.monotonic()
        # Only `reap` may collect exit statuses; a Popen without one would, when it is deleted.
        process.returncode = 0
        shim = stat_of(os.getpid())
        child = stat_of(self.child)
        self.started = {
            "shim_pid": os.getpid(),
            "shim_start_ticks": shim[2] if shim else None,
            "pid": self.child,
            "start_ticks": child[2] if child else None,
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
        if self.started is not None:
            with contextlib.suppress(OSError):
                write_record(self.directory / "started.json", self.started)
                self.started = None

    def supervise(self) -> list[int]:
        """Wait for the command, then end everything it left behind. Return what could not be
        killed."""
        while True:
            if self.last_call_at is None:
                deadline = self.kill_at
            else:
                deadline = self.last_call_at
            wake_at = min(self.look_at, self.tree_at)
            if deadline is not None:
                wake_at = min(wake_at, deadline)
            self.wait_for_signal(wake_at - time.monotonic())
            self.reap()
            if self.status is not None:
                return self.sweep()
            now = time.monotonic()
            if now >= self.look_at:
                self.look_at = now + OOM_LOOK_SECONDS
                self.oom.look()
            if now >= self.tree_at:
                self.list_processes()
            if self.last_call_at is not None and now >= self.last_call_at:
                self.last_call_at = None
                self.ask(set(self.descendants()))
            if self.kill_at is not None and now >= self.kill_at:
                self.forced = True
                self.killed_at = self.killed_at or now
                living = set(self.descendants()) | {self.child}
                if now - self.killed_at > UNKILLABLE_SECONDS:
                    # Another user's (sudo), or stuck in the kernel.
                    return sorted(living)
                signal_all(living, signal.SIGKILL)
                self.kill_at = now + 1.0

    def list_processes(self) -> None:
        """Update processes.json, for an agent that comes when this shim is gone. The slower a look,
        the longer the time to the next one."""
        began = time.process_time()
        if self.family.look(time.monotonic()):
            self.is_listed = False
            self.watch_ranks()
        if not self.is_listed:
            self.is_listed = self.write_list()
        self.note_start()
        self.tree_at = time.monotonic() + max(TREE_SECONDS, (time.process_time() - began) / TREE_SHARE)

    def write_list(self) -> bool:
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

    def watch_ranks(self) -> None:
        """Watch the ranks of a script that starts them itself, with a thread for each: how they end
        is told to the script alone, and the thread sees it first."""
        for pid, member in self.family.members.items() if self.family.first is not None else ():
            if pid in (self.child, *self.watched_ranks) or self.family.leader(pid) is None:
                continue
            self.watched_ranks.add(pid)
            with contextlib.suppress(OSError, AttributeError):
                descriptor = os.pidfd_open(pid)
                threading.Thread(target=self.await_end, args=(descriptor, member), daemon=True).start()

    def await_end(self, descriptor: int, rank: Descendant) -> None:
        """Wait until a rank has ended, and read how before its parent has asked."""
        select.select([descriptor], [], [])
        fields = stat_fields(rank.pid)
        if fields is not None and fields[0] in DEAD and int(fields[19]) == rank.start_ticks:
            self.note_end(rank.pid, int(fields[49]))
        os.close(descriptor)

    def note_end(self, pid: int, status: int) -> None:
        """Note a rank that a signal ended; its launcher may not report it."""
        rank = self.family.leader(pid)
        if rank is None or self.stop_requested or self.sends_signals or not os.WIFSIGNALED(status):
            return
        number = os.WTERMSIG(status)
        if number not in (signal.SIGTERM, signal.SIGINT):
            self.killed_ranks.setdefault(pid, {"rank": int(rank.rank or 0), "pid": pid, "signal": number})

    def sweep(self) -> list[int]:
        """Ask the remaining processes to end, then kill them. Return what could not be killed.

        They are killed soon, but after a graceful stop only when the grace is over, because the script
        that saves may run behind a command that SIGTERM ends at once (a shell, a launcher). A single
        look misses a process whose parent ends meanwhile: nothing is left when this subreaper has no
        child.
        """
        began = time.monotonic()
        is_polite = self.asked_politely
        kill_at = began + STRAY_GRACE_SECONDS
        last_call_at = began
        if is_polite and self.kill_at is not None:
            kill_at = max(kill_at, self.kill_at)
            last_call_at = self.last_call_at or began
        has_succeeded = self.status == 0 and not self.stop_requested
        while self.reap():
            descendants = self.descendants()
            living = set(descendants)
            now = time.monotonic()
            if self.forced:
                kill_at = min(kill_at, now)
            if now > kill_at + UNKILLABLE_SECONDS:
                return sorted(living)
            if now >= kill_at:
                signal_all(living, signal.SIGKILL)
                self.forced = self.forced or (is_polite and bool(living))
            elif not has_succeeded or now >= began + HELPER_SECONDS:
                if has_succeeded and not self.left_behind:
                    self.left_behind = sorted(filter(None, map(name_of, living)))
                if now >= last_call_at:
                    self.ask(living)
                else:
                    self.ask(self.first_of(descendants))
            self.asked &= living
            self.sends_signals = self.sends_signals or bool(living)
            is_quick = now < began + STRAY_GRACE_SECONDS or now >= last_call_at
            pause_seconds = 0.05 if is_quick else 0.5
            self.wait_for_signal(pause_seconds)
        return []

    def first_of(self, descendants: dict[int, Stat]) -> set[int]:
        """The processes to ask before the last call: those without a living parent, and of these first the ones that
        handle SIGTERM.

        A script that saves may need its data loaders, or the ``tee`` behind its pipe.
        """
        heads = {pid for pid, stat in descendants.items() if pid not in self.asked and stat[0] == os.getpid()}
        savers = {pid for pid in heads if catches(pid, signal.SIGTERM)}
        if savers or self.asked & descendants.keys():
            return savers
        return heads

    def ask(self, pids: set[int]) -> None:
        """Ask processes to end, each once: a script may take a second signal as an order to end
        without a save."""
        signal_all(pids - self.asked, signal.SIGTERM)
        self.asked |= pids

    def descendants(self) -> dict[int, Stat]:
        """Every living process of the run below this one."""
        stats = {pid: stat for pid in all_pids() if (stat := stat_of(pid)) is not None}
        shim_pid = os.getpid()
        # A child of this process that looks dead and cannot be reaped has living threads.
        alive = {pid: stat for pid, stat in stats.items() if stat[1] not in DEAD or stat[0] == shim_pid}
        return {pid: alive[pid] for pid in below(shim_pid, children_in(alive))}

    def wait_for_signal(self, timeout: float) -> None:
        """Wait until a signal arrives or ``timeout`` seconds have passed, and note what it asks
        for."""
        number = awaited_signal(WATCHED, max(timeout, 0.0))
        if number is None or number == signal.SIGCHLD:
            return
        self.stop_signal = self.stop_signal or number
        if number == signal.SIGUSR2:
            self.stop_requested = True
            self.forced = True
            self.last_call_at = None
            self.kill_at = time.monotonic()
        elif not self.stop_requested:
            self.stop_requested = True
            self.asked_politely = True
            self.kill_at = time.monotonic() + self.grace
            self.last_call_at = self.kill_at - min(LAST_CALL_SECONDS, self.grace / 2)
            # First only the command: torchrun passes it on to its ranks, which need their data
            # loaders to finish a step. All others are asked shortly before the grace ends, and by
            # the sweep.
            if self.status is None and self.child:
                self.ask({self.child})

    def reap(self) -> bool:
        """Collect every child that ended; return whether one is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.note_end(pid, status)
            if pid == self.child:
                self.status = status
                self.free_bytes = free_bytes(self.directory)


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
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    deadline = time.monotonic() + LOCK_SECONDS
    for name in sorted(paths):
        while True:
            descriptor = -1
            try:
                descriptor = open_lock(name)
                fcntl.flock(descriptor, how)
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
    return TakenLocks(descriptors, None, unusable)


def note_holder(descriptor: int, run_id: str | None, workspace: str) -> None:
    """Write into a held lock file who holds it, for other homes and users; ``workspace`` is the label of its home.

    Without permission to write it stays unknown: the lock holds all the same.
    """
    shim = stat_of(os.getpid())
    # From the environment, because a directory of users in the network may not answer.
    user = os.environ.get("LOGNAME") or os.environ.get("USER") or f"uid {os.getuid()}"
    record = {
        "pid": os.getpid(),
        "start_ticks": shim[2] if shim else None,
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
        stat = stat_of(int(holder["pid"]))
        return stat is not None and (stat[1] not in DEAD, stat[2], boot_id()) == (
            True, holder["start_ticks"], holder["boot_id"]
        )  # fmt: skip
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
