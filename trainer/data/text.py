"""Windows of context + 1 tokens (inputs and, shifted by one, targets): the bytes of text files, or files of tokens."""

from __future__ import annotations

import errno
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
    TokenCount,
    cached_token_counts,
    grouped,
    name_hashes,
    reason_of,
    require_data_dir,
)
from trainer.errors import SettingsError, TrainerError
from trainer.preparing.documents import files_below
from trainer.preparing.packing import BEGIN, LEARN
from trainer.preparing.prepare import JOURNAL, META

BYTES = 256  # the vocabulary of text as bytes

_HELD_OUT_ONE_IN = 25
_DTYPES = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
_CHUNK = 1 << 24  # tokens whose maximum is taken at once: bounds the resident pages


def window_count(tokens: int, context: int) -> int:
    """Windows in a stream of `tokens`, with stride `context`: each starts with the last token of the one before."""
    return max(0, (tokens - 1) // context)


# Where a stream of tokens is from, the stream, the samples in it (by number of row), and where their windows start.
Stream = tuple[str, npt.NDArray[Any], npt.NDArray[np.intp], Indices]


def read_windows(indices: Indices, streams: Iterable[Stream], context: int, vocabulary: int) -> Tensor:
    """Copy windows from streams. Raises BrokenSample for a token outside 0 .. vocabulary - 1."""
    windows = np.empty((len(indices), context + 1), dtype=np.int64)
    for where, stream, rows, starts in streams:
        for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
            window = stream[start : start + context + 1]
            if len(window) <= context:
                raise BrokenSample(int(indices[row]), where, "it has fewer tokens than it had at first")
            windows[row] = window
        taken = windows[rows]
        if taken.max(initial=0) >= vocabulary or taken.min(initial=0) < 0:
            bad = int(np.flatnonzero(((taken >= vocabulary) | (taken < 0)).any(axis=1))[0])
            where = f"{where}, from token {starts[bad]}"
            raise BrokenSample(int(indices[rows[bad]]), where, f"a token is not 0 .. {vocabulary - 1}")
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
        self._windows = window_count((self.bytes if stop is None else stop) - start, context)
        self._context = context

    def __len__(self) -> int:
        return self._windows

    def read(self, indices: Indices) -> Fields:
        tokens = np.empty((len(indices), self._context + 1), dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            try:
                content = self._read(self._start + index * self._context, self._context + 1)
            except OSError as error:
                raise BrokenSample(index, str(error.filename), reason_of(error)) from error
            tokens[row] = np.frombuffer(content, dtype=np.uint8)
        return {"tokens": torch.from_numpy(tokens)}

    def _read(self, start: int, count: int) -> bytes:
        content = b""
        part, offset = self._parts.locate(start)
        while len(content) < count:
            size = self._parts.lengths[part] - 1
            wanted = min(size - offset, count - len(content))
            with open(self._paths[part], "rb", buffering=0) as file:  # noqa: PTH123
                file.seek(offset)
                piece = file.read(wanted)
            if len(piece) < wanted:
                problem = f"it is shorter than the {size} bytes that it had at first"
                raise OSError(errno.EINVAL, problem, self._paths[part])
            content += piece + b"\n"
            part, offset = part + 1, 0
        return content[:count]


def text_files(settings: Settings) -> Text:
    """Every file below --data-dir, or that one file, as bytes; what begins with a dot is left out.

    About one file in 25 is held out, chosen by its path; where that leaves too little of either, such as with a single
    file, the last tenth of the whole text is.
    """
    source = require_data_dir(settings, "text files", allow_file=True)
    found = [source] if source.is_file() else map(source.joinpath, files_below(source))
    paths = [path for path in found if path.is_file()]
    return _split_text(sorted(paths), source, settings.context, "add text, or lower --context")


def stdlib(settings: Settings) -> Text:
    """The modules at the top of the running interpreter's standard library; about one file in 25 is held out."""
    folder = Path(sysconfig.get_path("stdlib"))
    remedy = "use a Python that ships its library, or --data text"
    return _split_text(sorted(folder.glob("*.py")), folder, settings.context, remedy)


def _split_text(paths: Sequence[Path], source: Path, context: int, remedy: str) -> Text:
    """Hold out files by their names relative to `source`, or else the last tenth of the joined text.

    Raises TrainerError with `remedy` if either split has no window.
    """
    is_held_out = name_hashes(os.fsencode(path.relative_to(source)) for path in paths) % _HELD_OUT_ONE_IN == 0
    train, held_out = (
        ByteWindows([path for path, held in zip(paths, is_held_out, strict=True) if held == wanted], context)
        for wanted in (False, True)
    )
    if not len(train) or not len(held_out):
        size = ByteWindows(paths, context).bytes
        cut = size - size // 10
        train, held_out = ByteWindows(paths, context, 0, cut), ByteWindows(paths, context, cut)
        if not len(train) or not len(held_out):
            raise TrainerError(
                f"{source} has {size} bytes of text in {len(paths)} files, too few for --context {context}: {remedy}"
            )
    return Text(train=train, held_out=held_out, context=context, vocabulary=BYTES)


# --- files of tokens --------------------------------------------------------------------------------------------------


class TokenFiles(Split):
    """Windows of the tokens in some files; no window reaches over the end of a file.

    With `marks`, a file of bytes for each, windows are the rows of context + 1 tokens that `trainer.preparing` wrote.
    """

    def __init__(
        self, files: Sequence[MappedArray], context: int, vocabulary: int, marks: Sequence[MappedArray] = ()
    ) -> None:
        self._files = tuple(files)
        self._marks = tuple(marks)
        self._stride = context + 1 if marks else context
        self._parts = Concatenation(
            [len(file) // (context + 1) if marks else window_count(len(file), context) for file in files]
        )
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
        streams = (
            (path, stream, rows, offsets * self._stride)
            for path, stream, rows, offsets in grouped(files, self._parts, indices)
        )
        return read_windows(indices, streams, self._context, vocabulary)


def tokens(settings: Settings) -> Text:
    """The files of --data-dir with train in their names, and, held out, those with val, as .bin or .npy.

    Numbers in .bin files (the layout of nanoGPT) are uint16 unless meta.json says otherwise. Without a vocabulary
    there, all files are read once to find their largest token, which is cached. Where meta.json has a ``row``, the
    files were written by `trainer.preparing`.
    """
    return _load_tokens(require_data_dir(settings, "train.bin and val.bin (or .npy)"), settings)


def documents(settings: Settings) -> Text:
    """The documents of --data-dir as the tokens that the run has prepared in `prepared_folder`."""
    return _load_tokens(prepared_folder(settings), settings)


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


def _load_tokens(folder: Path, settings: Settings) -> Text:
    context = settings.context
    if (folder / JOURNAL).is_file() and not (folder / META).is_file():
        raise TrainerError(f"{folder} is not finished; run python -m trainer prepare with it again")
    try:
        meta = _Meta.model_validate_json((folder / META).read_bytes()) if (folder / META).is_file() else _Meta()
    except ValueError as error:
        expected = f'{{"dtype": one of {", ".join(_DTYPES)}, "vocabulary": a whole number}}'
        problem = " ".join(str(error).split())[:200]
        raise TrainerError(f"{folder / META} is not {expected}: {problem}") from error
    if meta.row is not None and meta.row != context + 1:
        raise SettingsError(f"{folder} was prepared for --context {meta.row - 1}, not {context}")
    files: dict[str, list[MappedArray]] = {}
    for name in ("train", "val"):
        paths = sorted(path for suffix in ("bin", "npy") for path in folder.glob(f"*{name}*.{suffix}"))
        if not paths:
            raise TrainerError(f"no {name}.bin or {name}.npy in {folder}; write the tokens there as {meta.dtype}")
        files[name] = [_mapped(path, _DTYPES[meta.dtype]) for path in paths]
        longest = max(map(len, files[name]))
        if not window_count(longest, context):
            raise TrainerError(
                f"{folder}: the longest *{name}* file has {longest} tokens, too few for --context {context}"
            )
    vocabulary = meta.vocabulary or 1 + _largest_token(folder, [*files["train"], *files["val"]])
    train, held_out = (
        TokenFiles(split, context, vocabulary, [] if meta.row is None else [_marks(file) for file in split])
        for split in files.values()
    )
    return Text(
        train=train,
        held_out=held_out,
        context=context,
        vocabulary=vocabulary,
        marked=meta.row is not None,
        tokenizer=None if meta.tokenizer is None else folder / meta.tokenizer,
        prompts=meta.prompts,
    )


def _mapped(path: Path, dtype: str) -> MappedArray:
    try:
        return MappedArray(path, dtype)
    except OSError as error:
        raise TrainerError(f"{path} cannot be used: {reason_of(error)}") from error


def _marks(file: MappedArray) -> MappedArray:
    marks = _mapped(file.path.with_suffix(".marks"), "u1")
    if len(marks) != len(file):
        raise TrainerError(f"{marks.path} has {len(marks)} marks for {len(file)} tokens; prepare the tokens again")
    return marks


def _largest_token(folder: Path, files: Sequence[MappedArray]) -> int:
    """The largest token of all files. Unchanged files are read only once, at the first start."""

    def count(number: int) -> TokenCount:
        array = files[number].array()
        largest = max(int(array[start : start + _CHUNK].max()) for start in range(0, len(array), _CHUNK))
        return TokenCount(len(array), largest)

    sources = [(file.path, str(file.array().dtype)) for file in files]
    return max(found.largest for found in cached_token_counts(folder, sources, count))
