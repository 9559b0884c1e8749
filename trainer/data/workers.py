"""Who reads: this process, or worker processes that read ahead."""

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

# How long a worker may continue with what it reads when it is no longer needed, in seconds.
_PATIENCE = 2.0


class Readers(Protocol):
    """Answers requests in their order. `count` readers take turns: each gets every count-th request."""

    count: int

    def fetch(self, requests: Iterable[Request]) -> Iterator[Fetched]:
        """The batches of the requests, one after the other; those of an earlier call are given up.

        Raises TrainerError if too many samples are broken, or a reading process died.
        """
        ...

    def close(self) -> None: ...


def readers_for(reader: Reader, settings: Settings, device: torch.device, *, persistent: bool) -> Readers:
    """As many reading processes as the settings ask for; none reads in this one. Batches are pinned for CUDA alone.

    Those that are not `persistent` end when their requests are answered.
    """
    pin = settings.pin_memory and device.type == "cuda"
    if not settings.num_workers:
        return InProcess(reader, pin=pin)
    return Workers(reader, settings, pin=pin, persistent=persistent)


class InProcess:
    """Reads when it is asked, in this process."""

    count = 1

    def __init__(self, reader: Reader, *, pin: bool) -> None:
        self._reader = reader
        self._pin = pin

    def fetch(self, requests: Iterable[Request]) -> Iterator[Fetched]:
        for request in requests:
            fetched = self._reader.read(request)
            yield fetched.pin_memory() if self._pin else fetched

    def close(self) -> None:
        """Nothing is held."""


class Workers:
    """Processes that read ahead, through torch's DataLoader.

    They are forked from a fork server, never from this process: that has threads of CUDA, NCCL and gloo, locks, signal
    handlers, and sockets that a forked reader would keep open beyond the rank's death, unnoticed by its peers.
    """

    def __init__(self, reader: Reader, settings: Settings, *, pin: bool, persistent: bool) -> None:
        self.count = settings.num_workers
        self._processes: list[BaseProcess] = []
        self._requests = _Requests()
        self._iterator: Iterator[Fetched | str] | None = None
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["trainer.data.preload"])
        resource_tracker.ensure_running()  # whose start would unblock signals
        with _signals_blocked():
            forkserver.ensure_running()  # its imports take about a second, from now on
        self._loader: DataLoader[Fetched | str] | None = DataLoader(
            _Answers(reader),
            batch_size=None,
            sampler=self._requests,
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch,
            persistent_workers=persistent,
            pin_memory=pin,
            multiprocessing_context=context,
            collate_fn=_as_it_is,
            worker_init_fn=_begin,
            generator=torch.Generator(),  # torch's own is for what the seed decides
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
            raise self._explained(error) from error
        self._processes += [process for process in multiprocessing.active_children() if process not in others]
        return self._fetched()

    def close(self) -> None:
        """Ends all workers; returns when they are gone."""
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
                raise self._explained(error) from error
            if isinstance(answer, str):
                raise RankError(answer)
            yield answer

    def _end(self) -> None:
        """Lets torch end the workers, which waits for what they read; those that take too long are killed."""
        late = threading.Timer(_PATIENCE, self._kill)
        late.start()
        self._iterator = None  # ends the workers, unless a traceback still refers to it
        late.cancel()
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        while self._processes:
            self._processes.pop().join()

    def _explained(self, error: Exception) -> Exception:
        """The death of a worker as a line for a person; any other error as it is."""
        connection.wait([process.sentinel for process in self._processes], timeout=0.5)
        for process in self._processes:
            if process.exitcode is not None:
                return RankError(obituary(process.pid, process.exitcode))
        return error


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """What is started inside never gets the signals of a stop, and neither do its children, from the first moment on.

    A signal to the whole process group would end a reader that is just beginning, which the rank still waits for.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def obituary(pid: int | None, exitcode: int) -> str:
    """What a dead worker's exit code means to a person."""
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
    """What torch's DataLoader asks its workers for: it looks here again at each new start."""

    def __init__(self) -> None:
        self.current: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.current)


class _Answers(Dataset[Fetched | str]):
    """A reader in the shape that torch's DataLoader takes. An error that is meant for a person comes as its text."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitem__(self, request: Request) -> Fetched | str:
        try:
            return self._reader.read(request)
        except TrainerError as error:
            return str(error)


def _as_it_is(answer: Any) -> Any:
    return answer


def _begin(_: int) -> None:
    """In a new worker: it ends when its rank says so or is gone, not by a signal that is meant for the rank."""
    # A rank that is asked to stop, with its whole process group, finishes its step first and may need data for that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_rank, daemon=True).start()


def _end_with_rank() -> None:
    rank = parent_process()
    assert rank is not None, "workers are children"
    connection.wait([rank.sentinel])
    os._exit(1)
