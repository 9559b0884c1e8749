"""Text, or tokens, in the rows of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Indices, Text
from trainer.data.files import Concatenation, TokenCount, cached_token_counts
from trainer.data.parquet import DamagedError, RowGroups, RowSpan, layout, read_rows, unreadable
from trainer.data.text import BYTES, first_out_of_range, window_count
from trainer.errors import TrainerError

_COUNTING_THREADS = 4


@dataclass(frozen=True)
class TokenColumn:
    """A column of strings or token lists. Its rows form one stream: lists concatenated, strings joined by newlines.

    Null rows are skipped.
    """

    name: str
    of_strings: bool

    def load(self, span: RowSpan) -> npt.NDArray[Any]:
        """The tokens of a span: uint8 for strings. Raises DamagedError."""
        import pyarrow
        from pyarrow import compute

        column = read_rows(span, [self.name]).column(self.name)
        try:
            if not self.of_strings:
                tokens = compute.list_flatten(column)
                if tokens.null_count:
                    raise DamagedError(f"{tokens.null_count} tokens have no value")
                return np.asarray(tokens.to_numpy())
            rows = column.drop_null().cast(pyarrow.large_binary()).combine_chunks()
            one_list = pyarrow.LargeListArray.from_arrays(pyarrow.array([0, len(rows)], pyarrow.int64()), rows)
            joined = compute.binary_join(one_list, pyarrow.scalar(b"\n", pyarrow.large_binary()))
            return np.frombuffer(joined[0].as_buffer(), dtype=np.uint8)
        except pyarrow.ArrowException as error:
            raise DamagedError(str(error)) from error


class TokenRows:
    """Windows of the tokens in each span; no window crosses the end of its span."""

    def __init__(
        self, spans: Sequence[RowSpan], tokens: Sequence[int], column: TokenColumn, context: int, vocabulary: int
    ) -> None:
        """`tokens` has the token count of each span."""
        windows = [window_count(count, context) for count in tokens]
        self._spans = [span for span, count in zip(spans, windows, strict=True) if count]
        self._parts = Concatenation([count for count in windows if count])
        self._column = column
        self._context = context
        self._vocabulary = vocabulary
        self._groups = RowGroups(self._load)

    @property
    def blocks(self) -> tuple[int, ...]:
        return self._parts.lengths

    def __len__(self) -> int:
        return len(self._parts)

    def expect(self, indices: Indices) -> None:
        self._groups.expect(self._parts.parts_of(indices))

    def read(self, indices: Indices) -> Fields:
        tokens = np.empty((len(indices), self._context + 1), dtype=np.int64)
        for part, rows, offsets in self._parts.group(indices):
            where = str(self._spans[part])
            try:
                stream = self._groups.get(part)
            except DamagedError as error:
                raise BrokenSample(int(indices[rows[0]]), where, str(error)) from error
            for row, start in zip(rows.tolist(), (offsets * self._context).tolist(), strict=True):
                window = stream[start : start + self._context + 1]
                if len(window) <= self._context:
                    raise BrokenSample(int(indices[row]), where, "it has fewer tokens than were counted in it")
                tokens[row] = window
            bad_row = first_out_of_range(tokens[rows], self._vocabulary)
            if bad_row is not None:
                where = f"{where}, from token {offsets[bad_row] * self._context}"
                raise BrokenSample(int(indices[rows[bad_row]]), where, f"a token is not 0 .. {self._vocabulary - 1}")
        return {"tokens": torch.from_numpy(tokens)}

    def _load(self, number: int) -> npt.NDArray[Any]:
        return self._column.load(self._spans[number])


def parquet_text(settings: Settings) -> Text:
    """A column of --data-dir's Parquet files: lists of tokens, else strings, whose UTF-8 bytes are the tokens.

    How many tokens each row group has is not in the files, so all are read once, and the counts are
    cached.
    """
    files = layout(settings)
    description, fits = "lists of tokens", _holds_tokens
    if not any(_holds_tokens(field.type) for field in files.schema if settings.data_column in ("", field.name)):
        description, fits = "text or lists of tokens", _holds_text
    name = files.column(settings.data_column, description, fits)
    kind = files.schema.field(name).type
    column = TokenColumn(name, of_strings=not _holds_tokens(kind))
    spans = files.train + files.held_out
    counts = _counts(files.folder, spans, column)
    vocabulary = BYTES if column.of_strings else 1 + max(count.largest for count in counts)
    tokens = [count.tokens for count in counts]
    cut, context = len(files.train), settings.context
    train = TokenRows(files.train, tokens[:cut], column, context, vocabulary)
    held_out = TokenRows(files.held_out, tokens[cut:], column, context, vocabulary)
    if not len(train) or not len(held_out):
        raise TrainerError(
            f"{files.folder}: its row groups have at most {max(tokens)} tokens in column {name}, "
            f"too few for --context {context} in both training and validation"
        )
    return Text(train=train, held_out=held_out, context=context, vocabulary=vocabulary)


def _holds_tokens(kind: Any) -> bool:
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and types.is_integer(kind.value_type))


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _counts(folder: Path, spans: Sequence[RowSpan], column: TokenColumn) -> list[TokenCount]:
    """The token count of each span. Raises TrainerError for a damaged one."""

    def count(span: RowSpan) -> TokenCount:
        try:
            tokens = column.load(span)
        except DamagedError as error:
            raise unreadable(span, error) from error
        return TokenCount(len(tokens), int(tokens.max(initial=0)))

    def count_missing(missing: list[int]) -> list[TokenCount]:
        with ThreadPoolExecutor(_COUNTING_THREADS) as threads:
            return list(threads.map(count, [spans[number] for number in missing]))

    return cached_token_counts(folder, [_version_key(folder, span, column) for span in spans], count_missing)


def _version_key(folder: Path, span: RowSpan, column: TokenColumn) -> str:
    status = span.path.stat()
    file = f"{span.path.relative_to(folder).as_posix()}:{status.st_size}:{status.st_mtime_ns}"
    return f"{column.name}:{file}:{span.group}:{span.start}:{span.stop}"
