"""Encoded images and their classes, text, or tokens in the rows of Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Images, Indices, Text
from trainer.data.files import TokenCount, cached_token_counts
from trainer.data.images import Shape, UndecodableError, decode, first_shape, require_pillow
from trainer.data.parquet import DamagedError, ParquetLayout, RowGroups, RowSpan, layout, required
from trainer.data.text import BYTES, read_windows, window_count
from trainer.errors import TrainerError

_MAX_CLASSES = 1_000_000
_NO_LABEL = -1  # stands for null

_Encoded = tuple[Any, npt.NDArray[np.int64]]  # images, as a pyarrow column, and their classes


# --- images -----------------------------------------------------------------------------------------------------------


class ImageRows(RowGroups[_Encoded]):
    """One sample per row."""

    def __init__(
        self, spans: Sequence[RowSpan], load: Callable[[RowSpan], _Encoded], size: int, shape: Shape, classes: int
    ) -> None:
        """`size` is the side that images are resized to (0: not resized), and `shape` the resulting shape of each."""
        super().__init__(spans, [span.stop - span.start for span in spans], load)
        self._size = size
        self._shape = shape
        self._classes = classes

    def read(self, indices: Indices) -> Fields:
        images = torch.empty((len(indices), *self._shape), dtype=torch.uint8)
        labels = np.empty(len(indices), dtype=np.int64)
        for span, (contents, classes), rows, offsets in self.groups(indices):
            labels[rows] = classes[offsets]
            for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
                try:
                    images[row] = self._decode(contents[offset].as_py(), int(labels[row]))
                except UndecodableError as error:
                    where = f"{span}, row {span.start + offset}"
                    raise BrokenSample(int(indices[row]), where, str(error)) from error
        return {"image": images, "label": torch.from_numpy(labels)}

    def _decode(self, content: bytes | None, label: int) -> Tensor:
        if content is None:
            raise UndecodableError("it has no image")
        if not 0 <= label < self._classes:
            problem = "it has no class" if label == _NO_LABEL else f"its class is {label}"
            raise UndecodableError(f"{problem}; classes are 0 .. {self._classes - 1}")
        return decode(content, self._size, self._shape)


def parquet_images(settings: Settings) -> Images:
    """The rows of --data-dir's Parquet files: an image (bytes of a file, or a struct with them) and a whole number.

    Names of the classes are those that Hugging Face's `datasets` left in the files; without them the classes are
    numbered up to the largest that occurs. Raises TrainerError if there is no such column or no image can be read.
    """
    from pyarrow import types

    require_pillow("parquet")
    files = layout(settings)
    image = files.column(settings.data_column, "images (binary, or a struct with bytes)", _holds_images)
    label = files.column(settings.label_column, "classes as whole numbers", types.is_integer)
    load = partial(_load_images, image, types.is_struct(files.schema.field(image).type), label)
    try:
        features = json.loads((files.schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):  # not written by `datasets`, or not as a class
        classes = tuple(map(str, range(_largest_label(files, label) + 1)))
    contents = (partial(bytes, content.as_py() or b"") for content in required(load, files.train[0])[0])
    shape = first_shape(contents, settings.image_size, str(files.train[0]))
    train, held_out = (
        ImageRows(spans, load, settings.image_size, shape, len(classes)) for spans in (files.train, files.held_out)
    )
    return Images(train=train, held_out=held_out, shape=shape, classes=classes)


def _load_images(image: str, in_struct: bool, label: str, span: RowSpan) -> _Encoded:
    import pyarrow
    from pyarrow import compute

    table = span.read(f"{image}.bytes" if in_struct else image, label)
    try:
        images = compute.struct_field(table.column(image), "bytes") if in_struct else table.column(image)
        labels = compute.fill_null(compute.cast(table.column(label), pyarrow.int64()), _NO_LABEL)
    except pyarrow.ArrowException as error:
        raise DamagedError(str(error)) from error
    return images, labels.to_numpy()


def _holds_images(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        field = kind.get_field_index("bytes")
        return field >= 0 and _holds_images(kind.field(field).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _largest_label(files: ParquetLayout, label: str) -> int:
    """From the statistics in the footers; where a row group has none, from the column itself."""
    from pyarrow import compute

    largest = 0
    for file in files.files:
        leaf = [file.footer.schema.column(number).path for number in range(len(file.footer.schema))].index(label)
        for span in file.spans():
            statistics = file.footer.row_group(span.group).column(leaf).statistics
            if statistics is not None and statistics.has_min_max:
                largest = max(largest, statistics.max)
            else:
                table = required(lambda span: span.read(label), span)
                largest = max(largest, compute.max(table.column(label)).as_py() or 0)
            if largest >= _MAX_CLASSES:
                problem = f"{span} has {largest} in column {label}: that is no class"
                raise TrainerError(f"{problem}; name one with --label-column")
    return int(largest)


# --- text -------------------------------------------------------------------------------------------------------------


class TokenRows(RowGroups[npt.NDArray[Any]]):
    """Windows of the tokens in each span; no window crosses the end of its span."""

    def __init__(
        self,
        spans: Sequence[RowSpan],
        tokens: Sequence[int],
        load: Callable[[RowSpan], npt.NDArray[Any]],
        context: int,
        vocabulary: int,
    ) -> None:
        """`tokens` has the token count of each span."""
        super().__init__(spans, [window_count(count, context) for count in tokens], load)
        self._context = context
        self._vocabulary = vocabulary

    def read(self, indices: Indices) -> Fields:
        streams = (
            (str(span), stream, rows, offsets * self._context) for span, stream, rows, offsets in self.groups(indices)
        )
        return {"tokens": read_windows(indices, streams, self._context, self._vocabulary)}


def parquet_text(settings: Settings) -> Text:
    """A column of --data-dir's Parquet files: lists of tokens, else strings, whose UTF-8 bytes are the tokens.

    How many tokens each row group has is not in the files, so all are read once, and the counts are cached.
    """
    files = layout(settings)
    description, fits = "lists of tokens", _holds_tokens
    if not any(_holds_tokens(field.type) for field in files.schema if settings.data_column in ("", field.name)):
        description, fits = "text or lists of tokens", _holds_text
    name = files.column(settings.data_column, description, fits)
    of_strings = fits is _holds_text
    load = partial(_load_tokens, name, of_strings)
    spans = files.train + files.held_out

    def count(number: int) -> TokenCount:
        tokens = required(load, spans[number])
        return TokenCount(len(tokens), int(tokens.max(initial=0)))

    sources = [(span.path, f"{name}:{span.group}:{span.start}:{span.stop}") for span in spans]
    counts = cached_token_counts(files.folder, sources, count)
    vocabulary = BYTES if of_strings else 1 + max(count.largest for count in counts)
    tokens = [count.tokens for count in counts]
    cut, context = len(files.train), settings.context
    train = TokenRows(files.train, tokens[:cut], load, context, vocabulary)
    held_out = TokenRows(files.held_out, tokens[cut:], load, context, vocabulary)
    if not len(train) or not len(held_out):
        raise TrainerError(
            f"{files.folder}: its row groups have at most {max(tokens)} tokens in column {name}, "
            f"too few for --context {context} in both training and validation"
        )
    return Text(train=train, held_out=held_out, context=context, vocabulary=vocabulary)


def _load_tokens(column: str, of_strings: bool, span: RowSpan) -> npt.NDArray[Any]:
    """The tokens of a span as one stream: lists concatenated, or strings joined by newlines, as uint8.

    Null rows are skipped.
    """
    import pyarrow
    from pyarrow import compute

    rows = span.read(column).column(column)
    try:
        if not of_strings:
            tokens = compute.list_flatten(rows)
            if tokens.null_count:
                raise DamagedError(f"{tokens.null_count} tokens have no value")
            return np.asarray(tokens.to_numpy())
        texts = rows.drop_null().cast(pyarrow.large_binary()).combine_chunks()
        one_list = pyarrow.LargeListArray.from_arrays(pyarrow.array([0, len(texts)], pyarrow.int64()), texts)
        joined = compute.binary_join(one_list, pyarrow.scalar(b"\n", pyarrow.large_binary()))
        return np.frombuffer(joined[0].as_buffer(), dtype=np.uint8)
    except pyarrow.ArrowException as error:
        raise DamagedError(str(error)) from error


def _holds_tokens(kind: Any) -> bool:
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and types.is_integer(kind.value_type))


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))
