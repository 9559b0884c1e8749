"""Encoded images and their classes in the rows of Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Images, Indices
from trainer.data.files import Concatenation
from trainer.data.parquet import DamagedError, ParquetLayout, RowGroups, RowSpan, layout, read_rows, unreadable
from trainer.data.pixels import Shape, UndecodableError, decode, first_shape, require_pillow
from trainer.errors import TrainerError

_MAX_CLASSES = 1_000_000
_NO_LABEL = -1  # stands for null


@dataclass(frozen=True)
class Columns:
    """The columns of image and class. The image is the column's value, or with `in_struct` its field "bytes"."""

    image: str
    in_struct: bool
    label: str

    def load(self, span: RowSpan) -> tuple[Any, npt.NDArray[np.int64]]:
        """The encoded images, as a pyarrow column, and the classes of a span. Raises DamagedError."""
        import pyarrow
        from pyarrow import compute

        table = read_rows(span, [f"{self.image}.bytes" if self.in_struct else self.image, self.label])
        images, labels = table.column(self.image), table.column(self.label)
        try:
            if self.in_struct:
                images = compute.struct_field(images, "bytes")
            return images, compute.fill_null(compute.cast(labels, pyarrow.int64()), _NO_LABEL).to_numpy()
        except pyarrow.ArrowException as error:
            raise DamagedError(str(error)) from error


class ImageRows:
    """One sample per row. A row group is read whole, so its samples are best read together."""

    def __init__(self, spans: Sequence[RowSpan], columns: Columns, size: int, shape: Shape, classes: int) -> None:
        """`size` is the side that images are resized to (0: not resized), and `shape` the resulting shape of each."""
        self._spans = tuple(spans)
        self._parts = Concatenation([span.stop - span.start for span in spans])
        self._columns = columns
        self._size = size
        self._shape = shape
        self._classes = classes
        self._groups = RowGroups(self._load)

    @property
    def blocks(self) -> tuple[int, ...]:
        return self._parts.lengths

    def __len__(self) -> int:
        return len(self._parts)

    def expect(self, indices: Indices) -> None:
        self._groups.expect(self._parts.parts_of(indices))

    def read(self, indices: Indices) -> Fields:
        images = torch.empty((len(indices), *self._shape), dtype=torch.uint8)
        labels = np.empty(len(indices), dtype=np.int64)
        next_parts = self._parts.parts_of(indices)[1:]
        for part, rows, offsets in self._parts.group(indices):
            span = self._spans[part]
            try:
                contents, classes = self._groups.get(part)
            except DamagedError as error:
                raise BrokenSample(int(indices[rows[0]]), str(span), str(error)) from error
            self._groups.expect(next_parts[:1])  # loads in the background while this one's images are decoded
            next_parts = next_parts[1:]
            labels[rows] = classes[offsets]
            for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
                try:
                    images[row] = self._decode(contents[offset].as_py(), int(labels[row]))
                except UndecodableError as error:
                    where = f"{span}, row {span.start + offset}"
                    raise BrokenSample(int(indices[row]), where, str(error)) from error
        return {"image": images, "label": torch.from_numpy(labels)}

    def _decode(self, content: bytes | None, label: int) -> torch.Tensor:
        if content is None:
            raise UndecodableError("it has no image")
        if not 0 <= label < self._classes:
            problem = "it has no class" if label == _NO_LABEL else f"its class is {label}"
            raise UndecodableError(f"{problem}; classes are 0 .. {self._classes - 1}")
        return decode(content, self._size, self._shape)

    def _load(self, number: int) -> tuple[Any, npt.NDArray[np.int64]]:
        return self._columns.load(self._spans[number])


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
    columns = Columns(image, types.is_struct(files.schema.field(image).type), label)
    classes = _class_names(files, label)
    size = settings.image_size
    shape = first_shape(_contents(files.train[0], columns), size, str(files.train[0]))
    train, held_out = (ImageRows(spans, columns, size, shape, len(classes)) for spans in (files.train, files.held_out))
    return Images(train=train, held_out=held_out, shape=shape, classes=classes)


def _holds_images(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        field = kind.get_field_index("bytes")
        return field >= 0 and _holds_images(kind.field(field).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _contents(span: RowSpan, columns: Columns) -> Iterator[Callable[[], bytes]]:
    try:
        images, _ = columns.load(span)
    except DamagedError as error:
        raise unreadable(span, error) from error
    for image in images:
        yield partial(bytes, image.as_py() or b"")


def _class_names(files: ParquetLayout, label: str) -> tuple[str, ...]:
    try:
        features = json.loads((files.schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
        return tuple(map(str, names))
    except (KeyError, TypeError, ValueError):  # not written by `datasets`, or not as a class
        return tuple(map(str, range(_largest_label(files, label) + 1)))


def _largest_label(files: ParquetLayout, label: str) -> int:
    """From the statistics in the footers; where a row group has none, from the column itself."""
    from pyarrow import compute

    largest = 0
    for file in files.files:
        leaves = [file.footer.schema.column(number).path for number in range(len(file.footer.schema))]
        leaf = leaves.index(label)
        for span in file.spans():
            statistics = file.footer.row_group(span.group).column(leaf).statistics
            if statistics is not None and statistics.has_min_max:
                largest = max(largest, statistics.max)
            else:
                largest = max(largest, compute.max(_readable(span, [label]).column(label)).as_py() or 0)
            if largest >= _MAX_CLASSES:
                raise TrainerError(
                    f"{span} has {largest} in column {label}: that is no class; name one with --label-column"
                )
    return int(largest)


def _readable(span: RowSpan, columns: Sequence[str]) -> Any:
    try:
        return read_rows(span, columns)
    except DamagedError as error:
        raise unreadable(span, error) from error
