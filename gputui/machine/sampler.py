"""The sampler: a process that reads GPUs and host and writes one JSON object per line to standard
output.

    python -m gputui.machine.sampler --source nvml --interval 1 --state-dir DIR

A driver call may block for a minute, or for ever. So one thread makes all driver calls, another
reads the host, and the agent waits for neither. Commands come in on standard input; its end means
that the agent has gone, and ends the sampler. If the agent was killed, the sampler first starts
another, because runs may wait for their next attempt while no view is open.

Exit status: 0 when asked to end, 2 for a wrong argument or scenario, 70 after an internal error, 75
if only a new process can use the driver."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from gputui.machine.gpu_model import (
    FreshProcessNeededError,
    Inventory,
    Message,
    Source,
    WireCommand,
    decode_command,
    encode,
    say,
)
from gputui.machine.host_sample import HostSampler
from gputui.machine.schedule import Cadence, ReadBackoff, Schedule, bounded_interval

EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_FRESH_PROCESS = 75

HOST_AFTER_SECONDS = 0.03
"""The delay of the host's reading after the GPUs' tick; most drivers answer within it."""

_CLOSING_SECONDS = 0.5  # a reading in progress ends by then, unless the driver hangs
# A killed agent closes its pipes a moment before it is gone.
_DYING_SECONDS = 1.0
# The minimum time between two agents that are killed one after the other.
_SUCCESSOR_SECONDS = 5.0
# A successor that lives so long has started.
_SETTLED_SECONDS = 30.0
_AGAIN_SECONDS = (5.0, 15.0, 60.0)
_RECHECK_FIRST_SECONDS = 10.0  # a driver that is being installed is there soon
_RECHECK_LONGEST_SECONDS = 300.0  # on a machine without GPUs a look costs next to nothing


class Output:
    """Standard output, shared by both threads, which writes whole lines. A line that is due just
    before the other thread's next line goes out with that, so that the agent wakes up once for
    both.

    ``next_line_at`` is when the main thread writes next (monotonic)."""

    def __init__(self, fd: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.next_line_at = float("-inf")
        self._fd = fd
        self._clock = clock
        self._lock = threading.Lock()
        self._held: list[bytes] = []

    def write(self, message: Message) -> None:
        """Write a line, after held ones. Raises OSError without a reader."""
        self._put(encode(message), is_last=True)

    def add(self, message: Message) -> None:
        """Write a line, or hold it if the main thread is about to write. Raises OSError without a
        reader."""
        self._put(encode(message), is_last=not 0.0 < self.next_line_at - self._clock() <= HOST_AFTER_SECONDS)

    def flush(self) -> None:
        """Write held lines. Raises OSError without a reader."""
        self._put(b"", is_last=True)

    def _put(self, line: bytes, *, is_last: bool) -> None:
        with self._lock:
            self._held.append(line)
            if is_last:
                unwritten = memoryview(b"".join(self._held))
                self._held.clear()
                while unwritten:
                    unwritten = unwritten[os.write(self._fd, unwritten) :]


class GpuThread(threading.Thread):
    """Reads the source, tier by tier. No other thread uses the source."""

    def __init__(
        self, source: Source, interval_seconds: float, output: Output, wake_main: int, begin_at: float
    ) -> None:
        super().__init__(name="gpu", daemon=True)
        self.exit_status = 0
        self._source = source
        self._interval = interval_seconds
        self._begin_at = begin_at
        self._output = output
        self._wake_main = wake_main
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._commands: list[WireCommand] = []
        self._ending = threading.Event()

    def send(self, command: WireCommand) -> None:
        with self._lock:
            self._commands.append(command)
        self._wake.set()

    def end(self) -> None:
        self._ending.set()
        self._wake.set()

    def run(self) -> None:
        try:
            self._loop()
            self._source.close()
        except FreshProcessNeededError:
            self.exit_status = EXIT_FRESH_PROCESS
        except OSError as error:
            say(f"ends: {error}")
        except Exception as error:
            self.exit_status = EXIT_INTERNAL
            traceback.print_exc()
            say(f"internal error: {type(error).__name__}: {error}")
        finally:
            os.write(self._wake_main, b"\0")

    def _loop(self) -> None:
        schedule = Schedule(self._interval, self._begin_at)
        recheck = ReadBackoff(_RECHECK_FIRST_SECONDS, _RECHECK_LONGEST_SECONDS)
        inventory = self._announce(announced=None, schedule=schedule, recheck=recheck)
        while not self._ending.is_set():
            self._apply_commands(schedule)
            for tier in schedule.due(time.monotonic()):
                if tier == "fast":
                    self._output.add(self._source.fast(time.time()))
                    for event in self._source.events(time.time()):
                        self._output.add(event)
                elif tier == "slow":
                    self._output.add(self._source.slow(time.time()))
                elif tier == "processes":
                    self._output.add(self._source.processes(time.time()))
                else:
                    self._source.link_step()
                if self._ending.is_set():
                    return
            inventory = self._recheck(inventory, schedule, recheck)
            self._wake.wait(schedule.wait_seconds(time.monotonic()))
            self._wake.clear()

    def _recheck(self, inventory: Inventory, schedule: Schedule, recheck: ReadBackoff) -> Inventory:
        """Reopen the source if it asks for this, each time after a longer wait."""
        recheck_seconds = self._source.recheck_after_seconds()
        now = time.monotonic()
        if recheck_seconds is None:
            recheck.reset()
            return inventory
        if recheck.due_at is None:
            recheck.fail(now, recheck_seconds)
        if recheck.due(now):
            return self._announce(inventory, schedule, recheck)
        return inventory

    def _announce(self, announced: Inventory | None, schedule: Schedule, recheck: ReadBackoff) -> Inventory:
        inventory = self._source.inventory(time.time())
        schedule.set_gpu_count(len(inventory.gpus))
        recheck_seconds = self._source.recheck_after_seconds()
        if recheck_seconds is None:
            recheck.reset()
        else:
            recheck.fail(time.monotonic(), recheck_seconds)
        if announced is None or (inventory.gpus, inventory.problem) != (announced.gpus, announced.problem):
            self._output.add(inventory)
            return inventory
        return announced

    def _apply_commands(self, schedule: Schedule) -> None:
        with self._lock:
            commands = self._commands
            self._commands = []
        for command in commands:
            if command.occupants is not None:
                self._source.occupy(command.occupants)
            if command.interval is not None and bounded_interval(command.interval) != schedule.interval_seconds:
                schedule.set_interval(command.interval, time.monotonic())


class Sampler:
    """The main thread: commands, signals and the host."""

    def __init__(self, source: Source, host: HostSampler, interval_seconds: float) -> None:
        self.should_end = False
        self._host = host
        self._interval = bounded_interval(interval_seconds)
        # A library that prints must not write between the messages.
        self._output = Output(os.dup(sys.stdout.fileno()))
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._wake, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._begin_at = time.monotonic()
        self._gpus = GpuThread(source, self._interval, self._output, self._wake_writer, self._begin_at)
        self._pending = b""

    def run(self) -> int:
        """Sample until asked to end; returns the exit status. A GPU thread that hangs in the driver
        does not delay the end."""
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._note_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the agent
        self._gpus.start()
        with contextlib.suppress(BrokenPipeError):  # no reader any more: as good as the end of standard input
            self._loop(sys.stdin.fileno())
        self._gpus.end()
        self._gpus.join(_CLOSING_SECONDS)
        with contextlib.suppress(OSError):
            self._output.flush()
        return self._gpus.exit_status

    def _loop(self, stdin: int) -> None:
        ticks = Cadence(self._interval, self._begin_at + HOST_AFTER_SECONDS)
        poll = select.poll()
        poll.register(stdin, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            now = time.monotonic()
            if ticks.due(now):
                self._output.write(self._host.sample(time.time(), now))
            self._output.next_line_at = ticks.next_at
            wait = max(0.0, ticks.next_at - time.monotonic())
            for fd, _ in poll.poll(wait * 1000 + 1):
                if fd == self._wake:
                    return
                data = os.read(stdin, 65536)
                if not data:
                    return
                self._read_commands(data)
                if self._interval != ticks.every_seconds:
                    ticks = Cadence(self._interval, time.monotonic() + HOST_AFTER_SECONDS)

    def _read_commands(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            command = decode_command(line)
            if command.interval is not None:
                self._interval = bounded_interval(command.interval)
            self._gpus.send(command)

    def _note_signal(self, _signal: int, _frame: FrameType | None) -> None:
        """Note a request to end. The wake-up descriptor ends the loop."""
        self.should_end = True


def start_successor(agent: int, arguments: list[str], began_at: float, should_end: Callable[[], bool]) -> None:
    """Start another agent, with these ``arguments``, if the process ``agent`` has died without
    ending this one, which began at ``began_at`` (monotonic). Start it again for as long as it fails
    at once, as on a full disk."""
    deadline = time.monotonic() + _DYING_SECONDS
    while os.getppid() == agent:
        if should_end() or time.monotonic() >= deadline:
            return
        time.sleep(0.01)
    time.sleep(max(0.0, began_at + _SUCCESSOR_SECONDS - time.monotonic()))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    for delay in itertools.chain(_AGAIN_SECONDS, itertools.repeat(_AGAIN_SECONDS[-1])):
        try:
            successor = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                stderr=sys.stderr,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
            if successor.wait(_SETTLED_SECONDS) == 0:
                return
            problem = f"ended with code {successor.returncode}"
        except subprocess.TimeoutExpired:
            return
        except OSError as error:
            problem = str(error)
        say(f"the agent in place of the one that was killed: {problem}; again in {delay:g} s")
        time.sleep(delay)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and sample until asked to end; returns the exit status."""
    parser = argparse.ArgumentParser(description="Reads GPUs and host, writes JSON lines.")
    parser.add_argument("--source", choices=("nvml", "simulated"), required=True)
    parser.add_argument(
        "--scenario", type=Path, help="YAML of what happens to simulated GPUs; read again when it changes"
    )
    parser.add_argument("--gpus", type=int, help="how many simulated GPUs")
    parser.add_argument("--epoch", type=float, help="when the simulation began, in UTC unix seconds")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between ticks")
    parser.add_argument("--state-dir", type=Path, required=True, help="whose file system's space is watched")
    parser.add_argument("--agent", type=int, help="the process that reads this")
    parser.add_argument("--successor", type=json.loads, help="JSON list: what to start in its place where it is killed")
    args = parser.parse_args(argv)
    began_at = time.monotonic()
    try:
        source = _source(args)
    except (OSError, ValueError) as error:
        say(str(error))
        return EXIT_USAGE
    sampler = Sampler(source, HostSampler(args.state_dir), args.interval)
    status = sampler.run()
    if args.successor:
        start_successor(args.agent, args.successor, began_at, lambda: sampler.should_end)
    return status


def _source(args: argparse.Namespace) -> Source:
    """Import only what the chosen source needs, to keep the process small."""
    if args.source == "simulated":
        from gputui.machine.simulated import SimulatedSource

        return SimulatedSource(args.scenario, args.gpus, args.epoch)
    from gputui.machine.nvml import NvmlSource

    return NvmlSource()


if __name__ == "__main__":
    status = main()
    # A thread that hangs in the driver would block the interpreter's exit.
    os._exit(status)
