"""Readers of samples, in this process or in processes that read ahead.

Samples are read again after transient errors, replaced where broken, and transformed.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from trainer.config import Settings
from trainer.data.contract import BrokenSample, CropDraw, Fields, Indices, Split, Transform
from trainer.data.deals import Deal
from trainer.data.images import EncodedImages
from trainer.data.order import Choice
from trainer.errors import RankError, TrainerError
from trainer.processes import end_with_parent

_RETRY_SECONDS = (0.05, 0.5)
# Errors of a disk or network that may be gone at the next attempt.
_TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET, errno.ENOTCONN)
_CLOSE_SECONDS = 2.0  # that a worker which is no longer needed gets to finish what it reads


@dataclass(frozen=True)
class Request:
    """Asks for the samples at positions start .. start + count - 1, dealt by `deals`.

    This reader's next request starts `stride` positions later, so that it can prefetch; 0: it is not known.
    """

    start: int
    count: int
    stride: int = 0
    deals: tuple[Deal, ...] = ()


@dataclass(frozen=True)
class Fetched:
    """A batch, empty if no sample is left.

    Attributes:
        broken: the reasons of the broken samples that were asked for, by number.
        cache_use: see `Split.cache_use`.
    """

    fields: Fields
    broken: dict[int, str]
    cache_use: tuple[int, int] = (0, 0)

    def pin_memory(self) -> Fetched:
        """A copy in page-locked host memory."""
        return replace(self, fields={name: tensor.pin_memory() for name, tensor in self.fields.items()})


@dataclass(eq=False)
class Reader(Dataset[Fetched | str]):
    """Reads the batches of one process and prefetches for the next one. Picklable.

    Attributes:
        choice: the samples of a request.
        max_broken: more broken samples are an error.
        replaces: a broken sample is replaced by the next readable one by number, so that a resumed run does the same;
            else it is left out.
        crops: draws the parts of images that are decoded.
        broken: the reasons of the broken samples, by number.
    """

    split: Split
    choice: Choice
    transform: Transform
    max_broken: int
    replaces: bool = True
    crops: CropDraw | None = None
    broken: dict[int, str] = field(default_factory=dict, init=False)

    def read(self, request: Request) -> Fetched:
        """Read a batch. Raises TrainerError if too many samples are broken."""
        indices = chosen = self.choice(request.start, request.count, request.deals)
        while True:
            broken: dict[int, str] = {}
            if self.broken:
                chosen = np.array([self._replacement(index, broken) for index in indices.tolist()], dtype=np.int64)
            rows = np.flatnonzero(chosen >= 0)
            try:
                samples = self._read_patiently(chosen[rows], request.start + rows) if len(rows) else {}
                break
            except BrokenSample as error:
                self.broken[error.index] = str(error)
                if len(self.broken) > self.max_broken:
                    raise too_many_broken(self.max_broken, str(error)) from None
                if self.replaces and len(self.broken) == len(self.split):
                    raise RankError(f"none of the {len(self.split)} samples can be read; the last: {error}") from None
        fields = self.transform(samples, request.start + rows) if samples else {}
        if request.stride:
            self.split.expect(self.choice(request.start + request.stride, request.count, request.deals))
        return Fetched(fields, broken, self.split.cache_use())

    def __getitem__(self, request: Request) -> Fetched | str:
        """Read for torch's DataLoader; a TrainerError becomes its text, which torch would wrap in a traceback."""
        try:
            return self.read(request)
        except TrainerError as error:
            return str(error)

    def _replacement(self, index: int, broken: dict[int, str]) -> int:
        """The index, or if broken the next one not known to be; -1: leave it out. Adds to `broken`."""
        while index in self.broken:
            broken[index] = self.broken[index]
            if not self.replaces:
                return -1
            index = (index + 1) % len(self.split)
        return index

    def _read_patiently(self, indices: Indices, positions: Indices) -> Fields:
        read = self.split.read
        if self.crops is not None:
            assert isinstance(self.split, EncodedImages)
            read = functools.partial(self.split.read_crops, crops=self.crops(positions))
        for delay in _RETRY_SECONDS:
            try:
                return read(indices)
            except BrokenSample as error:
                cause: BaseException | None = error
                while cause is not None and not (isinstance(cause, OSError) and cause.errno in _TRANSIENT_ERRNOS):
                    cause = cause.__cause__
                if cause is None:
                    raise
            time.sleep(delay)
        return read(indices)


def too_many_broken(limit: int, reason: str) -> RankError:
    return RankError(f"{reason}; that is more than {limit}: repair the data or raise --max-broken-samples")


# --- processes --------------------------------------------------------------------------------------------------------


class Readers:
    """Answers requests in order: in this process, or in `count` processes that read ahead and take turns.

    They are forked from a fork server: this process has threads of CUDA, NCCL and gloo, locks, signal handlers, and
    sockets, which a forked worker would keep open after the rank's death, hiding it from peers.
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
            if self._pin:
                return (batch.pin_memory() for batch in batches)
            return batches
        others = multiprocessing.active_children()
        with self._explained():
            self._iterator = iter(self._loader)
        self._processes += [process for process in multiprocessing.active_children() if process not in others]
        return self._fetched()

    def _fetched(self) -> Iterator[Fetched]:
        while self._iterator is not None:
            with self._explained():
                answer = next(self._iterator, None)
            if answer is None:
                return
            if isinstance(answer, str):
                raise RankError(answer)
            yield answer

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Name a dead worker in place of what torch says."""
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            connection.wait([process.sentinel for process in self._processes], timeout=0.5)
            dead = [process for process in self._processes if process.exitcode is not None]
            if not dead:
                raise
            raise RankError(
                f"a reading process (pid {dead[0].pid}) ended with exit code {dead[0].exitcode}: what it printed tells "
                "why, or if that is nothing, host memory or shared memory (/dev/shm) ran out; use fewer --num-workers "
                "or a smaller --prefetch"
            ) from error

    def close(self) -> None:
        """Let torch end the workers, which waits for their current batch; kill those that take too long."""
        if self._loader is None:  # at the interpreter's end a generator may ask once more, when no thread can start
            return
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


def _start_worker(_: int) -> None:
    # A stop signal reaches the whole process group, but the rank finishes its step first and may need data for that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
