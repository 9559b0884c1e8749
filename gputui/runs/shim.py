"""The shim: one per attempt, standard library only, started as a file by any Python of at least 3.9.

It becomes a session leader and child subreaper, holds the GPU lock files, starts the attempt's command with its output
going to a file, forwards a stop, and when the command has ended makes sure that no descendant is left. Then it writes
``exit.json``. It never restarts anything and never looks at the database, so it outlives the agent and loses no exit.

Usage: shim.py ATTEMPT_DIR [DESCRIPTOR ...], where attempt.json says what to start (docs/attempts.md). The descriptors
are its GPUs' locks where the agent has taken them already.

SIGTERM, SIGINT or SIGQUIT ask for a graceful stop; SIGUSR2 kills at once; every other signal that may be ignored is.

It is one file on purpose. Couriers copy it to machines that have no gputui, `python -I -S` finds no module beside it,
and an upgrade replaces it in one step: no shim ever starts with one half of each version. Its sections, each used by
those above it: `Shim`; the processes of the run; procfs; kills for lack of memory; the locks of GPUs; what the
launching shell had; an agent where none is alive; records.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
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
from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STRAY_GRACE_SECONDS = 2.0
# Helpers of Python's multiprocessing end by themselves at once; what lives longer was left behind.
HELPER_SECONDS = 0.3
EMPTY_LOOKS = 3
LAST_CALL_SECONDS = 2.0
UNKILLABLE_SECONDS = 30.0
RECORD_BYTES = 4096
# Whoever only looks at a lock holds it for an instant.
LOCK_SECONDS = 0.04
# A kill for lack of memory explains an end that follows it within one or two of these, not one hours later.
OOM_LOOK_SECONDS = 60.0
# By then ranks exist, in their final control groups.
FIRST_OOM_LOOK_SECONDS = 5.0
# The one namespace whose PIDs the kernel's log tells (PROC_PID_INIT_INO, linux/proc_ns.h).
FIRST_PID_NAMESPACE = 0xEFFFFFFC
KMSG_RECORD_BYTES = 8192
VICTIM = re.compile(rb"Killed process (\d+) \(")
# How often the list of processes is brought up to date, and which share of a core that may cost at most.
TREE_SECONDS = 1.0
TREE_SHARE = 0.001
YOUNG_SECONDS = 10.0
# How often an agent is looked for. Another is started after two looks without one: an agent that hands over to the
# next, or is killed and followed by its sampler's, is away for a moment.
AGENT_SECONDS = 15.0
AGENT_LOOKS = 2
# What may be over in a moment: no process, memory or descriptor is left, or the program is just being written.
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
PASSING_SECONDS = 60.0
DEAD = ("Z", "X", "x")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
WATCHED = (*STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD)
# By these a fault of the shim itself ends it; these stop or continue it; the others have no effect by default.
LEFT_ALONE = (
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    *(signal.SIGURG, signal.SIGWINCH),
)


def main() -> int:
    os.umask(0o077)
    return Shim(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]).run()


class Shim:
    """One attempt from start to exit.json."""

    def __init__(self, directory: Path, locks: list[int] | None = None) -> None:
        self.directory = directory
        self.locks = locks or []
        for descriptor in self.locks:
            os.set_inheritable(descriptor, False)
        self.plan: dict[str, Any] = json.loads((directory / "attempt.json").read_text("utf-8"))
        self.grace = float(self.plan["grace_seconds"])
        self.run_dir = os.fsencode(self.plan["env"]["GPUTUI_RUN_DIR"])
        self.status: int | None = None
        # When the command ended: a full disk leaves no message, for there is no room for one.
        self.free_bytes: int | None = None
        self.child = 0
        # The record of the start, until it is written.
        self.started: dict[str, Any] | None = None
        self.stop_requested = False
        self.stop_signal: int | None = None
        self.asked_politely = False
        self.forced = False
        # Who has got SIGTERM from this process.
        self.asked: set[int] = set()
        self.last_call_at: float | None = None
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        self.oom = OomWatch()
        self.look_at = time.monotonic() + min(FIRST_OOM_LOOK_SECONDS, OOM_LOOK_SECONDS)
        self.family = Family(self.run_dir, str(directory))
        self.tree_at = time.monotonic()
        self.is_listed = True
        self.agent = AgentWatch(self.plan.get("agent"))
        # The ranks that a signal ended, in their order, until this process sends any itself.
        self.killed_ranks: dict[int, dict[str, int]] = {}
        self.watched_ranks: set[int] = set()
        self.sends_signals = False
        # The names of processes that outlived a command that succeeded.
        self.left_behind: list[str] = []

    def run(self) -> int:
        """Serve the attempt until exit.json is written; returns the exit code of this process."""
        started_at = time.time()
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        survive_signals()
        if not self.claim():
            return 0
        reserve_record(self.directory / "exit.json")
        reserve_record(self.directory / "started.json")
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        locks, conflict = (
            (self.locks, [])
            if self.locks
            else take_locks(self.plan["lock_files"], shared=self.plan.get("shares_gpus", False))
        )
        error = None if conflict else self.start()
        survivors = self.supervise() if self.child else []
        record = {
            **self.outcome(survivors),
            "started_at": started_at,
            "error": error,
            "lease_conflict": conflict or None,
        }
        self.note_start()
        if survivors:
            self.list_processes()
        self.remove_working_files(keep_list=bool(survivors))
        self.write_end(record)
        for descriptor in locks:
            os.close(descriptor)
        # Whoever asked it to stop gracefully knows of the end, and a machine that goes down needs no agent.
        if not self.asked_politely:
            self.agent.start()
        return 0

    def write_end(self, record: dict[str, Any]) -> None:
        """Write exit.json, for some time also where no descriptor is left at first."""
        until = time.monotonic() + PASSING_SECONDS
        while True:
            try:
                return write_record(self.directory / "exit.json", record)
            except OSError as error:
                if error.errno not in PASSING or time.monotonic() >= until:
                    raise
            self.wait_for_signal(1.0)

    def outcome(self, survivors: list[int]) -> dict[str, Any]:
        """How the command ended and what it took, as exit.json has it. ``survivors`` could not be killed."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        return {
            "code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "ended_at": time.time(),
            "stop_requested": self.stop_requested,
            "stop_signal": self.stop_signal,
            "forced": self.forced,
            "survivors": survivors,
            "left_behind": self.left_behind,
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "disk_free_bytes": self.free_bytes,
            "pid": self.child or None,
            "killed_ranks": list(self.killed_ranks.values()),
            **self.oom_record(),
        }

    def oom_record(self) -> dict[str, Any]:
        self.oom.read_victims(self.family.not_mine())
        return self.oom.record()

    def remove_working_files(self, *, keep_list: bool) -> None:
        """The list of processes stays where it names somebody who could not be ended."""
        for name in ("started.json.tmp", "processes.json.tmp", *(() if keep_list else ("processes.json",))):
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()

    def claim(self) -> bool:
        """Whether this attempt is this shim's: an agent that was killed while starting one may have its successor
        start another."""
        self.claimed = os.open(self.directory / "attempt.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return not (self.directory / "exit.json").exists()

    def start(self) -> str | None:
        """Start the command. Returns why that is not possible, or None."""
        shell = self.plan.get("shell") or {}
        environment = {**(shell.get("environment") or os.environ), **self.plan["env"]}
        limits, refused = limits_to_set(shell.get("limits") or {})
        nice = nice_to_set(shell.get("nice"))
        if shell and nice != shell.get("nice"):
            refused.append("nice")

        def prepare() -> None:
            restore_signals()
            apply_shell(limits, nice, shell.get("affinity"), shell.get("umask"))

        until = time.monotonic() + PASSING_SECONDS
        while True:
            try:
                boot = boot_id()
                with (self.directory / self.plan.get("output", "output.log")).open("ab", buffering=0) as output:
                    process = subprocess.Popen(
                        self.plan["argv"],
                        cwd=self.plan["cwd"],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        # The shim has one thread by now, so that code between fork and exec is safe here.
                        preexec_fn=prepare,
                    )
                break
            except OSError as error:
                if error.errno not in PASSING or not self.may_try_again(until):
                    return f"{error.strerror or error}: {error.filename or self.plan['argv'][0]}"
        self.child = process.pid
        # Only `reap` may ask how a child ended. A Popen that does not know asks once more when it is forgotten, and
        # would take the status of a command that has ended by then.
        process.returncode = 0
        own = child = None
        with contextlib.suppress(OSError):
            own, child = stat_of(os.getpid()), stat_of(self.child)
        self.started = {
            "shim_pid": os.getpid(),
            "shim_start_ticks": own[2] if own else None,
            "pid": self.child,
            "start_ticks": child[2] if child else None,
            "boot_id": boot,
            # What the launching shell had and this process may not give.
            "refused": refused,
            "at": time.time(),
        }
        self.note_start()
        return None

    def may_try_again(self, until: float) -> bool:
        """Let a second pass; False where ``until`` (monotonic) comes before, or a stop does."""
        again_at = time.monotonic() + 1.0
        while again_at < until and not self.stop_requested:
            left = again_at - time.monotonic()
            if left <= 0:
                return True
            # What was forked in vain has sent SIGCHLD, which ends no pause.
            self.wait_for_signal(left)
        return False

    def note_start(self) -> None:
        """Write who was started. A full disk does not undo the start: it is tried again with every look."""
        if self.started is not None:
            with contextlib.suppress(OSError):
                write_record(self.directory / "started.json", self.started)
                self.started = None

    def supervise(self) -> list[int]:
        """Wait for the command, then for everything it left behind. Returns what could not be killed.

        Where no descriptor is left for the moment, a look fails and is made again; the wait goes on."""
        while self.status is None:
            deadline = self.kill_at if self.last_call_at is None else self.last_call_at
            due = min(self.look_at, self.tree_at, self.agent.due, *(() if deadline is None else (deadline,)))
            self.wait_for_signal(due - time.monotonic())
            self.reap()
            if time.monotonic() >= self.look_at and self.status is None:
                self.look_at = time.monotonic() + OOM_LOOK_SECONDS
                self.oom.read_victims(self.family.not_mine())
                with contextlib.suppress(OSError):
                    self.oom.look(self.descendants())
            if time.monotonic() >= self.tree_at and self.status is None:
                self.list_processes()
            if time.monotonic() >= self.agent.due and self.status is None and not self.asked_politely:
                with contextlib.suppress(OSError):
                    self.agent.look()
            if self.last_call_at is not None and time.monotonic() >= self.last_call_at and self.status is None:
                self.last_call_at = None
                with contextlib.suppress(OSError):
                    self.ask(self.descendants())
            if self.kill_at is not None and time.monotonic() >= self.kill_at and self.status is None:
                self.forced = True
                if self.killed_at is None:
                    self.killed_at = time.monotonic()
                # All that is sure to be the run's without a look; the sweep ends the others.
                left = {self.child}
                with contextlib.suppress(OSError):
                    left = self.descendants()
                if time.monotonic() - self.killed_at > UNKILLABLE_SECONDS:
                    # Another user's (sudo), or stuck in the kernel: whoever waits for its end is not to wait for ever.
                    return sorted(left | {self.child})
                signal_all(left, signal.SIGKILL)
                self.kill_at = time.monotonic() + 1.0
        return self.sweep()

    def list_processes(self) -> None:
        """Keep processes.json true: which processes there are, for an agent, and for the one that finds them without
        this shim. A look that takes long, among many processes, is made the less often."""
        began = time.process_time()
        # Before the next look forgets who is gone.
        self.oom.read_victims(self.family.not_mine())
        with contextlib.suppress(OSError):
            if self.family.look(time.monotonic()):
                self.is_listed = False
                self.watch_ranks()
            if not self.is_listed:
                self.is_listed = self.write_list()
        self.note_start()
        self.tree_at = time.monotonic() + max(TREE_SECONDS, (time.process_time() - began) / TREE_SHARE)

    def watch_ranks(self) -> None:
        """If a script starts its ranks itself, only it learns how they end: a thread for each
        sees it before the script does. Without pidfd_open there is none."""
        for pid, member in self.family.members.items() if self.family.first is not None else ():
            if pid in (self.child, *self.watched_ranks) or self.family.leader(pid) is None:
                continue
            self.watched_ranks.add(pid)
            with contextlib.suppress(OSError, AttributeError, RuntimeError):
                descriptor = os.pidfd_open(pid)
                threading.Thread(target=self.await_end, args=(descriptor, member), daemon=True).start()

    def await_end(self, descriptor: int, rank: Descendant) -> None:
        """Sleep until a rank has ended, and look how before its parent has asked."""
        select.select([descriptor], [], [])
        status = status_of_dead(rank.pid, rank.start_ticks)
        os.close(descriptor)
        if status is not None:
            self.note_end(rank.pid, status)

    def note_end(self, pid: int, status: int) -> None:
        """Keep which rank a signal has ended: its launcher may not tell."""
        rank = self.family.leader(pid)
        if rank is None or self.stop_requested or self.sends_signals or not os.WIFSIGNALED(status):
            return
        if os.WTERMSIG(status) not in (signal.SIGTERM, signal.SIGINT):
            found = {"rank": int(rank.rank or 0), "pid": pid, "signal": os.WTERMSIG(status)}
            self.killed_ranks.setdefault(pid, found)

    def write_list(self) -> bool:
        """Whether there was room for the list. It need not outlive a power cut, so nothing is synced."""
        path = self.directory / "processes.json"
        temporary = path.with_name(path.name + ".tmp")
        record = {"boot_id": boot_id(), "processes": [member.to_json() for member in self.family.members.values()]}
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(record, file)
            temporary.replace(path)
        except OSError:
            return False
        return True

    def sweep(self) -> list[int]:
        """Ask what is left to end, then kill it: after a short time, or after a polite stop once the grace is over, for
        the script that saves may run behind a command that SIGTERM ends at once (a shell, a launcher).

        A look at the list of processes misses one whose parent ends meanwhile. That nothing is left is known once a
        subreaper has no child, or, where an agent that was started from inside the run is one, after some looks."""
        began = time.monotonic()
        is_polite, kill_at, last_call_at = self.asked_politely, began + STRAY_GRACE_SECONDS, began
        if is_polite and self.kill_at is not None:
            kill_at, last_call_at = max(kill_at, self.kill_at), self.last_call_at or began
        empty_looks = 0
        has_succeeded = self.status == 0 and not self.stop_requested
        while self.reap() and empty_looks < EMPTY_LOOKS:
            left, first, is_known, is_agent_there = set[int](), set[int](), False, False
            with contextlib.suppress(OSError):
                left = self.descendants()
                first = self.first_of(left)
                is_known = True
                is_agent_there = not left and any(is_of_another(pid, self.run_dir) for pid in children_of(os.getpid()))
            empty_looks = empty_looks + 1 if is_agent_there else 0
            now = time.monotonic()
            if self.forced:
                kill_at = min(kill_at, now)
            if is_known and now > kill_at + UNKILLABLE_SECONDS:
                return sorted(left)
            if now >= kill_at:
                signal_all(left, signal.SIGKILL)
                self.forced = self.forced or (is_polite and bool(left))
            elif has_succeeded and now < began + HELPER_SECONDS:
                pass
            else:
                if has_succeeded and not self.left_behind:
                    self.left_behind = sorted(filter(None, map(name_of, left)))
                # Also what was begun since: one may answer with another process.
                self.ask(left if now >= last_call_at else first)
            self.asked &= left
            self.sends_signals = self.sends_signals or bool(left)
            self.wait_for_signal(0.05 if now < began + STRAY_GRACE_SECONDS or now >= last_call_at else 0.5)
        return []

    def first_of(self, left: set[int]) -> set[int]:
        """Whom to ask before the last call: what a script needs to save, its data loaders or the ``tee`` behind its
        pipe, must not end before it. So only those whose parents are gone, and those that SIGTERM ends at once last."""
        heads = {pid for pid in left - self.asked if (stat_of(pid) or (0,))[0] == os.getpid()}
        savers = {pid for pid in heads if catches(pid, signal.SIGTERM)}
        return savers if savers or self.asked & left else heads

    def ask(self, pids: set[int]) -> None:
        """Ask processes to end, each once: a script may take a second signal for an order to end without a save."""
        signal_all(pids - self.asked, signal.SIGTERM)
        self.asked |= pids

    def descendants(self) -> set[int]:
        return descendants(self.run_dir)

    def wait_for_signal(self, timeout: float) -> None:
        """Sleep until a signal arrives or ``timeout`` seconds passed, and note what it asks for."""
        info = signal.sigtimedwait(WATCHED, max(timeout, 0.0))
        if info is None:
            return
        number = info.si_signo
        if self.stop_signal is None and number != signal.SIGCHLD:
            self.stop_signal = number
        if number in STOP_SIGNALS and not self.stop_requested:
            self.stop_requested = self.asked_politely = True
            self.kill_at = time.monotonic() + self.grace
            self.last_call_at = self.kill_at - min(LAST_CALL_SECONDS, self.grace / 2)
            # First only the command itself: torchrun passes it on to its ranks, and a rank that wants to finish its
            # step must not lose its data loaders meanwhile. Everything else is asked shortly before the grace ends.
            # Once the command has ended, the sweep asks those that it leaves without a parent.
            if self.status is None and self.child:
                self.ask({self.child})
        elif number == signal.SIGUSR2:
            self.stop_requested = self.forced = True
            self.last_call_at = None
            self.kill_at = time.monotonic()

    def reap(self) -> bool:
        """Collect every child that ended: an unreaped one would look alive for ever. Whether one is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self.child and self.status is None:
                    raise RuntimeError("somebody else has taken the command's exit status") from None
                return False
            if pid == 0:
                return True
            self.note_end(pid, status)
            if pid == self.child:
                self.status = status
                self.free_bytes = free_bytes(self.directory)


# --- the processes of the run -----------------------------------------------------------------------------------------


def descendants(run_dir: bytes) -> set[int]:
    """Every living process below this one that belongs to the run in ``run_dir``. As a subreaper the shim inherits
    what its descendants leave behind, so the parent chain is complete however often they forked or called setsid."""
    own = os.getpid()
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        stat = stat_of(pid)
        # A child of this process that looks dead and cannot be reaped has threads that live.
        if stat is not None and (stat[1] not in DEAD or stat[0] == own):
            children.setdefault(stat[0], []).append(pid)
    return below({own}, children, lambda pid: is_of_another(pid, run_dir))


def below(roots: set[int], children: dict[int, list[int]], is_barred: Callable[[int], bool]) -> set[int]:
    """Everything that hangs below ``roots`` in a process tree, without them; what is barred is left out with all that
    hangs below it."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found and pid not in roots and not is_barred(pid):
                found.add(pid)
                waiting.append(pid)
    return found


class Family:
    """The processes of the run below this one, remembered as they were when they were young.

    A look is cheap: nothing happens while the kernel has given out no new number, and of new processes only the
    parent is read. Whose child a process is, is settled at its birth: below a subreaper no process moves in or out.
    """

    def __init__(self, run_dir: bytes, folder: str) -> None:
        self.run_dir, self.folder = run_dir, folder
        self.own = os.getpid()
        self.members: dict[int, Descendant] = {}
        # Agents that were started from inside the run, and what hangs below them.
        self.others: set[int] = set()
        self.strangers: set[int] = set()
        self.newest: int | None = None
        self.first: Descendant | None = None

    def look(self, now: float) -> bool:
        """Update the members; whether the list of processes changed. ``now`` is monotonic."""
        before = {pid: member.to_json() for pid, member in self.members.items()}
        newest = newest_pid()
        if newest is None or newest != self.newest:
            if newest is None or self.newest is None or newest < self.newest:
                self.forget_reused_pids()
            self.admit(now)
            self.newest = newest
        for member in list(self.members.values()):
            if now < member.young_until and member.pid in self.members:
                self.read(member)
        self.find_first_rank()
        return before != {pid: member.to_json() for pid, member in self.members.items()}

    def not_mine(self) -> set[int]:
        """The processes of others, as of the last look."""
        return self.strangers | self.others

    def leader(self, pid: int) -> Descendant | None:
        """The member with this PID where it is a rank itself; its helpers have the rank from it."""
        member = self.members.get(pid)
        parent = None if member is None else self.members.get(member.parent)
        is_leader = member is not None and member.rank is not None and (parent is None or parent.rank != member.rank)
        return member if is_leader else None

    def forget_reused_pids(self) -> None:
        """PIDs have wrapped around: any number may be another process now."""
        self.strangers.clear()
        self.others.clear()
        for member in list(self.members.values()):
            stat = stat_of(member.pid)
            if stat is None or stat[2] != member.start_ticks:
                del self.members[member.pid]

    def admit(self, now: float) -> None:
        """Sort every new process into members, others and strangers; forget those that are gone."""
        pids = set(all_pids())
        for pid in self.members.keys() - pids:
            del self.members[pid]
        self.strangers &= pids
        self.others &= pids
        new: dict[int, tuple[int, str, int]] = {}
        for pid in pids - self.members.keys() - self.strangers - self.others - {self.own}:
            stat = stat_of(pid)
            if stat is not None and stat[1] not in DEAD:
                new[pid] = stat
        found = True
        while found:
            found = False
            for pid, (parent, _, start_ticks) in list(new.items()):
                if parent in self.others:
                    self.others.add(pid)
                elif parent == self.own or parent in self.members:
                    self.members[pid] = Descendant(pid, parent, start_ticks, now + YOUNG_SECONDS)
                    self.read(self.members[pid])
                else:
                    continue
                del new[pid]
                found = True
        # Of one whose parent has just gone, nothing is known before the next look: it may hang below this one by then.
        self.strangers |= {
            pid for pid, stat in new.items() if not stat[0] or stat[0] in new or stat[0] in self.strangers
        }

    def find_first_rank(self) -> None:
        """A script that starts the other ranks itself is the first, and what it sets in its own environment cannot be
        seen from outside: the parent of ranks from 1 on, where none of them is 0."""
        known = [member for member in self.members.values() if member.has_own_rank and member.rank is not None]
        if any(member.rank == 0 for member in known):
            if self.first is not None:
                # It is a launcher, which had begun another rank before the first.
                self.first.rank, self.first = None, None
            return
        parent = self.members.get(min(known, key=lambda member: member.rank or 0).parent) if known else None
        if parent is not None and parent.rank is None:
            parent.rank, parent.size = 0, known[0].size
            self.first = parent

    def read(self, member: Descendant) -> None:
        """Learn what a member's environment tells, or its output, or its parent's."""
        environment = environment_of(member.pid)
        if names_another(environment, self.run_dir):
            del self.members[member.pid]
            self.others.add(member.pid)
            return
        parent = self.members.get(member.parent)
        rank = rank_in(environment)
        if rank is None:
            rank = rank_by_output(member.pid, self.folder)
        if rank is None and member.rank is None and parent is not None:
            rank = parent.rank
        member.has_own_rank = member.has_own_rank or rank_in(environment) is not None
        if rank is not None:
            member.rank = rank
        size = number_in(environment, b"LOCAL_WORLD_SIZE")
        if size is None and b"RANK" not in environment and b"LOCAL_RANK" in environment:
            size = number_in(environment, b"WORLD_SIZE")
        if size is None and member.size is None and parent is not None:
            size = parent.size
        if size is not None:
            member.size = size


class Descendant:
    """A process of the run. ``rank`` and ``size``, the number of ranks here, are None if nothing says."""

    def __init__(self, pid: int, parent: int, start_ticks: int, until: float) -> None:
        self.pid, self.parent, self.start_ticks = pid, parent, start_ticks
        self.rank: int | None = None
        self.size: int | None = None
        self.has_own_rank = False
        # A fork shows its parent's environment until it has called exec: so long it is read again.
        self.young_until = until

    def to_json(self) -> dict[str, int | None]:
        return {"pid": self.pid, "start_ticks": self.start_ticks, "rank": self.rank, "local_world_size": self.size}


def is_of_another(pid: int, run_dir: bytes) -> bool:
    """Whether a process is an agent that was started from inside this run, or of a run which that agent started:
    they hang below this shim, and are none of its business."""
    return names_another(environment_of(pid), run_dir)


def names_another(environment: dict[bytes, bytes], run_dir: bytes) -> bool:
    """The same, from an environment."""
    folder = environment.get(b"GPUTUI_RUN_DIR", run_dir)
    return b"GPUTUI_AGENT" in environment or (folder != run_dir and is_run_folder(folder))


def is_run_folder(folder: bytes) -> bool:
    """Whether a folder is that of a run, not one that a program has set for its own children. True where it may not be
    looked at."""
    try:
        return stat.S_ISDIR(os.stat(folder + b"/attempts").st_mode)  # noqa: PTH116 - a path of bytes
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True


def has_another_folder(pid: int, folder: bytes) -> bool:
    """Whether a path is another folder for a process than it is here, as in a container with other mounts. False where
    its folder cannot be looked at."""
    with contextlib.suppress(OSError):
        theirs = os.stat(b"/proc/%d/root%b" % (pid, folder))  # noqa: PTH116 - a path of bytes
        return not os.path.samestat(theirs, os.stat(folder))  # noqa: PTH116
    return False


def signal_all(pids: set[int], number: int) -> None:
    """Signal descendants. A stopped one must be continued to notice."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)


# --- procfs -----------------------------------------------------------------------------------------------------------


def all_pids() -> list[int]:
    """Every PID that procfs shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children_of(parent: int) -> list[int]:
    """The processes whose parent is ``parent``."""
    return [pid for pid in all_pids() if (stat := stat_of(pid)) is not None and stat[0] == parent]


def newest_pid() -> int | None:
    """The number that the kernel gave last, to a process or a thread; None if it does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text("ascii").split()[4]) or None
    return None


def stat_of(pid: int) -> tuple[int, str, int] | None:
    """(parent, state letter, start ticks) of a process, or None when there is none. Raises OSError where that cannot be
    known for the moment."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError as error:
        if error.errno in PASSING:
            raise
        return None
    fields = text[text.rfind(")") + 2 :].split()
    return int(fields[1]), fields[0], int(fields[19])


def name_of(pid: int) -> str:
    """The name of a process's program as the kernel has it; "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    return ""


def catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal; False where that cannot be known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def status_of_dead(pid: int, start_ticks: int) -> int | None:
    """The wait status of a process that has ended and whose parent has not asked for it yet; None for any other."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()
    return int(fields[49]) if fields[0] in DEAD and int(fields[19]) == start_ticks else None


def environment_of(pid: int) -> dict[bytes, bytes]:
    """A process's environment as it was started with; nothing if it may not be read or the process wiped it. Raises
    OSError where that cannot be known for the moment."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        if error.errno in PASSING:
            raise
        return {}
    return {name: value for name, is_pair, value in (item.partition(b"=") for item in raw.split(b"\0")) if is_pair}


def rank_in(environment: dict[bytes, bytes]) -> int | None:
    """The rank that an environment tells. Launchers of one machine (Lightning's) tell the local one alone."""
    rank = number_in(environment, b"RANK")
    is_first_node = not any(number_in(environment, name) for name in (b"NODE_RANK", b"GROUP_RANK"))
    return number_in(environment, b"LOCAL_RANK") if rank is None and is_first_node else rank


def number_in(environment: dict[bytes, bytes], name: bytes) -> int | None:
    """A variable that is a whole number, or None."""
    value = environment.get(name, b"")
    return int(value) if value.isdigit() else None


def rank_by_output(pid: int, folder: str) -> int | None:
    """The rank to whose log a process writes, where torchrun keeps that in or below ``folder``; it has one node, so
    that the local rank is the rank. A program cannot lose this by setting its title."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/1")  # noqa: PTH115 - for every process, every second
    except OSError:
        return None
    # …/attempts/N/ranks/ID/attempt_0/RANK/stdout.log
    parts = path.split("/")
    is_log = path.startswith(folder + "/") and parts[-1] == "stdout.log" and parts[-5:-4] == ["ranks"]
    return int(parts[-2]) if is_log and parts[-2].isdigit() else None


def boot_id() -> str:
    """``BOOT/NAMESPACE``: the kernel's random name of this boot, and the PID namespace. PIDs mean something within both
    alone: a container and its host see different ones."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


# --- kills for lack of memory -----------------------------------------------------------------------------------------


class OomWatch:
    """The kernel's OOM kills within the last one or two looks: by its log, which names the victims, where that may be
    read; and by the counters of the host, of the shim's own control group and of those that its descendants are in."""

    def __init__(self) -> None:
        self.log = self.open_log()
        self.seen = [set[int](), set[int]()]
        self.own = set[int]()
        self.places: set[Path] = set()
        self.counts = [self.count(), self.count()]

    def look(self, pids: set[int]) -> None:
        """Note what there is by now, ``pids`` being the descendants."""
        found = {path for pid in pids for path in counters_of(pid)} - set(counters_of("self"))
        self.places |= {path for path in found if counter_in(path) is not None}
        self.counts = [self.counts[1], self.count()]
        self.seen = [self.seen[1], set()]
        self.own &= self.seen[0]

    def read_victims(self, others: set[int]) -> None:
        """Note the victims since the last time. Those that are not of others are of this run: one that was born since
        the last look too, for it is known only where a child of the run died so."""
        found = self.read_log()
        self.seen[1] |= found
        self.own |= found - others

    def record(self) -> dict[str, Any]:
        """What is written of them. ``oom_victims`` are PIDs, of which ``oom_own_victims`` are of this run; null if the
        log was not read, or not all of it. ``processes`` counts in groups that descendants were in."""
        before, after = {**self.counts[1], **self.counts[0]}, self.count()
        grown = {name: growth(before[name], after[name]) for name in after}
        victims = self.seen[0] | self.seen[1]
        own, host = grown.pop("cgroup"), grown.pop("host")
        known = [count for count in grown.values() if count is not None]
        elsewhere = sum(known) if any(known) or len(known) == len(grown) else None
        return {
            "oom_kills": {"cgroup": own, "host": host, "processes": elsewhere},
            "oom_victims": None if self.log is None else sorted(victims),
            "oom_own_victims": None if self.log is None else sorted(self.own),
        }

    def count(self) -> dict[str, int | None]:
        return {**oom_kills(), **{str(path): counter_in(path) for path in self.places}}

    def open_log(self) -> int | None:
        """The kernel's log from here on, or None if it may not be read or tells other PIDs than those seen here."""
        with contextlib.suppress(OSError):
            if Path("/proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE:
                descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(descriptor, 0, os.SEEK_END)
                return descriptor
        return None

    def read_log(self) -> set[int]:
        """The victims that the log has named since it was last read."""
        found: set[int] = set()
        while self.log is not None:
            try:
                record = os.read(self.log, KMSG_RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError:
                # Some of it was overwritten before it was read.
                os.close(self.log)
                self.log = None
                break
            found |= {int(pid) for pid in VICTIM.findall(record)}
        return found


def oom_kills(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> dict[str, int | None]:
    """How many processes the kernel has killed for lack of memory so far: in this control group, and on the host."""
    return {"cgroup": kills_of_group(proc, groups), "host": counter_in(proc / "vmstat")}


def kills_of_group(proc: Path, groups: Path) -> int | None:
    """The count of this process's own control group, of version 2 or, where memory is still with that, of 1."""
    counts = (counter_in(path) for path in counters_of("self", proc, groups))
    return next((count for count in counts if count is not None), None)


def counters_of(pid: int | str, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Where the kernel may count the OOM kills in the control group of a process."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        own = group.lstrip("/")
        if not controllers:
            found.append(groups / own / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(groups / "memory" / own / "memory.oom_control")
    return found


def counter_in(path: Path) -> int | None:
    """The count of OOM kills among the lines of a kernel's file of counters, or None if it tells none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text("ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def growth(before: int | None, after: int | None) -> int | None:
    """How much a counter grew, or None when it cannot be read."""
    return None if before is None or after is None else after - before


# --- the locks of GPUs ------------------------------------------------------------------------------------------------


def take_locks(paths: list[str], *, shared: bool = False) -> tuple[list[int], list[str]]:
    """Lock files, all or none, in sorted order: alone, or ``shared``. Returns the descriptors, and the path that
    another holds. What cannot be opened or locked is left out: it must not block a GPU."""
    held: list[int] = []
    deadline = time.monotonic() + LOCK_SECONDS
    for name in sorted(paths):
        with contextlib.suppress(OSError):
            held.append(open_lock(name))
            while not is_locked(held[-1], shared=shared):
                if time.monotonic() >= deadline:
                    for descriptor in held:
                        os.close(descriptor)
                    return [], [name]
                time.sleep(0.01)
    return held, []


def is_locked(descriptor: int, *, shared: bool) -> bool:
    """Try to lock an open file; False where another holds it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(name: str, *, create: bool = True) -> int:
    """Open a lock file, to be locked and never written. It may lie where everybody may make files: no link is followed,
    no FIFO is waited for, and one of another user is only read, for which locks are enough.

    Raises OSError if it cannot be opened or is no plain file of one name.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(name, flags)
            break
        except FileNotFoundError:
            if not create:
                raise
        # Only who makes it says O_CREAT: the kernel refuses that on another's file in a sticky folder
        # (fs.protected_regular).
        with contextlib.suppress(FileExistsError):
            mode = 0o644 if Path(name).parent.stat().st_mode & stat.S_IWOTH else 0o600
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode)
            os.fchmod(descriptor, mode)
            break
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", name)
    return descriptor


# --- what the launching shell had -------------------------------------------------------------------------------------


def limits_to_set(wanted: dict[str, list[int]]) -> tuple[list[tuple[int, tuple[int, int]]], list[str]]:
    """Resource limits as far as this process may set them, and the names of those that it may not grant in full."""
    found, refused = [], []
    for name, (soft, hard) in wanted.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is None:
            continue
        most = resource.getrlimit(number)[1]
        if os.geteuid() != 0 and most != resource.RLIM_INFINITY:
            if hard == resource.RLIM_INFINITY or hard > most:
                hard = most
            if soft == resource.RLIM_INFINITY or soft > hard:
                soft = hard
                refused.append(name)
        found.append((number, (soft, hard)))
    return found, refused


def nice_to_set(wanted: int | None) -> int | None:
    """The nice value as far as this process may set it: only root lowers it below its own, or below what the limit
    allows (getrlimit(2), RLIMIT_NICE)."""
    if wanted is None or os.geteuid() == 0:
        return wanted
    allowed = resource.getrlimit(resource.RLIMIT_NICE)[0]
    lowest = -20 if allowed == resource.RLIM_INFINITY else 20 - allowed
    return max(wanted, min(lowest, os.getpriority(os.PRIO_PROCESS, 0)))


def apply_shell(
    limits: list[tuple[int, tuple[int, int]]], nice: int | None, affinity: list[int] | None, umask: int | None
) -> None:
    """Give this process what the launching shell had; runs between fork and exec. What the kernel refuses all the same
    (a CPU that is gone) stays as it is: the command is to start."""
    if nice is not None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    if affinity:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, affinity)
    if umask is not None:
        os.umask(umask)
    for number, pair in limits:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, pair)


def survive_signals() -> None:
    """Have this process outlive the signals that nobody has a reason to send it: an attempt whose shim is killed loses
    its end. They are caught, not ignored, because only what is ignored is inherited by the command."""
    for number in signal.valid_signals() - {*WATCHED, *LEFT_ALONE}:
        if signal.getsignal(number) is signal.SIG_DFL:
            with contextlib.suppress(OSError):
                signal.signal(number, lambda *_: None)


def restore_signals() -> None:
    """What the command is to find as any program does; runs between fork and exec."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# --- an agent where none is alive -------------------------------------------------------------------------------------


class AgentWatch:
    """Looks for an agent while an attempt lives. One that is killed with its sampler has no other follower, and without
    one a hang is never seen. ``agent`` is that entry of attempt.json, None for no look at all."""

    def __init__(self, agent: dict[str, Any] | None) -> None:
        self.agent = agent
        self.due = time.monotonic() + AGENT_SECONDS
        self.missed = 0
        self.child: int | None = None

    def look(self) -> None:
        """Start an agent if none was there for some looks."""
        self.due = time.monotonic() + AGENT_SECONDS
        if self.child is not None:
            # An agent that this process started is its child, which only it can reap.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.child, os.WNOHANG)
        self.missed = 0 if self.agent is None or lives(Path(self.agent["lock"])) else self.missed + 1
        if self.missed >= AGENT_LOOKS:
            self.missed = 0
            self.start()

    def start(self) -> None:
        """Start an agent if none lives."""
        if self.agent is not None:
            try:
                self.child = start_agent(self.agent) or self.child
            except OSError as error:
                print(f"no agent could be started: {error}", file=sys.stderr)  # noqa: T201 - for shim.log


def start_agent(agent: dict[str, Any]) -> int | None:
    """Start an agent where none lives and no person ended it on purpose; its PID if one was started. ``agent`` is that
    entry of attempt.json."""
    if Path(agent["stopped"]).exists() or lives(Path(agent["lock"])):
        return None
    environment = {name: value for name, value in os.environ.items() if name not in agent["unset"]}
    descriptor = os.open(agent["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            agent["argv"],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env={**environment, **agent["set"]},
            cwd="/",
            preexec_fn=restore_signals,
        )
    finally:
        os.close(descriptor)
    # It outlives this process, which does not wait for it.
    process.returncode = 0
    return process.pid


def lives(lock: Path) -> bool:
    """Whether the process that an agent's lock file names is alive. The lock is not tried: an agent that starts at this
    moment would find it taken."""
    try:
        holder = json.loads(lock.read_text("utf-8"))
        stat = stat_of(int(holder["pid"]))
        named = (holder["start_ticks"], holder["boot_id"])
        return stat is not None and stat[1] not in DEAD and (stat[2], boot_id()) == named
    except (OSError, ValueError, KeyError, TypeError):
        return False


# --- records ----------------------------------------------------------------------------------------------------------


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


def reserve_record(path: Path) -> None:
    """Take room for a record while there is some: the command may fill the disk, and its end must still be recorded."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path.with_name(path.name + ".tmp"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RECORD_BYTES)
        finally:
            os.close(descriptor)


def free_bytes(directory: Path) -> int | None:
    """What is left on a folder's disk, or None if unknown."""
    with contextlib.suppress(OSError):
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
    return None


if __name__ == "__main__":
    sys.exit(main())
