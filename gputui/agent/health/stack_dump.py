"""The stacks of a hung attempt's processes, written to the run's folder before the attempt is
ended.

SIGABRT makes a process dump its stacks: gputui sets PYTHONFAULTHANDLER for every attempt, whose
handler writes the stacks of all threads to standard error from C, even while Python waits in a
collective, and then ends the process. The signal is sent only to processes that handle it.
"""

from __future__ import annotations

import linecache
import logging
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.health.incident_folder import ALL_LOGS_CHARACTERS, LOG_CHARACTERS, write_text
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import Redactor
from gputui.machine.procfs import read_stat
from gputui.recovery.stacks import Stack, lagging_rank, main_stacks
from gputui.runs.identity import ProcessIdentity, is_alive, is_stopped, send_signal
from gputui.runs.logs import rank_logs, tail_text
from gputui.runs.process_readings import describe
from gputui.runs.processes import AttemptProcess
from gputui.runs.shim import catches

log = logging.getLogger(__name__)

# On a busy machine, a rank with many threads needs some seconds to write their stacks.
ABORT_SECONDS = 10.0
# One that waits inside the kernel does not stop.
STOP_SECONDS = 1.0
# More than is kept, because text is cut after it was redacted.
READ_BYTES = 256 * 1024
POLL_SECONDS = 0.05
# Reached only if the file system of the folder hangs.
DEADLINE_SECONDS = 120.0


@dataclass(slots=True)
class StackDump:
    """The dump of one hung attempt's processes, written to ``folder``."""

    processes: Sequence[AttemptProcess]
    attempt_dir: Path
    folder: Path
    redactor: Redactor
    _stacks: dict[int, Stack] = field(default_factory=dict)

    def write(self) -> tuple[int | None, str] | None:
        """Write the dump, and return the rank that holds up the others, as `lagging_rank` does.
        Afterwards the ranks have ended, unless they took longer than ABORT_SECONDS."""
        ranks = [process for process in self.processes if process.rank is not None]
        others = [process.identity for process in self.processes if process.rank is None]
        targets = ranks or self.processes
        try:
            self.folder.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
            self._keep("processes.txt", describe(self.processes))
            abort(targets, others if ranks else ())
            self._keep_logs()
        except OSError as error:
            log.warning("%s: the evidence is incomplete: %s", self.folder, error)
        if not self._stacks or self._stacks.keys() != {process.rank for process in ranks}:
            return None
        return lagging_rank(self._stacks, linecache.getline)

    def _keep(self, name: str, text: str, most: int = LOG_CHARACTERS) -> int:
        """Write the redacted end of a text; return its number of characters."""
        content = self.redactor.text(text)[-most:]
        if content:
            write_text(self.folder / name, content)
        return len(content)

    def _note_stack(self, rank: int, log_text: str) -> None:
        """Note the rank's own stack, apart from those of its data loader's workers and from what a
        script dumps on other occasions."""
        for stack in main_stacks(log_text.partition("Fatal Python error: Aborted")[2]):
            if not any(frame.function == "_worker_loop" for frame in stack):
                self._stacks.setdefault(rank, stack)

    def _keep_logs(self) -> None:
        """Copy the end of every log, which contains the stacks."""
        remaining = ALL_LOGS_CHARACTERS
        for number, entry in enumerate(rank_logs(self.attempt_dir)):
            name = "launcher" if entry.rank is None else f"rank{entry.rank}"
            if remaining > 0:
                text, most = tail_text(entry.path, READ_BYTES), min(LOG_CHARACTERS, remaining)
                if entry.rank is not None:
                    self._note_stack(entry.rank, text)
                remaining -= self._keep(f"{number:03d}-{name}-{entry.stream}.txt", text, most)


def abort(targets: Sequence[AttemptProcess], launchers: Sequence[ProcessIdentity] = ()) -> None:
    """Make processes write their stacks and end; return when they have, or after at most twice
    ABORT_SECONDS."""
    # A launcher that sees one rank end would send SIGTERM to the others before they have written
    # their stacks.
    for process in launchers:
        send_signal(process, signal.SIGSTOP)
    pids = {target.pid for target in targets}
    stats = {pid: read_stat(pid) for pid in pids}
    started = {pid for pid, stat in stats.items() if stat is not None and stat.parent_pid in pids}
    try:
        # A rank and the processes that it started share a log, where stacks written at the same
        # time would mix.
        _abort([target.identity for target in targets if target.pid not in started])
        _abort([target.identity for target in targets if target.pid in started])
    finally:
        for process in launchers:
            send_signal(process, signal.SIGCONT)


def _abort(targets: Sequence[ProcessIdentity]) -> None:
    handled = [one for one in targets if is_alive(one) and catches(one.pid, signal.SIGABRT)]
    for process in handled:
        # No core dump, which may be gigabytes. A limit of 1 byte also disables handlers that
        # receive dumps through a pipe, which 0 does not: core(5).
        with suppress(OSError, ValueError):
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_CORE)
            soft = 0 if hard == 0 else 1
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (soft, hard))
    # Every one has the signal pending before the first ends: a rank whose peer is gone leaves its
    # collective with an exception, and the stack that is wanted is lost.
    for process in handled:
        send_signal(process, signal.SIGSTOP)
    _await(lambda: all(map(is_stopped, handled)), STOP_SECONDS)
    for number in (signal.SIGABRT, signal.SIGCONT):
        for process in handled:
            send_signal(process, number)
    _await(lambda: not any(map(is_alive, handled)), ABORT_SECONDS)


def _await(is_true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_true():
        time.sleep(POLL_SECONDS / 10)
