"""Batches for ranges of positions: read again after transient errors, replaced where broken, and transformed."""

from __future__ import annotations

import atexit
import dataclasses
import errno
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Indices, Split, Transform
from trainer.data.order import Choice, Deal
from trainer.errors import RankError, TrainerError
from trainer.preparing.prepare import end_with_parent

_RETRY_SECONDS = (0.05, 0.5)
# Errors of a disk or network that may be gone at the next attempt.
_TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET, errno.ENOTCONN)
_CLOSE_SECONDS = 2.0  # that a worker which is no longer needed gets to finish what it reads


@dataclass(frozen=True)
class Request:
    """Asks for the samples at positions start .. start + count - 1, dealt by `deals`.

    `next_start` is where this reader's next request starts, so that it can prefetch; None if there is none.
    """

    start: int
    count: int
    next_start: int | None = None
    deals: tuple[Deal, ...] = ()


@dataclass(frozen=True)
class Fetched:
    """A batch, empty if no sample is left, and the reasons of the broken samples that were asked for, by number."""

    fields: Fields
    broken: dict[int, str]

    def pin_memory(self) -> Fetched:
        """A copy in page-locked host memory."""
        return dataclasses.replace(self, fields={name: tensor.pin_memory() for name, tensor in self.fields.items()})


class Reader(Dataset[Fetched | str]):
    """Reads the batches of one process and prefetches for the next one. Picklable.

    A broken sample is replaced by the next readable one by number, so that a resumed run does the same; without
    `replace` it is left out. More than `max_broken` of them are an error.
    """

    def __init__(
        self, split: Split, choice: Choice, transform: Transform, *, max_broken: int, replace: bool = True
    ) -> None:
        self._split = split
        self._choice = choice
        self._transform = transform
        self._max_broken = max_broken
        self._replace = replace
        self._broken: dict[int, str] = {}

    def read(self, request: Request) -> Fetched:
        """Read a batch. Raises TrainerError if too many samples are broken."""
        samples, rows, broken = self._take(self._choice(request.start, request.count, request.deals))
        fields = self._transform(samples, request.start + rows) if samples else {}
        if request.next_start is not None:
            self._split.expect(self._choice(request.next_start, request.count, request.deals))
        return Fetched(fields, broken)

    def __getitem__(self, request: Request) -> Fetched | str:
        """Read for torch's DataLoader; a TrainerError becomes its text, which torch would wrap in a traceback."""
        try:
            return self.read(request)
        except TrainerError as error:
            return str(error)

    def _take(self, indices: Indices) -> tuple[Fields, Indices, dict[int, str]]:
        """The samples, which of the indices they are for, and the broken ones among those asked for."""
        while True:
            broken: dict[int, str] = {}
            chosen = indices
            if self._broken:
                chosen = np.array([self._replacement(index, broken) for index in indices.tolist()], dtype=np.int64)
            rows = np.flatnonzero(chosen >= 0)
            if not len(rows):
                return {}, rows, broken
            try:
                return self._read_patiently(chosen[rows]), rows, broken
            except BrokenSample as error:
                self._broken[error.index] = str(error)
                if len(self._broken) > self._max_broken:
                    raise too_many_broken(self._max_broken, str(error)) from None
                if self._replace and len(self._broken) == len(self._split):
                    raise RankError(f"none of the {len(self._split)} samples can be read; the last: {error}") from None

    def _replacement(self, index: int, broken: dict[int, str]) -> int:
        """The index, or if broken the next one not known to be; -1: leave it out. Adds to `broken`."""
        while index in self._broken:
            broken[index] = self._broken[index]
            if not self._replace:
                return -1
            index = (index + 1) % len(self._split)
        return index

    def _read_patiently(self, indices: Indices) -> Fields:
        for delay in _RETRY_SECONDS:
            try:
                return self._split.read(indices)
            except BrokenSample as error:
                if not _is_transient(error):
                    raise
            time.sleep(delay)
        return self._split.read(indices)


def _is_transient(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is transient."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
            return True
        error = error.__cause__
    return False


def too_many_broken(limit: int, reason: str) -> RankError:
    """The error for more broken samples than --max-broken-samples; `reason` is that of the last one."""
    return RankError(f"{reason}; that is more than {limit}: repair the data or raise --max-broken-samples")


# --- processes --------------------------------------------------------------------------------------------------------


class Readers:
    """Answers requests in order: in this process, or in `count` processes that read ahead and take turns.

    Each of them gets every count-th request. They are forked from a fork server, never from this process. This process
    has threads of CUDA, NCCL and gloo, locks, signal handlers, and sockets, which a forked worker would keep open after
    the rank's death, hiding it from peers.
    """

    def __init__(self, reader: Reader, settings: Settings, device: torch.device) -> None:
        self.count = max(1, settings.num_workers)
        self._processes: list[BaseProcess] = []
        self._requests: Iterable[Request] = ()
        self._iterator: Iterator[Fetched | str] | None = None
        self._reader = reader
        self._pin = settings.pin_memory and device.type == "cuda"
        self._loader: DataLoader[Fetched | str] | None = None
        if settings.num_workers:
            context = torch.multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            resource_tracker.ensure_running()  # before signals are blocked: starting it unblocks them
            # Blocked for the server, and so for its children: a signal to the process group is for the rank, which
            # finishes its step, and would end a worker without handlers yet.
            previous = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
            forkserver.ensure_running()  # early: its imports take about a second
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            self._loader = DataLoader(
                reader,
                batch_size=None,
                sampler=self,  # iterated over anew for each `fetch`
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch,
                persistent_workers=True,
                pin_memory=self._pin,
                multiprocessing_context=context,
                worker_init_fn=_start_worker,
                generator=torch.Generator(),  # else the loader would draw from torch's global one, which --seed governs
            )
            atexit.register(self.close)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def fetch(self, requests: Iterable[Request]) -> Iterator[Fetched]:
        """Yield the batches of the requests. Ends the iterator of an earlier call.

        Raises TrainerError if too many samples are broken, or a reading process died.
        """
        self._requests = requests
        if self._loader is None:
            batches = map(self._reader.read, requests)
            return (batch.pin_memory() for batch in batches) if self._pin else batches
        others = multiprocessing.active_children()
        try:
            self._iterator = iter(self._loader)
        except (RuntimeError, OSError, EOFError) as error:
            raise self._explain(error) from error
        self._processes += [process for process in multiprocessing.active_children() if process not in others]
        return self._fetched()

    def _fetched(self) -> Iterator[Fetched]:
        while self._iterator is not None:
            try:
                answer = next(self._iterator)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                raise self._explain(error) from error
            if isinstance(answer, str):
                raise RankError(answer)
            yield answer

    def close(self) -> None:
        """Let torch end the workers, which waits for their current batch; kill those that take too long."""
        atexit.unregister(self.close)
        killer = threading.Timer(_CLOSE_SECONDS, self._kill)
        killer.start()
        self._iterator = self._loader = None  # ends the workers, unless a traceback still refers to it
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
            if process.exitcode is not None and process.exitcode < 0:
                return RankError(
                    f"a reading process (pid {process.pid}) was killed by {signal.Signals(-process.exitcode).name}: "
                    "mostly host memory or shared memory (/dev/shm) ran out; use fewer --num-workers or a smaller "
                    "--prefetch"
                )
            if process.exitcode is not None:
                return RankError(f"a reading process (pid {process.pid}) ended; what it printed tells why")
        return error


def _start_worker(_: int) -> None:
    """Set up a new worker: it ignores stop signals, and ends with its rank."""
    # A stop signal reaches the whole process group, but the rank finishes its step first and may need data for that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
