"""Stack dumps of a hung attempt, taken by a job before the attempt is ended.

SIGABRT makes a process dump its stacks: gputui sets PYTHONFAULTHANDLER for every attempt, whose
handler writes the stacks of all threads to standard error from C, even while Python waits in a
collective, and then ends the process. The signal is sent only to processes that handle it. The dump
is redacted and bounded like all evidence.
"""

from __future__ import annotations

import linecache
import logging
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.health.incident_folder import ALL_LOGS_CHARACTERS, LOG_CHARACTERS, write_text
from gputui.agent.lifecycle.attempt_launch import attempt_dir
from gputui.agent.lifecycle.run_files import redactor_of
from gputui.core.config import PRIVATE_DIR_MODE
from gputui.core.redaction import Redactor
from gputui.recovery.signatures import nccl_trouble
from gputui.recovery.tracebacks import Stack, main_stacks
from gputui.recovery.watch.silence import lagging_rank
from gputui.runs.identity import ProcessIdentity, is_alive, is_stopped, read_stat, send_signal
from gputui.runs.logs import RankLog, rank_logs, read_window, tail_text
from gputui.runs.process_readings import describe
from gputui.runs.processes import AttemptProcess
from gputui.runs.shim import catches
from gputui.store.attempts import Attempt

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
# Of a log that grows faster, only the end is read.
WINDOW_BYTES = 64 << 10
LINE_CHARACTERS = 200


@dataclass(slots=True)
class NcclLogs:
    """Reads new parts of each log; ``places`` are byte offsets."""

    context: AgentContext
    places: dict[Path, int] = field(default_factory=dict)
    due: float = float("-inf")

    def turn(self, now: float, records: Iterable[Attempt]) -> dict[str, list[str]]:
        """New messages since the last check, by run; ``now`` is monotonic. Attempts with one GPU
        are skipped."""
        if now < self.due:
            return {}
        self.due = now + LOOK_SECONDS
        errors: dict[str, list[str]] = {}
        read_paths: set[Path] = set()
        for record in records:
            if len(record.gpus) < 2:
                continue
            for rank_log in rank_logs(attempt_dir(self.context.workspace, record.run_id, record.number)):
                read_paths.add(rank_log.path)
                lines = self._read(rank_log)
                if lines:
                    redactor = redactor_of(self.context.workspace, record.run_id)
                    errors.setdefault(record.run_id, []).extend(redactor.text(line)[:LINE_CHARACTERS] for line in lines)
        self.places = {path: offset for path, offset in self.places.items() if path in read_paths}
        return errors

    def _read(self, rank_log: RankLog) -> list[str]:
        try:
            size = rank_log.path.stat().st_size
            offset = self.places.get(rank_log.path)
            if offset is None:
                # Do not repeat what a former agent has reported.
                self.places[rank_log.path] = size
                return []
            if size == offset:
                return []
            window = read_window(rank_log.path, max(offset, size - WINDOW_BYTES), WINDOW_BYTES)
        except OSError as error:
            log.warning("%s cannot be read: %s", rank_log.path, error)
            self.places.pop(rank_log.path, None)
            return []
        self.places[rank_log.path] = window.end
        who = "" if rank_log.rank is None else f"rank {rank_log.rank}: "
        return [f"{who}{line}" for line in nccl_trouble(window.text)]


PY_SPY_SECONDS = 5.0
STACKS_SECONDS = 15.0
# On a busy machine, a rank with many threads needs some seconds to write their stacks.
ABORT_SECONDS = 10.0
# One that waits inside the kernel does not stop.
STOP_SECONDS = 1.0
# More than is kept, because text is cut after it was redacted.
READ_BYTES = 256 * 1024
POLL_SECONDS = 0.05
# Reached only if the file system of the folder hangs.
DEADLINE_SECONDS = 120.0


class StackDump:
    """The dump of one hung attempt's processes, written to ``folder``."""

    def __init__(
        self, processes: Sequence[AttemptProcess], attempt_dir: Path, folder: Path, redactor: Redactor
    ) -> None:
        self._processes = processes
        self._redactor = redactor
        self._attempt_dir = attempt_dir
        self._folder = folder
        self._stacks: dict[int, Stack] = {}

    def write(self) -> tuple[int | None, str] | None:
        """Write the dump, and return the rank that holds up the others, as `lagging_rank` does.
        Afterwards the ranks have ended, unless they took longer than ABORT_SECONDS."""
        ranks = [process for process in self._processes if process.rank is not None]
        try:
            self._folder.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
            self._keep("processes.txt", describe(self._processes))
            targets = ranks or self._processes
            self._keep("stacks.txt", "".join(f"{line}\n" for line in self._spy(targets)))
            abort(targets, [process.identity for process in self._processes if process.rank is None and ranks])
            self._keep_logs()
        except OSError as error:
            log.warning("%s: the evidence is incomplete: %s", self._folder, error)
        if not self._stacks or self._stacks.keys() != {process.rank for process in ranks}:
            return None
        return lagging_rank(self._stacks, linecache.getline)

    def _keep(self, name: str, text: str, most: int = LOG_CHARACTERS) -> int:
        """Write the redacted end of a text; return its number of characters."""
        content = self._redactor.text(text)[-most:]
        if content:
            write_text(self._folder / name, content)
        return len(content)

    def _note_stack(self, rank: int | None, text: str) -> None:
        """Keep the rank's own stack of a dump that may also have those of its data loader's
        workers."""
        for stack in main_stacks(text):
            if rank is not None and not any(frame.function == "_worker_loop" for frame in stack):
                self._stacks.setdefault(rank, stack)

    def _spy(self, targets: Sequence[AttemptProcess]) -> Iterator[str]:
        """Write stacks by py-spy, if it is installed and permitted; yield a line on the result for
        each process."""
        program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
        if program is None:
            yield "py-spy is not installed; the stacks are those that Python itself wrote, at the end of the logs here"
            return
        deadline = time.monotonic() + STACKS_SECONDS
        for process in targets:
            seconds = min(PY_SPY_SECONDS, deadline - time.monotonic())
            if seconds <= 0:
                yield f"{process.pid}: no time was left for it"
                continue
            if not is_alive(process.identity):
                yield f"{process.pid}: has ended"
                continue
            try:
                done = subprocess.run(
                    [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(process.pid)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=seconds,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                yield f"{process.pid}: py-spy did not answer ({type(error).__name__})"
                continue
            text = done.stdout.decode("utf-8", "replace")
            self._note_stack(process.rank, text)
            if self._keep(f"stack-{process.pid}.txt", text):
                yield f"{process.pid}: stack-{process.pid}.txt"
            else:
                words = done.stderr.decode("utf-8", "replace").strip().splitlines()
                yield f"{process.pid}: py-spy cannot look at it: {words[-1] if words else f'code {done.returncode}'}"

    def _keep_logs(self) -> None:
        """Copy the end of every log, which contains the stacks."""
        remaining_characters = ALL_LOGS_CHARACTERS
        for number, entry in enumerate(rank_logs(self._attempt_dir)):
            name = "launcher" if entry.rank is None else f"rank{entry.rank}"
            if remaining_characters > 0:
                text = tail_text(entry.path, READ_BYTES)
                # Scripts may dump stacks on other occasions, too.
                self._note_stack(entry.rank, text.partition("Fatal Python error: Aborted")[2])
                remaining_characters -= self._keep(
                    f"{number:03d}-{name}-{entry.stream}.txt", text, min(LOG_CHARACTERS, remaining_characters)
                )


def abort(targets: Sequence[AttemptProcess], launchers: Sequence[ProcessIdentity] = ()) -> None:
    """Make processes write their stacks and end; return when they have, or after at most twice
    ABORT_SECONDS."""
    # A launcher that sees one rank end would send SIGTERM to the others before they have written
    # their stacks.
    for process in launchers:
        send_signal(process, signal.SIGSTOP)
    pids = {target.pid for target in targets}
    started = {pid for pid in pids if (stat := read_stat(pid)) is not None and stat.parent_pid in pids}
    try:
        # A rank and the processes that it started share a log, where stacks written at the same
        # time would mix.
        _abort([target.identity for target in targets if target.pid not in started])
        _abort([target.identity for target in targets if target.pid in started])
    finally:
        for process in launchers:
            send_signal(process, signal.SIGCONT)


def _abort(targets: Sequence[ProcessIdentity]) -> None:
    signalled = [process for process in targets if is_alive(process) and catches(process.pid, signal.SIGABRT)]
    for process in signalled:
        _without_core(process)
    # Every one has the signal pending before the first ends: a rank whose peer is gone leaves its collective with an
    # exception, and the stack that is wanted is lost.
    for process in signalled:
        send_signal(process, signal.SIGSTOP)
    stopped_by = time.monotonic() + STOP_SECONDS
    while time.monotonic() < stopped_by and not all(map(is_stopped, signalled)):
        time.sleep(POLL_SECONDS / 10)
    for number in (signal.SIGABRT, signal.SIGCONT):
        for process in signalled:
            send_signal(process, number)
    deadline = time.monotonic() + ABORT_SECONDS
    while time.monotonic() < deadline and any(is_alive(process) for process in signalled):
        time.sleep(POLL_SECONDS)


def _without_core(process: ProcessIdentity) -> None:
    """Disable the process's core dump, which may be gigabytes. A limit of 1 byte also disables
    handlers that receive dumps through a pipe, which 0 does not: core(5)."""
    try:
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_CORE)
        soft = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else 0
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (soft, hard))
    except (OSError, ValueError) as error:
        log.info("the core limit of %d cannot be set: %s", process.pid, error)


def incident_folder(run_dir: Path, attempt: int, kind: str) -> Path:
    """The folder of evidence on an incident of a live attempt."""
    return run_dir / "incidents" / f"{attempt}-{kind}"
