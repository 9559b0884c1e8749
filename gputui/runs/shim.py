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

It is one file on purpose: runners copy it to machines without gputui, `python -I -S` imports
nothing from its folder, and an upgrade replaces it in one step.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
YOUNG_SECONDS = 10.0
# Temporary errors: too many processes, no memory, no descriptor, or a program that is just being
# written.
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
PASSING_SECONDS = 60.0
DEAD = ("Z", "X", "x")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
WATCHED = (*STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD)
# Faults of the shim itself, job control, and signals without an effect by default.
LEFT_ALONE = (
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    *(signal.SIGURG, signal.SIGWINCH),
)
Stat = tuple[int, str, int]
"""Parent, state letter and start ticks of a process."""
T = TypeVar("T")


def main() -> int:
    os.umask(0o077)
    return Shim(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]).run()


class Shim:
    """One attempt from its start to exit.json."""

    def __init__(self, directory: Path, locks: list[int] | None = None) -> None:
        self.directory = directory
        self.locks = locks or []
        for descriptor in self.locks:
            os.set_inheritable(descriptor, False)
        self.plan: dict[str, Any] = json.loads((directory / "attempt.json").read_text("utf-8"))
        self.grace = float(self.plan["grace_seconds"])
        self.child = 0
        self.status: int | None = None
        # Free space when the command ended: on a full disk it could not write why it failed.
        self.free_bytes: int | None = None
        # The record of the start, until it is written.
        self.started: dict[str, Any] | None = None
        self.stop_requested = self.asked_politely = self.forced = False
        self.stop_signal: int | None = None
        # The processes that this one has sent SIGTERM.
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
        # Ranks that a signal ended before this process sent any, in order.
        self.killed_ranks: dict[int, dict[str, int]] = {}
        self.watched_ranks: set[int] = set()
        self.sends_signals = False
        # The names of processes that outlived a command that succeeded.
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
        """Return whether this attempt is this shim's: the successor of an agent that was killed
        while starting one may have started another."""
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
        """Ask the remaining processes to end, then kill them: soon, but after a graceful stop only
        when the grace is over, because the script that saves may run behind a command that SIGTERM
        ends at once (a shell, a launcher). Return what could not be killed.

        A single look misses a process whose parent ends meanwhile: nothing is left when this
        subreaper has no child."""
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
        """Whom to ask before the last call: a script that saves may need its data loaders, or the
        ``tee`` behind its pipe. So only those without a living parent, and of these first the ones
        that handle SIGTERM."""
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
            self.stop_requested = self.forced = True
            self.last_call_at = None
            self.kill_at = time.monotonic()
        elif not self.stop_requested:
            self.stop_requested = self.asked_politely = True
            self.kill_at = time.monotonic() + self.grace
            self.last_call_at = self.kill_at - min(LAST_CALL_SECONDS, self.grace / 2)
            # First only the command: torchrun passes it on to its ranks, which need their data
            # loaders to finish a step. All others are asked shortly before the grace ends, and by
            # the sweep.
            if self.status is None and self.child:
                self.ask({self.child})

    def reap(self) -> bool:
        """Collect every child that ended. Whether one is left."""
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


# --- the processes of the run ------------------------------------------------------------------


def children_in(stats: dict[int, Stat]) -> dict[int, list[int]]:
    """PIDs by the PID of their parent."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    return children


def below(root: int, children: dict[int, list[int]]) -> set[int]:
    """Everything below ``root`` in a process tree."""
    pids: set[int] = set()
    waiting = [root]
    while waiting:
        more = [pid for pid in children.get(waiting.pop(), ()) if pid not in pids]
        pids.update(more)
        waiting += more
    return pids


class Descendant:
    """A process of the run. ``rank``, and ``size``, the number of ranks on this machine, are None
    if unknown."""

    def __init__(self, pid: int, parent: int, start_ticks: int, read_until: float) -> None:
        self.pid = pid
        self.parent = parent
        self.start_ticks = start_ticks
        self.rank: int | None = None
        self.size: int | None = None
        self.has_own_rank = False
        # Until it calls exec, a fork has its parent's environment, so it is read repeatedly.
        self.young_until = read_until

    def to_json(self) -> dict[str, int | None]:
        return {"pid": self.pid, "start_ticks": self.start_ticks, "rank": self.rank, "local_world_size": self.size}


class Family:
    """The processes of the run below this one, with what their environments said when they were
    young.

    A look is cheap: nothing happens while the kernel has given out no new PID, and of all other
    processes only new ones are read. ``others`` are the processes that are not of the run.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.members: dict[int, Descendant] = {}
        self.others: set[int] = set()
        self.newest: int | None = None
        self.first: Descendant | None = None

    def look(self, now: float) -> bool:
        """Update the members; whether they changed. ``now`` is monotonic."""
        before = [member.to_json() for member in self.members.values()]
        newest = newest_pid()
        if newest is None or newest != self.newest:
            if newest is None or self.newest is None or newest < self.newest:
                # PIDs have wrapped around: any number may be another process now.
                self.others.clear()
            self.newest = newest
            self.admit(now)
        for member in self.members.values():
            if now < member.young_until:
                self.read(member)
        self.find_first_rank()
        return before != [member.to_json() for member in self.members.values()]

    def admit(self, now: float) -> None:
        """Find new members, and forget what is gone."""
        pids = set(all_pids())
        shim_pid = os.getpid()
        self.others &= pids
        candidates = ((pid, stat_of(pid)) for pid in pids - self.others)
        stats = {pid: stat for pid, stat in candidates if stat is not None and stat[1] not in DEAD}
        former = self.members
        self.members = {}
        ours = below(shim_pid, children_in(stats))
        for pid in sorted(ours, key=lambda pid: (stats[pid][2], pid)):
            parent, _, start_ticks = stats[pid]
            member = former.get(pid)
            if member is None or member.start_ticks != start_ticks:
                member = Descendant(pid, parent, start_ticks, now + YOUNG_SECONDS)
            self.members[pid] = member
        # A process whose parent has just gone may be below this one at the next look.
        elsewhere = stats.keys() - ours - {shim_pid}
        self.others |= {pid for pid in elsewhere if not stats[pid][0] or stats[pid][0] in stats.keys() | self.others}

    def leader(self, pid: int) -> Descendant | None:
        """The member with this PID if it is a rank itself, not a helper of one."""
        member = self.members.get(pid)
        if member is None or member.rank is None:
            return None
        parent = self.members.get(member.parent)
        if parent is None or parent.rank != member.rank:
            return member
        return None

    def find_first_rank(self) -> None:
        """Find the rank 0 that sets its own environment, invisibly: a script that starts the other
        ranks itself, the parent of ranks from 1 on."""
        ranked = [member for member in self.members.values() if member.has_own_rank and member.rank is not None]
        if any(member.rank == 0 for member in ranked):
            if self.first is not None:
                # It is a launcher, which had begun another rank before the first.
                self.first.rank = None
                self.first = None
            return
        parent = self.members.get(min(ranked, key=lambda member: member.rank or 0).parent) if ranked else None
        if parent is not None and parent.rank is None:
            parent.rank = 0
            parent.size = ranked[0].size
            self.first = parent

    def read(self, member: Descendant) -> None:
        """Read a member's rank from its environment, its output, or its parent."""
        environment = environment_of(member.pid)
        parent = self.members.get(member.parent)
        own_rank, size = place_in(environment)
        member.has_own_rank = member.has_own_rank or own_rank is not None
        rank = rank_by_output(member.pid, self.folder) if own_rank is None else own_rank
        if parent is not None:
            rank = parent.rank if rank is None and member.rank is None else rank
            size = parent.size if size is None and member.size is None else size
        member.rank = member.rank if rank is None else rank
        member.size = member.size if size is None else size


def place_in(environment: Mapping[bytes, bytes]) -> tuple[int | None, int | None]:
    """The rank in an environment, and the number of ranks on this machine. Launchers of one
    machine, such as Lightning's, set the local rank alone."""
    values = {name: int(value) for name, value in environment.items() if value.isdigit()}
    rank = values.get(b"RANK")
    size = values.get(b"LOCAL_WORLD_SIZE")
    if b"RANK" not in environment and b"LOCAL_RANK" in environment:
        size = values.get(b"WORLD_SIZE") if size is None else size
        if not values.get(b"NODE_RANK") and not values.get(b"GROUP_RANK"):
            rank = values.get(b"LOCAL_RANK")
    return rank, size


def rank_by_output(pid: int, folder: str) -> int | None:
    """The rank to whose log below ``folder`` a process writes. torchrun keeps one log per local
    rank, which is the rank on one node; a program cannot lose this by setting its title."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/1")  # noqa: PTH115 - for every process, every second
    except OSError:
        return None
    # …/attempts/N/ranks/ID/attempt_0/RANK/stdout.log
    parts = path.split("/")
    is_log = path.startswith(folder + "/") and parts[-1] == "stdout.log" and parts[-5:-4] == ["ranks"]
    if is_log and parts[-2].isdigit():
        return int(parts[-2])
    return None


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


# --- procfs ------------------------------------------------------------------------------------


def all_pids() -> list[int]:
    """Every PID in procfs; none if it cannot be read for the moment."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def newest_pid() -> int | None:
    """The number that the kernel gave last, to a process or a thread; None if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text("ascii").split()[4]) or None
    return None


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (field 3); None without such a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text[text.rfind(")") + 2 :].split()


def stat_of(pid: int) -> Stat | None:
    """Parent, state and start of a process, or None if there is none."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    return (int(fields[1]), fields[0], int(fields[19]))


def name_of(pid: int) -> str:
    """The name of a process's program as the kernel has it; "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    return ""


def catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal; False if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def environment_of(pid: int) -> dict[bytes, bytes]:
    """The environment that a process was started with; empty if it cannot be read or was
    overwritten."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return {name: value for name, is_pair, value in (item.partition(b"=") for item in raw.split(b"\0")) if is_pair}


def boot_id() -> str:
    """``BOOT/NAMESPACE``: the kernel's random name of this boot, and the PID namespace. PIDs are
    meaningful within both
    alone: a container and its host see different ones."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def free_bytes(directory: Path) -> int | None:
    """The free space of a folder's disk, or None if unknown."""
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
    return None


# --- OOM kills ---------------------------------------------------------------------------------


class OomWatch:
    """The kernel's counts of OOM kills, of the shim's control group and of the host, as they grew
    within the last one or two looks."""

    def __init__(self) -> None:
        self.counts = [oom_kills(), oom_kills()]

    def look(self) -> None:
        """Begin a new look."""
        self.counts = [self.counts[1], oom_kills()]

    def record(self) -> dict[str, int | None]:
        """The new kills by counter; None for one that is unknown."""
        kills: dict[str, int | None] = {}
        for name, after in oom_kills().items():
            before = self.counts[0][name]
            kills[name] = None if after is None or before is None else after - before
        return kills


def oom_kills(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> dict[str, int | None]:
    """The number of OOM kills so far, in this process's control group, of version 2 or of memory in
    version 1, and on the host."""
    in_group = None
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self" / "cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            file = None
            if not controllers:
                file = groups / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                file = groups / "memory" / path.lstrip("/") / "memory.oom_control"
            if file is not None and in_group is None:
                in_group = counter_in(file)
    return {"cgroup": in_group, "host": counter_in(proc / "vmstat")}


def counter_in(path: Path) -> int | None:
    """The count of OOM kills in a file of the kernel's counters; None if it has none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text("ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


# --- the locks of GPUs -------------------------------------------------------------------------


class TakenLocks(NamedTuple):
    """The outcome of `take_locks`: descriptors by path, the path that another process holds, and
    why others cannot be locked, by path."""

    descriptors: dict[str, int]
    conflict: str | None
    unusable: dict[str, str]


def take_locks(paths: list[str], *, shared: bool = False) -> TakenLocks:
    """Lock files, all or none, in sorted order: alone, or ``shared``. A file that cannot be opened
    or locked is left out: it must not block a GPU."""
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
    """Write into a held lock file who holds it, for other homes and users. ``workspace`` is the
    label of its home. Without permission to write it stays unknown: the lock holds all the same."""
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
    """Open a lock file. Its folder may be writable for everybody: no link is followed, and no FIFO
    is waited for. A file that this user may not write is only read, which is enough for a lock.

    Raises OSError if it cannot be opened or is no plain file of one name.
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
    """Make this process outlive all other signals, because an attempt whose shim is killed loses
    its exit. They are
    caught, not ignored: the command would inherit ignored ones."""
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
    """Start an agent if none lives and no person ended it on purpose: one that was killed together
    with its sampler has no other successor. ``agent`` is that entry of attempt.json."""
    if agent is None or Path(agent["stopped"]).exists() or lives(Path(agent["lock"])):
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


def lives(lock: Path) -> bool:
    """Return whether the process in an agent's lock file is alive. The lock is not tried, because
    an agent that just starts would find it taken."""
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
