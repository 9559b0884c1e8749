"""Decoded row groups: the newest few are kept, and those that come next are decoded in the background."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_KEPT = 4
_AHEAD = 2  # of those kept, so that what is awaited never pushes out what is in use


class RowGroups(Generic[T]):
    """What `load` makes of each number, for one reading thread.

    Neither threads nor decoded groups go along to another process, be it by pickling or by a fork.
    """

    def __init__(self, load: Callable[[int], T]) -> None:
        self._load = load
        self._process = os.getpid()
        self._groups: OrderedDict[int, Future[T]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None

    def get(self, number: int) -> T:
        """The group of this number, waiting for it where it is being decoded. Raises whatever `load` raises."""
        if self._process != os.getpid():
            self._forget()
        future = self._groups.get(number)
        if future is None or future.cancel():  # not asked for, or still behind others in the queue: not worth the wait
            future = Future()
            self._keep(number, future)
            try:
                future.set_result(self._load(number))
            except BaseException:
                del self._groups[number]
                raise
        self._groups.move_to_end(number)
        try:
            return future.result()
        except BaseException:
            self._groups.pop(number, None)  # what failed once may succeed when it is asked for again
            raise

    def expect(self, numbers: Iterable[int]) -> None:
        """Begins to decode the first few of these, in their order."""
        if self._process != os.getpid():
            self._forget()
        for _, number in zip(range(_AHEAD), numbers, strict=False):
            if number in self._groups:
                self._groups.move_to_end(number)
                continue
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="row-groups")
            self._keep(number, self._thread.submit(self._load, number))

    def _keep(self, number: int, future: Future[T]) -> None:
        self._groups[number] = future
        while len(self._groups) > _KEPT:
            self._groups.popitem(last=False)[1].cancel()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._groups = OrderedDict()
        self._thread = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_load": self._load}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
