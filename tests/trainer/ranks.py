"""Several gloo ranks that stay alive over many tests: starting them costs seconds, a check on them a fraction of one.

`Ranks.run(function, …)` calls a module-level function as ``function(world, …)`` on every rank at once and returns what
they returned, by rank. What a rank raises is raised here, with its traceback as text. After an error the ranks are
replaced, because some of them may still wait inside a collective.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import shutil
import socket
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from trainer.world import World

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_SECONDS = 150.0


class RankError(AssertionError):
    """One or more ranks raised; `by_rank` maps rank to (type name, message)."""

    def __init__(self, tracebacks: dict[int, str], by_rank: dict[int, tuple[str, str]]) -> None:
        super().__init__("\n".join(f"rank {rank}:\n{text}" for rank, text in sorted(tracebacks.items())))
        self.by_rank = by_rank


class Ranks:
    """A fixed number of rank processes, started when first needed. Use as a context manager or call `close`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder: Path | None = None
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[Concatenate[World, P], R], *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Calls ``function(world, *args, **kwargs)`` on every rank; its results by rank."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))
        results: dict[int, R] = {}
        tracebacks: dict[int, str] = {}
        by_rank: dict[int, tuple[str, str]] = {}
        waiting = dict(enumerate(self._pipes))
        while waiting:
            ready = wait(list(waiting.values()), timeout=PATIENCE_SECONDS if not by_rank else 5.0)
            if not ready:
                for rank in waiting:
                    tracebacks[rank] = f"did not answer; it stood at\n{self._stack_of(rank)}\n"
                break
            for rank, pipe in list(waiting.items()):
                if pipe not in ready:
                    continue
                del waiting[rank]
                try:
                    good, answer = pipe.recv()
                except EOFError:
                    good, answer = False, ("EOFError", "the process ended", "the process ended\n")
                if good:
                    results[rank] = answer
                else:
                    by_rank[rank], tracebacks[rank] = answer[:2], answer[2]
        if tracebacks:
            self.close()
            raise RankError(tracebacks, by_rank)
        return [results[rank] for rank in range(self.size)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _stack_of(self, rank: int) -> str:
        """Where the threads of a rank that says nothing are."""
        assert self._folder is not None
        path = _stacks(self._folder, rank)
        if not path.exists():
            return "its imports"
        return path.read_text()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        # Ranks that nobody talks to any more end by themselves, so that what was measured of them is written.
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
        self.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        store = self._folder / "store"
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, str(store), theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    import datetime

    import torch
    import torch.distributed as dist

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    torch.set_num_threads(1)
    stacks = _stacks(Path(store).parent, rank).open("w")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, size),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=30),
    )
    world = World(rank=rank, size=size, device=torch.device("cpu"), backend="gloo")
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        faulthandler.dump_traceback_later(PATIENCE_SECONDS - 10.0, file=stacks)
        try:
            answer = (True, function(world, *args, **kwargs))
        except BaseException as error:
            answer = (False, (type(error).__name__, str(error), traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
        pipe.send(answer)


def _stacks(folder: Path, rank: int) -> Path:
    return folder / f"stacks-{rank}"


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return "lo" if "lo" in names else names[0]
