"""Several gloo ranks that stay alive over many tests: starting them costs seconds, a check on them a fraction of one.

`Ranks.run(function, …)` calls a module-level function as ``function(world, …)`` on every rank at once and returns what
they returned, by rank. What a rank raises is an AssertionError here, with its traceback as text. After an error the
ranks are replaced, because some of them may still wait inside a collective.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import current_process
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import torch

from tests.forkserver import Forked
from trainer.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="")

P = ParamSpec("P")
R = TypeVar("R")

# Counted from when a rank has taken a call: before that its server imports torch, which is slow on a crowded machine.
PATIENCE_SECONDS = 300.0
START_SECONDS = 400.0
# How long a rank waits in one exchange. It is shorter than the limit of a call, so that the ranks report a deadlock.
EXCHANGE_SECONDS = 120


class Ranks:
    """A fixed number of rank processes, started when first needed. Use as a context manager or call `close`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder: Path | None = None
        self._processes: list[Forked] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[Concatenate[World, P], R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Calls ``function(world, *args, **kwargs)`` on every rank; its results by rank."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))
        results: dict[int, R] = {}
        failures: dict[int, str] = {}
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        deadline = time.monotonic() + START_SECONDS
        while waiting:
            timeout = 5.0 if failures else max(0.0, deadline - time.monotonic())
            ready = wait(list(waiting), timeout=timeout)
            if not ready:
                failures |= dict.fromkeys(waiting.values(), "did not answer\n")
                break
            for pipe in [pipe for pipe in waiting if pipe in ready]:
                try:
                    kind, answer = pipe.recv()
                except EOFError:
                    kind = "failed"
                    answer = "the process ended\n"
                if kind == "taken":
                    deadline = time.monotonic() + PATIENCE_SECONDS
                elif kind == "done":
                    results[waiting.pop(pipe)] = answer
                else:
                    failures[waiting.pop(pipe)] = answer
        if failures:
            self.close()
            raise AssertionError("\n".join(f"rank {rank}:\n{text}" for rank, text in sorted(failures.items())))
        return [results[rank] for rank in range(self.size)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        for pipe in self._pipes:
            pipe.close()
        self._processes = []
        self._pipes = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        # Ranks end by themselves when the pipe closes, so that their coverage data is written.
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        self.close()

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        store = self._folder / "store"
        for rank in range(self.size):
            ours, theirs = Pipe()
            process = Forked(
                ["tests.trainer.ranks", str(rank), str(self.size), str(store)],
                preloaded="tests.trainer.preloaded",
                stdin=theirs.fileno(),
            )
            theirs.close()
            self._processes.append(process)
            # Processes authenticate with this key when they exchange tensors.
            ours.send_bytes(bytes(current_process().authkey))
            self._pipes.append(ours)


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    import datetime

    import torch
    import torch.distributed as dist

    current_process().authkey = pipe.recv_bytes()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, size),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=EXCHANGE_SECONDS),
    )
    world = World(rank=rank, size=size, device=torch.device("cpu"), backend="gloo")
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        pipe.send(("taken", None))
        try:
            answer = ("done", function(world, *args, **kwargs))
        except BaseException:
            answer = ("failed", traceback.format_exc())
        pipe.send(answer)


if __name__ == "__main__":
    standard_input = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a rank prints goes where its errors go
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], standard_input)
