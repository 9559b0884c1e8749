"""Rows of Parquet files: finding them, splitting off held-out ones, and decoding row groups ahead in a thread."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Indices, Split
from trainer.data.files import HELD_OUT_NAMES, Concatenation, require_data_dir
from trainer.errors import SettingsError, TrainerError, one_line

_HELD_OUT_ONE_IN = 10
_CACHED = 4  # decoded row groups
_PREFETCHED = 2  # less than _CACHED, so that prefetching never evicts the group in use

T = TypeVar("T")


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

    def read(self, *columns: str) -> Any:
        """These columns as a pyarrow table. Raises DamagedError."""
        import pyarrow
        from pyarrow import parquet

        try:
            # No pyarrow object is shared between calls or processes, and nothing is memory-mapped: a file that is
            # truncated while it is read raises an error instead of SIGBUS.
            with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                table = file.read_row_group(self.group, columns=list(columns), use_threads=False)
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise DamagedError(one_line(error)) from error
        if table.num_columns < len(columns) or table.num_rows < self.stop:
            raise DamagedError(f"it has no longer {self.stop} rows of the columns {', '.join(columns)}")
        return table.slice(self.start, self.stop - self.start)


def required(read: Callable[[RowSpan], T], span: RowSpan) -> T:
    """Read a row group that must be readable before training starts. Raises TrainerError."""
    try:
        return read(span)
    except DamagedError as error:
        raise TrainerError(f"{span} cannot be read: {error}; remove the file or fetch it again") from error


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
        available = " ".join(", ".join(f"{field.name} ({field.type})" for field in self.schema).split())
        if name and name not in fitting:
            raise SettingsError(f"{self.folder} has no column {name} with {description}; its columns are {available}")
        if not name and len(fitting) != 1:
            raise SettingsError(
                f"{self.folder} has {len(fitting) or 'no'} columns with {description}; "
                f"name one with --data-column out of {available}"
            )
        name = name or fitting[0]
        kind = self.schema.field(name).type
        for file in self.files:
            own = file.schema.field(name).type if name in file.schema.names else None
            if own is None or not fits(own) or types.is_nested(own) != types.is_nested(kind):
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
    pattern = "{}/*.parquet" if (folder / "train").is_dir() else "{}*.parquet"
    held_out: list[Path] = []
    if train := sorted(folder.glob(pattern.format("train"))):
        named = (sorted(folder.glob(pattern.format(name))) for name in HELD_OUT_NAMES)
        held_out = next(filter(None, named), [])
    else:
        train = sorted(folder.glob("*.parquet"))
    if not train:
        raise TrainerError(f"no *.parquet files in {folder} or {folder / 'train'}")
    files = tuple(map(_footer, (*train, *held_out)))
    train_spans = [span for file in files[: len(train)] for span in file.spans()]
    held_out_spans = [span for file in files[len(train) :] for span in file.spans()]
    if not held_out and len(train_spans) >= _HELD_OUT_ONE_IN:
        held_out_spans = train_spans[_HELD_OUT_ONE_IN - 1 :: _HELD_OUT_ONE_IN]
        del train_spans[_HELD_OUT_ONE_IN - 1 :: _HELD_OUT_ONE_IN]
    elif not held_out:
        cuts = [(span, span.stop - max(1, span.stop // _HELD_OUT_ONE_IN)) for span in train_spans if span.stop > 1]
        train_spans = [RowSpan(span.path, span.group, 0, cut) for span, cut in cuts]
        held_out_spans = [RowSpan(span.path, span.group, cut, span.stop) for span, cut in cuts]
    if not train_spans or not held_out_spans:
        raise TrainerError(f"the Parquet files in {folder} have too few rows to train on some and validate on others")
    return ParquetLayout(folder, tuple(train_spans), tuple(held_out_spans), files)


def _footer(path: Path) -> ParquetFooter:
    import pyarrow
    from pyarrow import parquet

    try:
        footer = parquet.read_metadata(path)
        return ParquetFooter(path, footer, footer.schema.to_arrow_schema())
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        problem = one_line(error)
        raise TrainerError(f"{path} is damaged or no Parquet file; remove it or fetch it again: {problem}") from error


class RowGroups(Split, Generic[T]):
    """Samples in row groups, which `load` decodes whole: the last few are kept, and the next ones decoded in a thread.

    `samples` has how many samples each span holds. For use by one thread; pickles without what is decoded.
    """

    def __init__(self, spans: Sequence[RowSpan], samples: Sequence[int], load: Callable[[RowSpan], T]) -> None:
        self._spans = tuple(spans)
        self._parts = Concatenation(samples)
        self.blocks = self._parts.lengths
        self._load = load
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_decoded", "_threads")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._decoded: OrderedDict[int, Future[T]] = OrderedDict()
        # One for the group that is waited for, one for those ahead.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="row-groups")

    def __len__(self) -> int:
        return len(self._parts)

    def expect(self, indices: Indices) -> None:
        """Start decoding the first few row groups of these samples."""
        self._start(self._parts.parts_of(indices)[:_PREFETCHED])

    def groups(self, indices: Indices) -> Iterator[tuple[RowSpan, T, npt.NDArray[np.intp], Indices]]:
        """Group samples by row group: its span and content, the rows of `indices`, their samples' offsets in it.

        Raises BrokenSample for a row group that is damaged.
        """
        upcoming = self._parts.parts_of(indices)
        for number, (part, rows, offsets) in enumerate(self._parts.group(indices)):
            self._start(upcoming[number : number + 2])
            try:
                content = self._decoded[part].result()
            except DamagedError as error:
                del self._decoded[part]  # so that the next call tries again
                raise BrokenSample(int(indices[rows[0]]), str(self._spans[part]), str(error)) from error
            yield self._spans[part], content, rows, offsets

    def _start(self, parts: Sequence[int]) -> None:
        for part in parts:
            if part not in self._decoded:
                self._decoded[part] = self._threads.submit(self._load, self._spans[part])
            self._decoded.move_to_end(part)
        while len(self._decoded) > _CACHED:
            self._decoded.popitem(last=False)[1].cancel()
