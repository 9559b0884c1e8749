"""Rows of Parquet files: encoded images and their classes, text, or tokens; decoded ahead in threads."""

from __future__ import annotations

import contextlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Images, Indices, Split, Text
from trainer.data.files import (
    HELD_OUT_NAMES,
    HELD_OUT_ONE_IN,
    Concatenation,
    SamplesOfPart,
    TokenCount,
    cached_token_counts,
    require_data_dir,
)
from trainer.data.images import EncodedImage, EncodedImages, agree_on_shape, held_out_share
from trainer.data.text import BYTES, read_windows, window_count
from trainer.errors import SettingsError, TrainerError, one_line
from trainer.preparing.documents import open_parquet

_PREFETCHED = 2
_LEAST_CACHED = 3  # decoded row groups: more than _PREFETCHED, so that prefetching never evicts the group in use
_MAX_CLASSES = 1_000_000  # a larger number is an id, not a class

# Columns that can be used, by pyarrow's names of their types.
_INTEGERS = r"u?int\d+"
_IMAGES = r"(large_)?binary|struct<([^<>]*, )?bytes: (large_)?binary[, >].*"
_TOKENS = rf"(large_|fixed_size_)?list<[^<>]*: {_INTEGERS}( not null)?>(\[\d+\])?"
_TEXT = r"(large_)?string"

T = TypeVar("T")


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
        """These columns as a pyarrow table. Raises OSError, ValueError and ArrowException."""
        from pyarrow import parquet

        # No pyarrow object is shared between calls or processes, and nothing is memory-mapped: a file that is truncated
        # while it is read raises an error instead of SIGBUS.
        with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
            table = file.read_row_group(self.group, columns=list(columns), use_threads=False)
        if table.num_columns < len(columns) or table.num_rows < self.stop:
            raise ValueError(f"it has no longer {self.stop} rows of the columns {', '.join(columns)}")
        return table.slice(self.start, self.stop - self.start)


@dataclass(frozen=True)
class ParquetLayout:
    """The rows to train on, the held-out rows, and the pyarrow schema of each file."""

    folder: Path
    train: tuple[RowSpan, ...]
    held_out: tuple[RowSpan, ...]
    schemas: dict[Path, Any]

    @property
    def schema(self) -> Any:
        """The schema of the first file; the others need only have the columns in use."""
        return next(iter(self.schemas.values()))

    def column(self, name: str, description: str, fitting: str) -> str:
        """Choose a column that all files have: the one called `name`, or if that is empty the only one that fits.

        `fitting` is a pattern of types, and `description` says in words what fits. Raises SettingsError if no column or
        several fit, and TrainerError if a file lacks the column.
        """
        names = [field.name for field in self.schema if re.fullmatch(fitting, str(field.type))]
        available = " ".join(", ".join(f"{field.name} ({field.type})" for field in self.schema).split())
        if name and name not in names:
            raise SettingsError(f"{self.folder} has no column {name} with {description}; its columns are {available}")
        if not name and len(names) != 1:
            raise SettingsError(
                f"{self.folder} has {len(names) or 'no'} columns with {description}; "
                f"name one with --data-column out of {available}"
            )
        name = name or names[0]
        kind = str(self.schema.field(name).type)
        for path, schema in self.schemas.items():
            file_type = ""
            if name in schema.names:
                file_type = str(schema.field(name).type)
            if not re.fullmatch(fitting, file_type) or file_type.startswith("struct") != kind.startswith("struct"):
                raise TrainerError(f"{path} has no column {name} of type {kind}, as {next(iter(self.schemas))} has")
        return name


def layout(settings: Settings) -> ParquetLayout:
    """Find the Parquet files of --data-dir. Only their footers are read.

    They are train/*.parquet and val/*.parquet (or validation/, test/), or train*.parquet and val*.parquet as Hugging
    Face writes them, or any *.parquet. If no file is named as held out, every tenth row group is held out, or with
    fewer than ten of them the last tenth of the rows of each. Raises TrainerError for damaged or missing files.
    """
    folder = require_data_dir(settings, "*.parquet files")
    pattern = "{}/*.parquet" if (folder / "train").is_dir() else "{}*.parquet"
    held_out_files = (sorted(folder.glob(pattern.format(name))) for name in HELD_OUT_NAMES)
    train = sorted(folder.glob(pattern.format("train")))
    held_out = next(filter(None, held_out_files), [])
    if not train:
        train = sorted(folder.glob("*.parquet"))
        held_out = []
    if not train:
        raise TrainerError(f"no *.parquet files in {folder} or {folder / 'train'}")
    schemas: dict[Path, Any] = {}
    spans: dict[Path, list[RowSpan]] = {}
    for path in (*train, *held_out):
        with open_parquet(path) as file:
            rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            schemas[path] = file.schema_arrow
        spans[path] = [RowSpan(path, group, 0, count) for group, count in enumerate(rows) if count]
    train_spans = [span for path in train for span in spans[path]]
    held_out_spans = [span for path in held_out for span in spans[path]]
    if not held_out and len(train_spans) >= HELD_OUT_ONE_IN:
        held_out_spans = train_spans[HELD_OUT_ONE_IN - 1 :: HELD_OUT_ONE_IN]
        del train_spans[HELD_OUT_ONE_IN - 1 :: HELD_OUT_ONE_IN]
    elif not held_out:
        cuts = [(span, span.stop - max(1, span.stop // HELD_OUT_ONE_IN)) for span in train_spans if span.stop > 1]
        train_spans = [RowSpan(span.path, span.group, 0, cut) for span, cut in cuts]
        held_out_spans = [RowSpan(span.path, span.group, cut, span.stop) for span, cut in cuts]
    if not train_spans or not held_out_spans:
        raise TrainerError(f"the Parquet files in {folder} have too few rows to train on some and validate on others")
    return ParquetLayout(folder, tuple(train_spans), tuple(held_out_spans), schemas)


class RowGroups(Split, Generic[T]):
    """Samples in row groups, which `load` decodes whole: the newest are kept, and the next ones decoded in a thread.

    `samples` has how many samples each span holds; `cache_bytes` are kept, but at least what is in use. For use by one
    thread; pickles without what is decoded.
    """

    def __init__(
        self, spans: Sequence[RowSpan], samples: Sequence[int], load: Callable[[RowSpan], T], cache_bytes: int
    ) -> None:
        self._spans = tuple(spans)
        self._parts = Concatenation(samples)
        self.blocks = self._parts.lengths
        self._load = load
        self._cache_bytes = cache_bytes
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_decoded", "_sizes", "_threads")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._decoded: OrderedDict[int, Future[T]] = OrderedDict()
        self._sizes: dict[int, int] = {}  # in bytes, of those that were used
        self._kept_bytes = 0
        self._looked_up = self._hits = 0  # samples, since `cache_use`
        # One for the group that is waited for, one for those ahead.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="row-groups")

    def __len__(self) -> int:
        return len(self._parts)

    def bytes_of(self, content: T) -> int:
        """The memory of a decoded row group."""
        raise NotImplementedError

    def cache_use(self) -> tuple[int, int]:
        use = (self._looked_up, self._hits)
        self._looked_up = self._hits = 0
        return use

    def expect(self, indices: Indices) -> None:
        """Start decoding the first few row groups of these samples."""
        self._start(self._parts.parts_of(indices)[:_PREFETCHED])

    def groups(self, indices: Indices) -> Iterator[SamplesOfPart[RowSpan, T]]:
        """Group samples by row group.

        Raises BrokenSample for a row group that is damaged.
        """
        from pyarrow import ArrowException

        upcoming = self._parts.parts_of(indices)
        for number, (part, rows, offsets) in enumerate(self._parts.group(indices)):
            self._start(upcoming[number : number + 2])
            try:
                content = self._decoded[part].result()
            except (OSError, ValueError, ArrowException) as error:
                del self._decoded[part]  # so that the next call tries again
                raise BrokenSample(int(indices[rows[0]]), str(self._spans[part]), error) from error
            self._keep(part, content, len(rows))
            yield SamplesOfPart(self._spans[part], content, rows, offsets)

    def _start(self, parts: Sequence[int]) -> None:
        for part in parts:
            if part not in self._decoded:
                self._decoded[part] = self._threads.submit(self._load, self._spans[part])
            self._decoded.move_to_end(part)

    def _keep(self, part: int, content: T, samples: int) -> None:
        """Count the use of a row group, and drop those that were not used for the longest time if there are too many.

        One that was decoded for this request alone, if in advance, was not in the cache.
        """
        self._looked_up += samples
        if part in self._sizes:
            self._hits += samples
            return
        self._sizes[part] = self.bytes_of(content)
        self._kept_bytes += self._sizes[part]
        while self._kept_bytes > self._cache_bytes and len(self._decoded) > _LEAST_CACHED:
            dropped, decoding = self._decoded.popitem(last=False)
            decoding.cancel()
            self._kept_bytes -= self._sizes.pop(dropped, 0)


# --- images -----------------------------------------------------------------------------------------------------------

_Encoded = tuple[Any, npt.NDArray[np.int64]]  # images, as a pyarrow column, and their classes


class ImageRows(RowGroups[_Encoded], EncodedImages):
    """One sample per row."""

    def __init__(
        self,
        spans: Sequence[RowSpan],
        load: Callable[[RowSpan], _Encoded],
        classes: int,
        settings: Settings,
        *,
        middle_share: float,
    ) -> None:
        super().__init__(spans, [span.stop - span.start for span in spans], load, settings.cache_bytes)
        self.size = settings.image_size
        self.middle_share = middle_share
        self._classes = classes

    def bytes_of(self, content: _Encoded) -> int:
        return sum(int(column.nbytes) for column in content)

    def encoded(self, indices: Indices) -> tuple[Sequence[EncodedImage], npt.NDArray[np.int64]]:
        images = [EncodedImage(b"", "")] * len(indices)
        labels = np.empty(len(indices), dtype=np.int64)
        for span, (contents, classes), rows, offsets in self.groups(indices):
            labels[rows] = classes[offsets]
            for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
                where = f"{span}, row {span.start + offset}"
                if not 0 <= labels[row] < self._classes:
                    raise BrokenSample(int(indices[row]), where, f"its class is none of 0 .. {self._classes - 1}")
                images[row] = EncodedImage(contents[offset].as_py() or b"", where)
        return images, labels


def parquet_images(settings: Settings) -> Images:
    """The rows of --data-dir's Parquet files: an image (bytes of a file, or a struct with them) and a whole number.

    Names of the classes are those that Hugging Face's `datasets` left in the files; without them the classes are
    numbered up to the largest that occurs. Raises TrainerError if there is no such column or no image can be read.
    """
    files = layout(settings)
    image = files.column(settings.data_column, "images (binary, or a struct with bytes)", _IMAGES)
    label = files.column(settings.label_column, "classes as whole numbers", _INTEGERS)
    load = partial(_load_images, image, str(files.schema.field(image).type).startswith("struct"), label)
    try:
        features = json.loads((files.schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):  # not written by `datasets`, or not as a class
        largest = max(_largest(label, span) for span in files.train + files.held_out)
        if largest >= _MAX_CLASSES:
            raise TrainerError(
                f"{files.folder} has {largest} in column {label}: that is no class; name one with --label-column"
            ) from None
        classes = tuple(map(str, range(largest + 1)))
    train = ImageRows(files.train, load, len(classes), settings, middle_share=1.0)
    share = held_out_share(settings.image_size)
    held_out = ImageRows(files.held_out, load, len(classes), settings, middle_share=share)
    return Images(train, held_out, agree_on_shape(train, held_out, str(files.train[0])), classes)


def _largest(label: str, span: RowSpan) -> int:
    """The largest class of a row group; 0 if it is damaged, so that its samples are broken when they are read."""
    from pyarrow import ArrowException, compute

    with contextlib.suppress(OSError, ValueError, ArrowException):
        return int(compute.max(span.read(label)[label]).as_py() or 0)
    return 0


def _load_images(image: str, in_struct: bool, label: str, span: RowSpan) -> _Encoded:
    import pyarrow
    from pyarrow import compute

    column = f"{image}.bytes" if in_struct else image
    table = span.read(column, label)
    images = table.column(image)
    if in_struct:
        images = compute.struct_field(images, "bytes")
    labels = compute.fill_null(compute.cast(table.column(label), pyarrow.int64()), -1)
    return images, labels.to_numpy()


# --- text -------------------------------------------------------------------------------------------------------------


class TokenRows(RowGroups[npt.NDArray[Any]]):
    """Windows of the tokens in each span, of which `counts` has the numbers; no window crosses the end of its span."""

    def __init__(
        self,
        spans: Sequence[RowSpan],
        counts: Sequence[TokenCount],
        load: Callable[[RowSpan], npt.NDArray[Any]],
        *,
        vocabulary: int,
        settings: Settings,
    ) -> None:
        context = settings.context
        super().__init__(spans, [window_count(count.tokens, context) for count in counts], load, settings.cache_bytes)
        self._context = context
        self._vocabulary = vocabulary

    def bytes_of(self, content: npt.NDArray[Any]) -> int:
        return content.nbytes

    def read(self, indices: Indices) -> Fields:
        windows = read_windows(self.groups(indices), indices, self._context, self._context, self._vocabulary)
        return {"tokens": windows}


def parquet_text(settings: Settings) -> Text:
    """A column of --data-dir's Parquet files: lists of tokens, else strings, whose UTF-8 bytes are the tokens.

    How many tokens each row group has is not in the files, so all are read once, and the counts are cached.
    """
    from pyarrow import ArrowException

    files = layout(settings)
    context = settings.context
    candidates = [field for field in files.schema if settings.data_column in ("", field.name)]
    has_tokens = any(re.fullmatch(_TOKENS, str(field.type)) for field in candidates)
    if has_tokens:
        name = files.column(settings.data_column, "lists of tokens", _TOKENS)
        load = partial(_load_tokens, name)
    else:
        name = files.column(settings.data_column, "text or lists of tokens", _TEXT)
        load = partial(_load_text, name)
    spans = files.train + files.held_out
    cut = len(files.train)

    def count(number: int) -> TokenCount:
        try:
            tokens = load(spans[number])
        except (OSError, ValueError, ArrowException) as error:
            problem = f"cannot be read: {one_line(error)}; remove the file or fetch it again"
            raise TrainerError(f"{spans[number]} {problem}") from error
        return TokenCount(len(tokens), int(tokens.max(initial=0)))

    sources = [(span.path, f"{name}:{span.group}:{span.start}:{span.stop}") for span in spans]
    counts = cached_token_counts(files.folder, sources, count)
    vocabulary = BYTES
    if has_tokens:
        vocabulary = 1 + max(count.largest for count in counts)
    train = TokenRows(files.train, counts[:cut], load, vocabulary=vocabulary, settings=settings)
    held_out = TokenRows(files.held_out, counts[cut:], load, vocabulary=vocabulary, settings=settings)
    if not len(train) or not len(held_out):
        raise TrainerError(
            f"{files.folder}: its row groups have at most {max(count.tokens for count in counts)} tokens in column "
            f"{name}, too few for --context {context} in both training and validation"
        )
    return Text(train=train, held_out=held_out, context=context, vocabulary=vocabulary)


def _load_tokens(column: str, span: RowSpan) -> npt.NDArray[Any]:
    """The lists of a span, concatenated; null rows are skipped."""
    from pyarrow import compute

    tokens = compute.list_flatten(span.read(column).column(column))
    if tokens.null_count:
        raise ValueError(f"{tokens.null_count} tokens have no value")
    return np.asarray(tokens.to_numpy())


def _load_text(column: str, span: RowSpan) -> npt.NDArray[Any]:
    """The strings of a span, joined by newlines, as uint8; null rows are skipped."""
    import pyarrow
    from pyarrow import compute

    texts = span.read(column).column(column).drop_null().cast(pyarrow.large_binary()).combine_chunks()
    one_list = pyarrow.LargeListArray.from_arrays(pyarrow.array([0, len(texts)], pyarrow.int64()), texts)
    joined = compute.binary_join(one_list, pyarrow.scalar(b"\n", pyarrow.large_binary()))
    return np.frombuffer(joined[0].as_buffer(), dtype=np.uint8)
