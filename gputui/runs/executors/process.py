"""The process that runs an attempt: start it, find it again, watch it and ask it to end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gputui.runs.executors.base import Executor, LocalExecutor
from gputui.runs.foreign_json import read_foreign_json
from gputui.runs.identity import (
    ProcessIdentity,
    boot_id,
    identify,
    is_alive,
    is_elsewhere,
    is_held,
    is_of_this_boot,
    open_pidfd,
    send_signal,
)
from gputui.runs.processes import processes_of
from gputui.store.attempts import Attempt

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


def start(executor: Executor, run_dir: Path, attempt: int, locks: Sequence[int] = ()) -> ProcessIdentity | None:
    """Start the program of an attempt in its own session with the descriptors ``locks``; None if it
    ended at once. Raises ExecutorGoneError and OSError."""
    folder = run_dir / "attempts" / str(attempt)
    program = executor.program(folder, locks)
    environment = os.environ | {
        "GPUTUI_RUN_ID": run_dir.name,
        "GPUTUI_RUN_DIR": str(run_dir),
        "GPUTUI_ATTEMPT": str(attempt),
    }
    log = Path(executor.file_name).with_suffix(".log").name
    descriptor = os.open(folder / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # The program inherits the blocked signals and unblocks them once it handles them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env=environment,
            cwd="/",
            pass_fds=tuple(locks),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(descriptor)
    # `release` reaps by PID. Without a return code, Popen would warn about a process that outlives
    # it.
    process.returncode = 0
    return identify(process.pid)


def find(executor: Executor, run_dir: Path, attempt: int) -> ProcessIdentity | None:
    """The living process of an attempt whose agent died before storing it, or whose database was lost.

    It is named by started.json, else has the attempt's folder and a program of this name in its arguments.
    """
    folder = run_dir / "attempts" / str(attempt)
    recorded = recorded_identity(folder)
    if recorded is not None and serves(recorded, folder):
        return recorded
    name = os.fsencode(executor.file_name)
    for process in processes_of(run_dir, attempt):
        try:
            argv = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(folder) in argv and any(word.rpartition(b"/")[2] == name for word in argv):
            return process.identity
    return None


def serves(identity: ProcessIdentity, folder: Path) -> bool:
    """Return whether a process lives; one of another PID namespace does while it holds the lock."""
    if is_elsewhere(identity):
        return is_held(folder / "attempt.lock")
    return is_alive(identity)


def recorded_identity(folder: Path) -> ProcessIdentity | None:
    """The process that started.json names, alive or not; None without a valid record."""
    try:
        started = read_foreign_json(folder / "started.json")
        return ProcessIdentity(int(started["shim_pid"]), int(started["shim_start_ticks"]), str(started["boot_id"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_of_former_boot(attempt: Attempt, folder: Path) -> bool:
    """Return whether the machine was rebooted since the attempt began."""
    process = attempt.executor or recorded_identity(folder)
    return process is not None and not is_of_this_boot(process[-1])


@dataclass(slots=True)
class ExecutorProcess:
    """The process that runs an attempt.

    Attributes:
        identity: None if it could not be started.
        folder: the attempt's.
        kind: the executor.
        _selector: wakes the loop at the end of the process; None until it is watched.
        _descriptor: the pidfd of the process; None where it is not watched or polled instead.
        _is_reaped: its exit status was collected.
    """

    identity: ProcessIdentity | None
    folder: Path
    kind: Executor = field(default_factory=LocalExecutor)
    _selector: selectors.BaseSelector | None = None
    _descriptor: int | None = None
    _is_reaped: bool = False

    @property
    def is_alive(self) -> bool:
        return self.identity is not None and serves(self.identity, self.folder)

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Wake the selector when the process ends; without a pidfd, polling notices it."""
        if self.identity is not None and is_alive(self.identity):
            with contextlib.suppress(ProcessLookupError):
                self._descriptor = open_pidfd(self.identity.pid)
            if self._descriptor is not None:
                selector.register(self._descriptor, selectors.EVENT_READ, data=None)
                self._selector = selector

    def release(self) -> None:
        """Close what `watch` opened, and reap the process if it is our child. Idempotent."""
        if self._descriptor is not None and self._selector is not None:
            self._selector.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        if self.identity is not None and not self._is_reaped and self.identity.boot_id == boot_id():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.identity.pid, os.WNOHANG)
        self._is_reaped = True

    def ask_to_end(self, *, at_once: bool) -> None:
        """Ask the process to end the attempt, with the profile's grace or without."""
        if self.identity is not None:
            number = signal.SIGUSR2 if at_once else signal.SIGTERM
            send_signal(self.identity, number)
            # A stopped process handles signals only when continued.
            send_signal(self.identity, signal.SIGCONT)
