"""The agent's end of the sampler: starts, reads and supervises it, and never waits for it, because
it may hang in the driver at any moment. A command that cannot be sent now is replaced by the next
one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import PRIVATE_FILE_MODE
from gputui.machine.child import signal_name
from gputui.machine.gpu_model import LOG_PREFIX, FastTick, Message, Occupant, WireCommand, decode, encode_command
from gputui.machine.schedule import ReadBackoff, bounded_interval

HealthState = Literal["starting", "ok", "silent", "restarting", "dead"]

SILENT_MIN_SECONDS = 3.0  # a busy machine delays a tick by a second or two
SILENT_INTERVALS = 3  # one missed tick is a delay, three are a hang
STARTING_SECONDS = 10.0  # initializing the driver takes seconds per GPU without persistence mode
GIVE_UP_SECONDS = 60.0  # a driver that resets a GPU answers again within a minute
UNKILLABLE_SECONDS = 5.0  # a process that outlives SIGKILL so long hangs in the kernel
CLOSE_SECONDS = 0.9  # the agent's end as a whole may take a second
_RESTART_FIRST_SECONDS = 1.0  # a single crash costs one or two samples
_RESTART_LONGEST_SECONDS = 60.0  # crash upon crash must not load the machine
_STABLE_SECONDS = 60.0  # after so long, the next crash is a new one
_FRESH_PROCESS = 75  # EXIT_FRESH_PROCESS of the sampler, which is not imported here: it loads the driver
_READ_BYTES = 1 << 16  # what a pipe holds on Linux
_READS_AT_ONCE = 64  # four megabytes; the agent's loop goes on after them
_LOG_TAIL_BYTES = 4096  # the last traceback
_REASON_MAX_CHARACTERS = 300  # a few lines of a terminal


class SamplerCommand(Struct, frozen=True):
    """The command line of the sampler.

    Attributes:
        state_dir: Where it leaves its files.
        scenario: The file that says what simulated GPUs do.
        gpu_count: How many simulated GPUs there are; None for as many as the scenario says.
        python: The interpreter, None for this one.
        successor: The arguments of the agent that the sampler starts if this process dies
            without ending it; empty for none.
    """

    source: Literal["nvml", "simulated"]
    state_dir: Path
    interval_seconds: float = 1.0
    scenario: Path | None = None
    gpu_count: int | None = None
    python: str | None = None
    successor: tuple[str, ...] = ()

    def argv(self, epoch: float) -> list[str]:
        """The command line. ``epoch`` is the start of the session in UTC unix seconds."""
        argv = [self.python or sys.executable, "-P", "-m", "gputui.machine.sampler", "--source", self.source]
        argv += ["--interval", str(self.interval_seconds), "--state-dir", str(self.state_dir.absolute())]
        argv += ["--epoch", str(epoch)]
        if self.scenario is not None:
            argv += ["--scenario", str(self.scenario.absolute())]
        if self.gpu_count is not None:
            argv += ["--gpus", str(self.gpu_count)]
        if self.successor:
            argv += ["--agent", str(os.getpid()), "--successor", json.dumps(self.successor)]
        return argv


class SamplerHealth(Struct, frozen=True):
    """The state of the sampler. A ``dead`` process was killed but does not end. No other is
    started, because it would also hang in the driver.

    Attributes:
        for_seconds: Since its last GPU tick, or its start.
        reason: One line if something is wrong, else None.
    """

    state: HealthState
    for_seconds: float
    reason: str | None = None
    pid: int | None = None
    restarts: int = 0


class SamplerClient:
    """A sampler and its restarts. Their standard error is appended to the log at ``log_path``.

    Call ``read`` and ``check`` whenever ``fileno`` is readable, and at least once a second. If the
    host's messages continue without the GPUs', the driver hangs.

    Attributes:
        _epoch: the start of the session (UTC unix seconds).
        _process: the sampler that runs, None if none does.
        _occupants: the newest processes on the GPUs, for a successor, too; None before any.
        _started_at: when the newest sampler was started (monotonic).
        _tick_at: when its newest GPU tick was read (monotonic), None before the first.
        _reason: what is or was last wrong, None if the newest look has found nothing.
    """

    def __init__(self, command: SamplerCommand, log_path: Path) -> None:
        self._command = command
        self._log_path = log_path
        self._interval = bounded_interval(command.interval_seconds)
        self._epoch = time.time()
        self._messages = MessagePipe()
        self._process: SamplerProcess | None = None
        self._occupants: tuple[Occupant, ...] | None = None
        self._started_at = 0.0
        self._tick_at: float | None = None
        self._reason: str | None = None
        self._restarts = 0
        self._backoff = ReadBackoff(_RESTART_FIRST_SECONDS, _RESTART_LONGEST_SECONDS)

    def start(self, now: float | None = None) -> None:
        """Start the sampler. `check` reports a failure and tries again. Raises OSError if no pipe
        can be created."""
        self._messages.open()
        if now is None:
            now = time.monotonic()
        self._spawn(now)

    def fileno(self) -> int:
        """A descriptor that is readable when messages have arrived. Restarts of the sampler do not
        change it."""
        return self._messages.read_end

    @property
    def problem(self) -> str | None:
        """The reason why no GPU is read, once several samplers have ended in a row."""
        if self._process is not None or self._reason is None or self._backoff.failures < 2:
            return None
        reason = self._reason.removeprefix("the sampler ")
        times = self._backoff.failures
        return f"the GPU sampler has failed {times} times in a row ({reason}); its log is {self._log_path}"

    def read(self, now: float | None = None) -> list[Message]:
        """The messages that have arrived, oldest first. Never waits."""
        messages = [decode(line) for line in self._messages.take_lines()]
        if any(isinstance(message, FastTick) for message in messages):
            if now is None:
                now = time.monotonic()
            self._tick_at = now
        if self._process is not None:
            self._process.commands.flush()
        return messages

    def send_occupants(self, occupants: Sequence[Occupant]) -> None:
        """Send the processes on the GPUs, in place of an unsent earlier list."""
        self._occupants = tuple(occupants)
        self._send(occupants=self._occupants)

    def set_interval(self, seconds: float) -> None:
        """Change the time between ticks."""
        self._interval = bounded_interval(seconds)
        self._send(interval=self._interval)

    def check(self, now: float) -> SamplerHealth:
        """The state of the sampler at ``now`` (monotonic). Kills, reaps and restarts it as
        needed."""
        if self._messages.read_end < 0:
            return SamplerHealth("dead", 0.0, "the sampler was closed", restarts=self._restarts)
        process = self._process
        if process is not None and process.child.poll() is not None:
            self._note_exit(process, now)
        if self._process is None:
            if not self._backoff.due(now):
                return self._health("restarting", now)
            self._restarts += 1
            self._spawn(now)
            if self._process is None:
                return self._health("restarting", now)
        self._process.commands.flush()
        return self._judge(self._process, now)

    def close(self) -> None:
        """End the sampler by SIGTERM, then SIGKILL, in about a second. One that hangs in the driver
        ends when the driver returns."""
        process = self._process
        self._process = None
        if process is not None:
            process.commands.close()
            process.end()
        self._messages.close()

    def _spawn(self, now: float) -> None:
        """Start a process. An incomplete last line of its predecessor is dropped."""
        self._messages.drop_partial()
        self._started_at = now
        self._tick_at = None
        command = replace(self._command, interval_seconds=self._interval)
        try:
            self._process = SamplerProcess.start(command.argv(self._epoch), self._messages.write_end, self._log_path)
        except OSError as error:
            self._reason = f"the sampler cannot be started: {error}"
            self._backoff.fail(now)
            return
        if self._occupants is not None:
            self._process.commands.send(occupants=self._occupants)

    def _note_exit(self, process: SamplerProcess, now: float) -> None:
        """Note how the process ended and when the next one may start."""
        process.commands.close()
        self._process = None
        status = process.child.returncode
        if status == _FRESH_PROCESS:
            self._reason = "the driver was updated; starting a fresh sampler"
            self._backoff.reset()
            return
        self._reason = f"the sampler ended with status {status}"
        if status < 0:
            self._reason = f"the sampler was killed by {signal_name(-status)}"
        elif status > 0 and (line := process.stderr_tail()):
            self._reason = f"{self._reason}: {line}"
        self._backoff.fail(now)

    def _judge(self, process: SamplerProcess, now: float) -> SamplerHealth:
        name = f"sampler process {process.child.pid}"
        if process.killed_at is not None:
            if now - process.killed_at > UNKILLABLE_SECONDS:
                self._reason = f"{name} was killed but hangs in the driver and does not end"
                return self._health("dead", now)
            return self._health("silent", now)
        age = self._age(now)
        if self._tick_at is None:
            if age <= STARTING_SECONDS:
                return self._health("starting", now)
        elif age <= max(SILENT_INTERVALS * self._interval, SILENT_MIN_SECONDS):
            self._reason = None
            if self._tick_at - self._started_at > _STABLE_SECONDS:
                self._backoff.reset()
            return self._health("ok", now)
        self._reason = "the driver does not answer"
        if age > max(GIVE_UP_SECONDS, 2 * SILENT_INTERVALS * self._interval):
            if _is_in_kernel(process.child.pid):
                # SIGKILL would take effect only when the driver returns, but would end the readings
                # of the host.
                self._reason = f"the driver does not answer; {name} waits inside it"
            else:
                with contextlib.suppress(OSError):
                    process.child.kill()
                process.killed_at = now
        return self._health("silent", now)

    def _health(self, state: HealthState, now: float) -> SamplerHealth:
        pid = None
        if self._process is not None:
            pid = self._process.child.pid
        return SamplerHealth(state, max(0.0, self._age(now)), self._reason, pid, self._restarts)

    def _age(self, now: float) -> float:
        if self._tick_at is None:
            return now - self._started_at
        return now - self._tick_at

    def _send(self, **changes: Any) -> None:
        """Send a command; without a sampler, its successor gets what is in it at its start."""
        if self._process is not None:
            self._process.commands.send(**changes)


class MessagePipe:
    """The pipe that all samplers of a session write their messages to, one after the other.

    Attributes:
        read_end: the descriptor that is read without waiting, -1 while the pipe is closed.
        write_end: the samplers' standard output, -1 while the pipe is closed.
    """

    def __init__(self) -> None:
        self.read_end = -1
        self.write_end = -1
        self._partial = b""
        self._lines: list[bytes] = []

    def open(self) -> None:
        """Raises OSError."""
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def take_lines(self) -> list[bytes]:
        """The whole lines that have arrived and were not taken before."""
        self._pull()
        lines = self._lines
        self._lines = []
        return lines

    def drop_partial(self) -> None:
        """Forget the incomplete last line of a sampler that has ended."""
        self._pull()
        self._partial = b""

    def close(self) -> None:
        for fd in (self.read_end, self.write_end):
            if fd >= 0:
                os.close(fd)
        self.read_end = -1
        self.write_end = -1

    def _pull(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self.read_end, _READ_BYTES)
            except BlockingIOError:
                break
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._lines += lines


class CommandPipe:
    """The pipe to one sampler's standard input. ``fd`` is its descriptor, -1 once it is closed.

    Attributes:
        _unsent: what the next line will say, None if there is nothing to say.
        _sending: what is not sent yet of the line before it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsent: WireCommand | None = None
        self._sending = b""

    def send(self, **changes: Any) -> None:
        """Send a command, together with an unsent one."""
        self._unsent = replace(self._unsent or WireCommand(), **changes)
        self.flush()

    def flush(self) -> None:
        """Send what can be sent without waiting. A partly sent line is completed first."""
        while self._fd >= 0 and (self._sending or self._unsent):
            if not self._sending and self._unsent is not None:
                self._sending = encode_command(self._unsent)
                self._unsent = None
            try:
                sent = os.write(self._fd, self._sending)
            except BlockingIOError:
                return
            except OSError:  # it has ended; `SamplerClient.check` finds out how
                self.close()
                return
            self._sending = self._sending[sent:]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SamplerProcess:
    """One process of the sampler.

    Attributes:
        commands: its standard input.
        log_from: the size of the log when it was started.
        killed_at: when it was sent SIGKILL (monotonic), None before.
    """

    def __init__(self, child: subprocess.Popen[bytes], commands: CommandPipe, log_path: Path, log_from: int) -> None:
        self.child = child
        self.commands = commands
        self.log_path = log_path
        self.log_from = log_from
        self.killed_at: float | None = None

    @classmethod
    def start(cls, argv: list[str], output: int, log_path: Path) -> SamplerProcess:
        """Start a process that writes its messages to the descriptor ``output``. Raises OSError."""
        # A single malloc arena, not one per thread, saves some MB.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(log_path, flags, PRIVATE_FILE_MODE)
        theirs, ours = os.pipe()
        try:
            log_from = os.fstat(log).st_size
            child = subprocess.Popen(
                argv, stdin=theirs, stdout=output, stderr=log, env=environment, start_new_session=True
            )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
            os.close(log)
        os.set_blocking(ours, False)
        return cls(child, CommandPipe(ours), log_path, log_from)

    def end(self) -> None:
        """End it by SIGTERM, then SIGKILL, and wait for a moment."""
        if self.child.poll() is not None:
            return
        with contextlib.suppress(OSError):
            self.child.terminate()
        if not _gone_within(self.child, CLOSE_SECONDS * 0.75):
            with contextlib.suppress(OSError):
                self.child.kill()
            _gone_within(self.child, CLOSE_SECONDS * 0.25)

    def stderr_tail(self) -> str | None:
        """The process's last line in the log, which others also write to."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(self.log_from, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return None
        own_lines = [line for line in lines if line.startswith(LOG_PREFIX)]
        if not own_lines:
            return None
        printable = "".join(filter(str.isprintable, own_lines[-1].removeprefix(LOG_PREFIX)))
        return printable[:_REASON_MAX_CHARACTERS]


def _gone_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while child.poll() is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _is_in_kernel(pid: int) -> bool:
    """Return whether a thread of the process is in uninterruptible sleep (state D of proc(5)), as
    in a hung driver call."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_bytes()
            if text[text.rfind(b")") + 2 :][:1] == b"D":
                return True
    return False
