"""An NvmlSource in a process of its own, told line by line what to do: the library that it loads is chosen when a
process starts.

    inventory | fast | slow | processes | events | link_step | recheck | close
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TypeVar

from gputui.machine.gpu_model import (
    FastTick,
    FreshProcessNeededError,
    GpuEvent,
    Inventory,
    Message,
    ProcessTick,
    SlowTick,
    decode,
    encode,
)
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.nvml import NvmlSource

M = TypeVar("M", Inventory, FastTick, SlowTick, ProcessTick)


class Remote:
    """The other end."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.machine.nvml_remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self.pid = self._child.pid

    def inventory(self) -> Inventory:
        return self._one("inventory", Inventory)

    def fast(self) -> FastTick:
        return self._one("fast", FastTick)

    def slow(self) -> SlowTick:
        return self._one("slow", SlowTick)

    def processes(self) -> ProcessTick:
        return self._one("processes", ProcessTick)

    def events(self) -> list[GpuEvent]:
        return [message for message in map(decode, self.tell("events")) if isinstance(message, GpuEvent)]

    def recheck(self) -> float | None:
        return None if (text := self.tell("recheck")[0]) == b"None" else float(text)

    def tell(self, word: str) -> list[bytes]:
        """The answer's lines."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{word}\n".encode())
        self._child.stdin.flush()
        lines = []
        while (line := self._child.stdout.readline().rstrip(b"\n")) != b".":
            assert self._child.poll() is None or line, f"it ended: {self._child.communicate()[1].decode()}"
            lines.append(line)
        return lines

    def end(self) -> str:
        """Standard error of the process, which is over then."""
        return self._child.communicate()[1].decode()

    def _one(self, word: str, kind: type[M]) -> M:
        (line,) = self.tell(word)
        message = decode(line)
        assert isinstance(message, kind)
        return message


def _serve() -> None:
    source = NvmlSource(GpuProcessReader(is_first_namespace=True))
    at = 0.0
    for line in sys.stdin:
        at += 1.0
        answers: list[Message] = []
        match line.strip():
            case "inventory":
                try:
                    answers = [source.inventory(at)]
                except FreshProcessNeededError:
                    print("fresh process")
            case "fast":
                answers = [source.fast(at)]
            case "slow":
                answers = [source.slow(at)]
            case "processes":
                answers = [source.processes(at)]
            case "events":
                answers = [*source.events(at)]
            case "recheck":
                print(source.recheck_after_seconds())
            case "link_step":
                source.link_step()
            case "close":
                source.close()
        for answer in answers:
            print(encode(answer).decode(), end="")
        print(".", flush=True)


if __name__ == "__main__":
    _serve()
