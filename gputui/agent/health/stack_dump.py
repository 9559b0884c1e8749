"""The stacks of a hung attempt's processes, written to its logs before the attempt is ended.

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
from pathlib import Path

from gputui.agent.health.incident_folder import TEXT_CHARACTERS, write_text
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import Redactor
from gputui.machine.procfs import read_stat
from gputui.recovery.stacks import Stack, lagging_rank, main_stacks
from gputui.runs.identity import ProcessIdentity, is_alive, is_stopped, send_signal
from gputui.runs.logs import rank_logs, tail_text
from gputui.runs.process_readings import describe
from gputui.runs.processes import AttemptProcess
from gputui.runs.shim_processes import catches

log = logging.getLogger(__name__)

# On a busy machine, a rank with many threads needs some seconds to write their stacks.
ABORT_SECONDS = 10.0
# One that waits inside the kernel does not stop.
STOP_SECONDS = 1.0
# The end of a log, with the stacks.
READ_BYTES = 256 * 1024
POLL_SECONDS = 0.05
# Reached only if the file system of the folder hangs.
DEADLINE_SECONDS = 120.0


def dump_stacks(
    processes: Sequence[AttemptProcess], attempt_dir: Path, folder: Path, redactor: Redactor
) -> tuple[int | None, str] | None:
    """Write the table of processes to ``folder``, and let the ranks write their stacks to their logs in
    ``attempt_dir``.

    Afterwards the ranks have ended, unless they took longer than ABORT_SECONDS.

    Returns:
        The rank that holds up the others, and what it does, as `lagging_rank`; None if it is unknown.
    """
    ranks = [process for process in processes if process.rank is not None]
    others = [process.identity for process in processes if process.rank is None]
    try:
        for directory in (folder.parent, folder):
            directory.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        write_text(folder / "processes.txt", redactor.text(describe(processes))[-TEXT_CHARACTERS:])
    except OSError as error:
        log.warning("%s: the evidence is incomplete: %s", folder, error)
    if ranks:
        abort(ranks, others)
    else:
        abort(processes, ())
    stacks: dict[int, Stack] = {}
    for entry in rank_logs(attempt_dir):
        if entry.rank is not None:
            for stack in _stacks_in(tail_text(entry.path, READ_BYTES)):
                stacks.setdefault(entry.rank, stack)
    if not stacks or stacks.keys() != {process.rank for process in ranks}:
        return None
    return lagging_rank(stacks, linecache.getline)


def _stacks_in(log_text: str) -> list[Stack]:
    """The stacks of a log's rank, without those of its data loader's workers and those that a
    script writes on other occasions."""
    stacks = []
    for dump in log_text.split("Fatal Python error: Aborted")[1:]:
        for stack in main_stacks(dump):
            if not any(frame.function == "_worker_loop" for frame in stack):
                stacks.append(stack)
    return stacks


def abort(targets: Sequence[AttemptProcess], launchers: Sequence[ProcessIdentity] = ()) -> None:
    """Make processes write their stacks and end; wait for that at most twice ABORT_SECONDS."""
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
        _abort_at_once([target.identity for target in targets if target.pid not in started])
        _abort_at_once([target.identity for target in targets if target.pid in started])
    finally:
        for process in launchers:
            send_signal(process, signal.SIGCONT)


def _abort_at_once(targets: Sequence[ProcessIdentity]) -> None:
    handled = [process for process in targets if is_alive(process) and catches(process.pid, signal.SIGABRT)]
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
