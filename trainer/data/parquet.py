"""Parquet files: finding them, splitting off held-out rows, and reading row groups ahead in a thread."""

from __future__ import annotations

import importlib.util
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from trainer.config import Settings
from trainer.data.files import HELD_OUT_NAMES, require_data_dir
from trainer.errors import SettingsError, TrainerError

_HELD_OUT_ONE_IN = 10


class DamagedError(Exception):
    """A row group cannot be read; the message says why."""


@dataclass(frozen=True)
class RowSpan:
    """Rows `start` to `stop` - 1 of one row group."""

    path: Path
    group: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.path}, row group {self.group}"


@dataclass(frozen=True)
class ParquetFooter:
    """A Parquet file's footer: pyarrow's metadata and schema."""

    path: Path
    footer: Any
    schema: Any

    def spans(self) -> list[RowSpan]:
        """One span for each row group that is not empty."""
        rows = [self.footer.row_group(group).num_rows for group in range(self.footer.num_row_groups)]
        return [RowSpan(self.path, group, 0, count) for group, count in enumerate(rows) if count]


@dataclass(frozen=True)
class ParquetLayout:
    """The rows to train on, the held-out rows, and the files with them."""

    folder: Path
    train: tuple[RowSpan, ...]
    held_out: tuple[RowSpan, ...]
    files: tuple[ParquetFooter, ...]

    @property
    def schema(self) -> Any:
        """The schema of the first file; the others need only have the columns in use."""
        return self.files[0].schema

    def column(self, name: str, description: str, fits: Callable[[Any], bool]) -> str:
        """Choose a column that all files have: the one called `name`, or if that is empty the only one that fits.

        `fits` tests a pyarrow type, and `description` says in words what fits. Raises SettingsError if no column or
        several fit, and TrainerError if a file lacks the column.
        """
        from pyarrow import types

        fitting = [field.name for field in self.schema if fits(field.type)]
        available = _one_line(", ".join(f"{field.name} ({field.type})" for field in self.schema))
        if name and name not in fitting:
            raise SettingsError(f"{self.folder} has no column {name} with {description}; its columns are {available}")
        if not name and len(fitting) != 1:
            candidates = f"{len(fitting)} columns ({_one_line(', '.join(fitting))})" if fitting else "no column"
            raise SettingsError(
                f"{self.folder} has {candidates} with {description}; name one with --data-column out of {available}"
            )
        name = name or fitting[0]
        kind = self.schema.field(name).type
        for file in self.files:
            own_kind = file.schema.field(name).type if name in file.schema.names else None
            if own_kind is None or not fits(own_kind) or types.is_nested(own_kind) != types.is_nested(kind):
                raise TrainerError(f"{file.path} has no column {name} of type {kind}, as {self.files[0].path} has")
        return name


def layout(settings: Settings) -> ParquetLayout:
    """Find the Parquet files of --data-dir. Only their footers are read.

    They are train/*.parquet and val/*.parquet (or validation/, test/), or train*.parquet and val*.parquet as Hugging
    Face writes them, or any *.parquet. If no file is named as held out, every tenth row group is held out, or with
    fewer than ten of them the last tenth of the rows of each. Raises TrainerError for damaged or missing files.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise TrainerError("--data parquet is read with pyarrow: pip install 'gputui[train]'")
    folder = require_data_dir(settings, "*.parquet files")
    if (folder / "train").is_dir():
        train = sorted((folder / "train").glob("*.parquet"))
        others = [sorted((folder / name).glob("*.parquet")) for name in HELD_OUT_NAMES]
    elif train := sorted(folder.glob("train*.parquet")):
        others = [sorted(folder.glob(f"{name}*.parquet")) for name in HELD_OUT_NAMES]
    else:
        train, others = sorted(folder.glob("*.parquet")), []
    if not train:
        raise TrainerError(f"no *.parquet files in {folder} or {folder / 'train'}")
    held_out = next((paths for paths in others if paths), [])
    files = tuple(_file(path) for path in (*train, *held_out))
    train_spans = [span for file in files[: len(train)] for span in file.spans()]
    held_out_spans = [span for file in files[len(train) :] for span in file.spans()]
    if not held_out:
        train_spans, held_out_spans = _hold_out_tenth(train_spans)
    if not train_spans or not held_out_spans:
        raise TrainerError(f"the Parquet files in {folder} have too few rows to train on some and validate on others")
    return ParquetLayout(folder, tuple(train_spans), tuple(held_out_spans), files)


def read_rows(span: RowSpan, columns: Sequence[str]) -> Any:
    """Read columns of a span as a pyarrow table. Raises DamagedError."""
    import pyarrow
    from pyarrow import parquet

    try:
        # No pyarrow object is shared between calls or processes, and nothing is memory-mapped: a file that is truncated
        # while it is read raises an error instead of SIGBUS.
        with parquet.ParquetFile(span.path, page_checksum_verification=True) as file:
            table = file.read_row_group(span.group, columns=list(columns), use_threads=False)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DamagedError(_one_line(str(error))) from error
    if table.num_columns < len(columns):
        raise DamagedError(f"it has no longer all of the columns {', '.join(columns)}")
    if table.num_rows < span.stop:
        raise DamagedError(f"it has {table.num_rows} rows and had at least {span.stop} at first")
    return table.slice(span.start, span.stop - span.start)


def unreadable(span: RowSpan, error: DamagedError) -> TrainerError:
    """The error for a row group that must be readable before training starts."""
    return TrainerError(f"{span} cannot be read: {error}; remove the file or fetch it again")


def _file(path: Path) -> ParquetFooter:
    import pyarrow
    from pyarrow import parquet

    try:
        footer = parquet.read_metadata(path)
        rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        if min(rows, default=0) < 0 or sum(rows) != footer.num_rows:
            raise ValueError(f"its row groups have {sum(rows)} rows, and the file {footer.num_rows}")
        return ParquetFooter(path, footer, footer.schema.to_arrow_schema())
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = _one_line(str(error))
        raise TrainerError(f"{path} is damaged or no Parquet file; remove it or fetch it again: {reason}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _hold_out_tenth(spans: Sequence[RowSpan]) -> tuple[list[RowSpan], list[RowSpan]]:
    if len(spans) >= _HELD_OUT_ONE_IN:
        held_out = list(spans[_HELD_OUT_ONE_IN - 1 :: _HELD_OUT_ONE_IN])
        return [span for number, span in enumerate(spans, 1) if number % _HELD_OUT_ONE_IN], held_out
    cuts = [span.stop - max(1, span.stop // _HELD_OUT_ONE_IN) for span in spans]
    train = [RowSpan(span.path, span.group, 0, cut) for span, cut in zip(spans, cuts, strict=True) if cut]
    return train, [RowSpan(s.path, s.group, cut, s.stop) for s, cut in zip(spans, cuts, strict=True) if cut]


T = TypeVar("T")

_CACHED = 4
_PREFETCHED = 2  # less than _CACHED, so that prefetching never evicts the group in use


class RowGroups(Generic[T]):
    """A cache of the last few row groups, which `load` decodes by number; prefetches in a background thread.

    For use by one thread. Starts empty in another process, whether it is pickled or forked.
    """

    def __init__(self, load: Callable[[int], T]) -> None:
        self._load = load
        self._process = os.getpid()
        self._groups: OrderedDict[int, Future[T]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None

    def get(self, number: int) -> T:
        """The row group of this number; waits if it is being decoded. Raises what `load` raises."""
        if self._process != os.getpid():
            self._reset()
        future = self._groups.get(number)
        if future is None or future.cancel():  # not requested, or still queued: faster to load it in this thread
            future = Future()
            self._insert(number, future)
            try:
                future.set_result(self._load(number))
            except BaseException:
                del self._groups[number]
                raise
        self._groups.move_to_end(number)
        try:
            return future.result()
        except BaseException:
            self._groups.pop(number, None)  # so that the next call tries again
            raise

    def expect(self, numbers: Iterable[int]) -> None:
        """Start decoding the first few of these in the background."""
        if self._process != os.getpid():
            self._reset()
        for _, number in zip(range(_PREFETCHED), numbers, strict=False):
            if number in self._groups:
                self._groups.move_to_end(number)
                continue
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="row-groups")
            self._insert(number, self._thread.submit(self._load, number))

    def _insert(self, number: int, future: Future[T]) -> None:
        self._groups[number] = future
        while len(self._groups) > _CACHED:
            self._groups.popitem(last=False)[1].cancel()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._groups = OrderedDict()
        self._thread = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_load": self._load}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
