"""Windows of context + 1 tokens (inputs and, shifted by one, targets): the bytes of text files, or files of tokens."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Indices, Split, Text
from trainer.data.files import (
    Concatenation,
    MappedArray,
    SamplesOfPart,
    TokenCount,
    cached_token_counts,
    grouped,
    name_hashes,
    require_data_dir,
)
from trainer.errors import SettingsError, TrainerError, one_line
from trainer.preparing.documents import files_below
from trainer.preparing.packing import BEGIN, LEARN
from trainer.preparing.prepare import JOURNAL, META

BYTES = 256  # the vocabulary of text as bytes

_HELD_OUT_ONE_IN = 25  # texts are long: a few percent measure the loss well enough


def window_count(token_count: int, context: int) -> int:
    """Windows with stride `context` in a stream of tokens: each starts with the last token of the one before."""
    return max(0, (token_count - 1) // context)


def read_windows(
    parts: Iterable[SamplesOfPart[Any, npt.NDArray[Any]]], indices: Indices, stride: int, context: int, vocabulary: int
) -> Tensor:
    """Copy windows from parts of the data that are streams of tokens.

    Raises BrokenSample for a token outside 0 .. vocabulary - 1.
    """
    windows = np.empty((len(indices), context + 1), dtype=np.int64)
    for where, stream, rows, offsets in parts:
        for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
            window = stream[offset * stride : offset * stride + context + 1]
            if len(window) <= context:
                raise BrokenSample(int(indices[row]), str(where), "it has fewer tokens than it had at first")
            windows[row] = window
        row_windows = windows[rows]
        if row_windows.max() >= vocabulary or row_windows.min() < 0:
            bad = int(np.flatnonzero(((row_windows >= vocabulary) | (row_windows < 0)).any(axis=1))[0])
            place = f"{where}, from token {offsets[bad] * stride}"
            raise BrokenSample(int(indices[rows[bad]]), place, f"a token is not 0 .. {vocabulary - 1}")
    return torch.from_numpy(windows)


# --- text as bytes ----------------------------------------------------------------------------------------------------


class ByteWindows(Split):
    """Windows of files joined by newlines, from byte `start` to `stop`. Read piece by piece; none is held in memory."""

    def __init__(self, paths: Sequence[Path], context: int, start: int = 0, stop: int | None = None) -> None:
        self._paths = [str(path) for path in paths]
        # The newline counts as the last byte of the file before it.
        self._parts = Concatenation([path.stat().st_size + 1 for path in paths])
        self.bytes = max(0, len(self._parts) - 1)
        self._start = start
        if stop is None:
            stop = self.bytes
        self._windows = window_count(stop - start, context)
        self._context = context

    def __len__(self) -> int:
        return self._windows

    def read(self, indices: Indices) -> Fields:
        windows = np.empty((len(indices), self._context + 1), dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            content = self._read(index, self._start + index * self._context, self._context + 1)
            windows[row] = np.frombuffer(content, dtype=np.uint8)
        return {"tokens": torch.from_numpy(windows)}

    def _read(self, index: int, start: int, count: int) -> bytes:
        content = b""
        part, offset = self._parts.locate(start)
        while len(content) < count:
            path = self._paths[part]
            size = self._parts.lengths[part] - 1
            length = min(size - offset, count - len(content))
            try:
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                    file.seek(offset)
                    piece = file.read(length)
            except OSError as error:
                raise BrokenSample(index, path, error) from error
            if len(piece) < length:
                raise BrokenSample(index, path, f"it is shorter than the {size} bytes that it had at first")
            content += piece + b"\n"
            part = part + 1
            offset = 0
        return content[:count]


def text_files(settings: Settings) -> Text:
    """Every file below --data-dir, or that one file, as bytes; what begins with a dot is left out.

    About one file in 25 is held out, chosen by its path; where that leaves too little of either, such as with a single
    file, the last tenth of the whole text is.
    """
    source = require_data_dir(settings, "text files", allow_file=True)
    candidates = [source] if source.is_file() else map(source.joinpath, files_below(source))
    paths = [path for path in candidates if path.is_file()]
    return _split_text(sorted(paths), source, settings.context)


def stdlib(settings: Settings) -> Text:
    """The modules at the top of the running interpreter's standard library; about one file in 25 is held out."""
    folder = Path(sysconfig.get_path("stdlib"))
    return _split_text(sorted(folder.glob("*.py")), folder, settings.context)


def _split_text(paths: Sequence[Path], source: Path, context: int) -> Text:
    """Hold out files by their names relative to `source`, or else the last tenth of the joined text."""
    is_held_out = name_hashes(os.fsencode(path.relative_to(source)) for path in paths) % _HELD_OUT_ONE_IN == 0
    train, held_out = (
        ByteWindows([path for path, is_out in zip(paths, is_held_out, strict=True) if is_out == side], context)
        for side in (False, True)
    )
    if not len(train) or not len(held_out):
        size = ByteWindows(paths, context).bytes
        cut = size - size // 10
        train = ByteWindows(paths, context, 0, cut)
        held_out = ByteWindows(paths, context, cut)
        if not len(train) or not len(held_out):
            raise TrainerError(
                f"{source} has {size} bytes of text in {len(paths)} files, too few for --context {context}: "
                "add text, or lower it"
            )
    return Text(train=train, held_out=held_out, context=context, vocabulary=BYTES)


# --- files of tokens --------------------------------------------------------------------------------------------------


class TokenFiles(Split):
    """Windows of the tokens in some files; no window reaches over the end of a file.

    If they are `marked`, there is a file of bytes for each, and windows are the rows that `trainer.preparing` wrote.
    """

    def __init__(self, files: Sequence[MappedArray], context: int, vocabulary: int, *, marked: bool) -> None:
        self._files = files
        self._marks: list[MappedArray] = []
        lengths = [len(file) for file in files]
        if marked:
            self._marks = [MappedArray(file.path.with_suffix(".marks"), "uint8") for file in files]
            if [len(marks) for marks in self._marks] != lengths:
                raise TrainerError(f"{files[0].path.parent} has not one mark for each token; prepare the tokens again")
            self._stride = context + 1
            self._parts = Concatenation([length // self._stride for length in lengths])
        else:
            self._stride = context
            self._parts = Concatenation([window_count(length, context) for length in lengths])
        self._context = context
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, indices: Indices) -> Fields:
        fields = {"tokens": self._windows(self._files, indices, self._vocabulary)}
        if self._marks:
            marks = self._windows(self._marks, indices, 256)
            fields |= {"learn": marks & LEARN > 0, "begin": marks & BEGIN > 0}
        return fields

    def _windows(self, files: Sequence[MappedArray], indices: Indices, vocabulary: int) -> Tensor:
        return read_windows(grouped(files, self._parts, indices), indices, self._stride, self._context, vocabulary)


def prepared_folder(settings: Settings) -> Path:
    """The folder of the tokens that a run of --data documents prepares."""
    return settings.output_dir / "tokens"


class _Meta(BaseModel):
    """The keys of meta.json that are read; others are allowed."""

    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] = "uint16"
    vocabulary: int | None = Field(default=None, ge=1, strict=True)
    row: int | None = Field(default=None, ge=2)
    tokenizer: str | None = Field(default=None, pattern=r"^[\w-]+$")
    prompts: tuple[tuple[int, ...], ...] = ()


def tokens(settings: Settings) -> Text:
    """The files of --data-dir with train in their names, and, held out, those with val, as .bin or .npy.

    Numbers in .bin files (the layout of nanoGPT) are uint16 unless meta.json says otherwise. Without a vocabulary
    there, all files are read once to find their largest token, which is cached. Where meta.json has a ``row``, the
    files were written by `trainer.preparing`; those of --data documents are in `prepared_folder`.
    """
    if settings.data == "documents":
        folder = prepared_folder(settings)
    else:
        folder = require_data_dir(settings, "train.bin and val.bin (or .npy)")
    context = settings.context
    if (folder / JOURNAL).is_file() and not (folder / META).is_file():
        raise TrainerError(f"{folder} is not finished; run python -m trainer prepare with it again")
    meta = _Meta()
    try:
        if (folder / META).is_file():
            meta = _Meta.model_validate_json((folder / META).read_bytes())
    except ValueError as error:
        raise TrainerError(f"{folder / META} does not describe tokens: {one_line(error)[:200]}") from error
    if meta.row is not None and meta.row != context + 1:
        raise SettingsError(f"{folder} was prepared for --context {meta.row - 1}, not {context}")
    files: dict[str, list[MappedArray]] = {}
    for name in ("train", "val"):
        paths = sorted(path for suffix in ("bin", "npy") for path in folder.glob(f"*{name}*.{suffix}"))
        if not paths:
            raise TrainerError(f"no {name}.bin or {name}.npy in {folder}; write the tokens there as {meta.dtype}")
        files[name] = [MappedArray(path, meta.dtype) for path in paths]
        longest = max(map(len, files[name]))
        if not window_count(longest, context):
            raise TrainerError(
                f"{folder}: the longest *{name}* file has {longest} tokens, too few for --context {context}"
            )
    vocabulary = meta.vocabulary
    if vocabulary is None:
        every = files["train"] + files["val"]
        sources = [(file.path, str(file.array().dtype)) for file in every]
        counts = cached_token_counts(
            folder, sources, lambda number: TokenCount(len(every[number]), int(every[number].array().max()))
        )
        vocabulary = 1 + max(count.largest for count in counts)
    marked = meta.row is not None
    tokenizer = None if meta.tokenizer is None else folder / meta.tokenizer
    return Text(
        train=TokenFiles(files["train"], context, vocabulary, marked=marked),
        held_out=TokenFiles(files["val"], context, vocabulary, marked=marked),
        context=context,
        vocabulary=vocabulary,
        marked=marked,
        tokenizer=tokenizer,
        prompts=meta.prompts,
    )
