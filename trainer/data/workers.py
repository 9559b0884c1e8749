"""Where batches are read: in the training process, or in worker processes that read ahead."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from multiprocessing import connection, forkserver, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from trainer.config import Settings
from trainer.data.reading import Fetched, Reader, Request
from trainer.errors import RankError, TrainerError

# Seconds that a worker which is no longer needed gets to finish what it reads.
_CLOSE_SECONDS = 2.0


class Readers(Protocol):
    """Answers requests in order. `count` readers take turns: each gets every count-th request."""

    count: int

    def fetch(self, requests: Iterable[Request]) -> Iterator[Fetched]:
        """Yield the batches of the requests. Ends the iterator of an earlier call.

        Raises TrainerError if too many samples are broken, or a reading process died.
        """
        ...

    def close(self) -> None: ...


def readers_for(reader: Reader, settings: Settings, device: torch.device, *, persistent: bool) -> Readers:
    """The readers for --num-workers; with 0, this process reads. Batches are pinned only for CUDA.

    Workers that are not `persistent` end when their requests are answered.
    """
    pin = settings.pin_memory and device.type == "cuda"
    if not settings.num_workers:
        return InProcess(reader, pin=pin)
    return Workers(reader, settings, pin=pin, persistent=persistent)


class InProcess:
    """Reads on demand, in this process."""

    count = 1

    def __init__(self, reader: Reader, *, pin: bool) -> None:
        self._reader = reader
        self._pin = pin

    def fetch(self, requests: Iterable[Request]) -> Iterator[Fetched]:
        for request in requests:
            fetched = self._reader.read(request)
            yield fetched.pin_memory() if self._pin else fetched

    def close(self) -> None:
        """Do nothing."""


class Workers:
    """Processes that read ahead, through torch's DataLoader.

    They are forked from a fork server, never from this process. This process has threads of CUDA, NCCL and gloo, locks,
    signal handlers, and sockets, which a forked worker would keep open after the rank's death, hiding it from peers.
    """

    def __init__(self, reader: Reader, settings: Settings, *, pin: bool, persistent: bool) -> None:
        self.count = settings.num_workers
        self._processes: list[BaseProcess] = []
        self._requests = _Requests()
        self._iterator: Iterator[Fetched | str] | None = None
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["trainer.data.preload"])
        resource_tracker.ensure_running()  # before signals are blocked: starting it unblocks them
        with _signals_blocked():
            forkserver.ensure_running()  # early: its imports take about a second
        self._loader: DataLoader[Fetched | str] | None = DataLoader(
            _ReaderDataset(reader),
            batch_size=None,
            sampler=self._requests,
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch,
            persistent_workers=persistent,
            pin_memory=pin,
            multiprocessing_context=context,
            collate_fn=_identity,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # else the loader would draw from torch's global one, which --seed governs
        )
        atexit.register(self.close)

    def fetch(self, requests: Iterable[Request]) -> Iterator[Fetched]:
        assert self._loader is not None, "the workers are closed"
        if not self._loader.persistent_workers:
            self._end()
        self._requests.current = requests
        others = multiprocessing.active_children()
        try:
            self._iterator = iter(self._loader)
        except (RuntimeError, OSError, EOFError) as error:
            raise self._explain(error) from error
        self._processes += [process for process in multiprocessing.active_children() if process not in others]
        return self._fetched()

    def close(self) -> None:
        """End all workers and wait for them."""
        atexit.unregister(self.close)
        self._loader = None
        self._end()

    def _fetched(self) -> Iterator[Fetched]:
        while self._iterator is not None:
            try:
                answer = next(self._iterator)
            except StopIteration:
                if self._loader is not None and not self._loader.persistent_workers:
                    self._end()
                return
            except (RuntimeError, OSError, EOFError) as error:
                raise self._explain(error) from error
            if isinstance(answer, str):
                raise RankError(answer)
            yield answer

    def _end(self) -> None:
        """Let torch end the workers, which waits for their current batch; kill those that take too long."""
        killer = threading.Timer(_CLOSE_SECONDS, self._kill)
        killer.start()
        self._iterator = None  # ends the workers, unless a traceback still refers to it
        killer.cancel()
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        while self._processes:
            self._processes.pop().join()

    def _explain(self, error: Exception) -> Exception:
        """The error that names a dead worker; any other error unchanged."""
        connection.wait([process.sentinel for process in self._processes], timeout=0.5)
        for process in self._processes:
            if process.exitcode is not None:
                return RankError(describe_death(process.pid, process.exitcode))
        return error


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM, also for processes that are started inside, and for their children.

    Else a signal to the process group would end a worker without handlers yet, while the rank waits for it.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def describe_death(pid: int | None, exitcode: int) -> str:
    """Explain a worker's exit code (negative: the signal that killed it)."""
    if exitcode >= 0:
        return f"a reading process (pid {pid}) ended with exit code {exitcode}; what it printed tells why"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return (
        f"a reading process (pid {pid}) was killed by {name}: mostly host memory or shared memory (/dev/shm) ran out; "
        "use fewer --num-workers, a smaller --prefetch or --cache-bytes"
    )


class _Requests(Sampler[Request]):
    """The sampler of torch's DataLoader, which iterates over it anew for each `fetch`."""

    def __init__(self) -> None:
        self.current: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.current)


class _ReaderDataset(Dataset[Fetched | str]):
    """A reader as a torch dataset. Returns a TrainerError as its text: torch would wrap it in a traceback."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitem__(self, request: Request) -> Fetched | str:
        try:
            return self._reader.read(request)
        except TrainerError as error:
            return str(error)


def _identity(answer: Any) -> Any:
    return answer


def _start_worker(_: int) -> None:
    """Set up a new worker: it ignores stop signals, and ends with its rank."""
    # A stop signal reaches the whole process group, but the rank finishes its step first and may need data for that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_rank, daemon=True).start()


def _end_with_rank() -> None:
    rank = parent_process()
    assert rank is not None, "workers are children"
    connection.wait([rank.sentinel])
    os._exit(1)
