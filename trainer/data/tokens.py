"""Token files, mapped into memory: raw little-endian numbers (the layout of nanoGPT) or .npy arrays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, Field

from trainer.config import Settings
from trainer.data.concatenation import Concatenation
from trainer.data.contract import BrokenSample, Fields, Indices, Text
from trainer.data.mapped import MappedArray
from trainer.data.paths import reason_of, require_data_dir
from trainer.data.token_counts import TokenCount, cached_token_counts
from trainer.data.windows import first_out_of_range, window_count
from trainer.errors import SettingsError, TrainerError
from trainer.preparing.packing import BEGIN, LEARN
from trainer.preparing.prepare import JOURNAL, META

_DTYPES = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
_CHUNK = 1 << 24  # tokens whose maximum is taken at once: bounds the resident pages


class TokenFiles:
    """Windows of the tokens in some files; no window reaches over the end of a file.

    With `marks`, a file of bytes for each, windows are the rows of context + 1 tokens that `trainer.preparing` wrote.
    """

    blocks = None

    def __init__(
        self, files: Sequence[MappedArray], context: int, vocabulary: int, marks: Sequence[MappedArray] = ()
    ) -> None:
        self._files = tuple(files)
        self._marks = tuple(marks)
        self._stride = context + 1 if marks else context
        windows = [len(file) // (context + 1) if marks else window_count(len(file), context) for file in files]
        self._parts = Concatenation(windows)
        self._context = context
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, indices: Indices) -> Fields:
        tokens = np.empty((len(indices), self._context + 1), dtype=np.int64)
        marks = np.empty(tokens.shape if self._marks else (0, 0), dtype=np.uint8)
        for part, rows, offsets in self._parts.group(indices):
            file = mapped = self._files[part]
            bits = None
            try:
                array = file.array()
                if self._marks:
                    mapped = self._marks[part]
                    bits = mapped.array()
            except OSError as error:
                raise BrokenSample(int(indices[rows[0]]), str(mapped.path), reason_of(error)) from error
            for row, start in zip(rows.tolist(), (offsets * self._stride).tolist(), strict=True):
                tokens[row] = array[start : start + self._context + 1]
                if bits is not None:
                    marks[row] = bits[start : start + self._context + 1]
            bad_row = first_out_of_range(tokens[rows], self._vocabulary)
            if bad_row is not None:
                where = f"{file.path}, from token {offsets[bad_row] * self._stride}"
                raise BrokenSample(int(indices[rows[bad_row]]), where, f"a token is not 0 .. {self._vocabulary - 1}")
        fields = {"tokens": torch.from_numpy(tokens)}
        if self._marks:
            fields |= {"learn": torch.from_numpy(marks & LEARN > 0), "begin": torch.from_numpy(marks & BEGIN > 0)}
        return fields


def tokens(settings: Settings) -> Text:
    """The files of --data-dir with train in their names, and, held out, those with val, as .bin or .npy.

    Numbers in .bin files are uint16 unless meta.json says otherwise: ``{"dtype": "uint32", "vocabulary": 128256}``.
    Without a vocabulary there, all files are read once to find their largest token, which is
    cached (`trainer.data.token_counts`). Where meta.json has a ``row``, the files were written by `trainer.preparing`.
    """
    return _load_tokens(require_data_dir(settings, "train.bin and val.bin (or .npy)"), settings)


def documents(settings: Settings) -> Text:
    """The documents of --data-dir as the tokens that the run has prepared in `prepared_folder`."""
    return _load_tokens(prepared_folder(settings), settings)


def prepared_folder(settings: Settings) -> Path:
    """The folder of the tokens that a run of --data documents prepares."""
    return settings.output_dir / "tokens"


def _load_tokens(folder: Path, settings: Settings) -> Text:
    if (folder / JOURNAL).is_file() and not (folder / META).is_file():
        raise TrainerError(f"{folder} is not finished; run python -m trainer prepare with it again")
    meta = _meta(folder / META)
    if meta.row is not None and meta.row != settings.context + 1:
        raise SettingsError(f"{folder} was prepared for --context {meta.row - 1}, not {settings.context}")
    train, held_out = _files(folder, "train", meta.dtype), _files(folder, "val", meta.dtype)
    ambiguous = sorted({file.path.name for file in train} & {file.path.name for file in held_out})
    if ambiguous:
        raise TrainerError(
            f"{folder}: {', '.join(ambiguous)} has train and val in its name; rename it to have one of them"
        )
    for name, files in (("train", train), ("val", held_out)):
        if not any(window_count(len(file), settings.context) for file in files):
            longest = max(len(file) for file in files)
            raise TrainerError(
                f"{folder}: the longest *{name}* file has {longest} tokens, too few for --context {settings.context}"
            )
    vocabulary = meta.vocabulary
    if vocabulary is None:
        vocabulary = 1 + _largest_token(folder, (*train, *held_out))
    if any(not 0 <= token < vocabulary for prompt in meta.prompts for token in prompt):
        raise TrainerError(f"{folder / META}: a token of its prompts is not 0 .. {vocabulary - 1}")
    splits = [
        TokenFiles(files, settings.context, vocabulary, [] if meta.row is None else _marks(files))
        for files in (train, held_out)
    ]
    return Text(
        train=splits[0],
        held_out=splits[1],
        context=settings.context,
        vocabulary=vocabulary,
        marked=meta.row is not None,
        tokenizer=None if meta.tokenizer is None else folder / meta.tokenizer,
        prompts=meta.prompts,
    )


class _Meta(BaseModel):
    """The keys of meta.json that are read; others are allowed."""

    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] = "uint16"
    vocabulary: int | None = Field(default=None, ge=1, strict=True)
    row: int | None = Field(default=None, ge=2)
    tokenizer: str | None = Field(default=None, pattern=r"^[\w-]+$")
    prompts: tuple[tuple[int, ...], ...] = ()


def _meta(path: Path) -> _Meta:
    if not path.is_file():
        return _Meta()
    try:
        return _Meta.model_validate(json.loads(path.read_bytes()))
    except OSError as error:
        raise TrainerError(f"{path} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        expected = f'{{"dtype": one of {", ".join(_DTYPES)}, "vocabulary": a whole number}}'
        raise TrainerError(f"{path} is not {expected}: {' '.join(str(error).split())[:200]}") from error


def _marks(files: Sequence[MappedArray]) -> list[MappedArray]:
    marks = []
    for file in files:
        path = file.path.with_suffix(".marks")
        try:
            marks.append(MappedArray(path, "u1"))
        except (OSError, ValueError) as error:
            raise TrainerError(f"{path} cannot be used: {error}; prepare the tokens again") from error
        if len(marks[-1]) != len(file):
            raise TrainerError(f"{path} has {len(marks[-1])} marks for {len(file)} tokens; prepare the tokens again")
    return marks


def _files(folder: Path, name: str, kind: str) -> list[MappedArray]:
    paths = sorted(path for suffix in ("bin", "npy") for path in folder.glob(f"*{name}*.{suffix}"))
    if not paths:
        raise TrainerError(f"no {name}.bin or {name}.npy in {folder}; write the tokens there as {kind}")
    files = []
    for path in paths:
        try:
            files.append(MappedArray(path, _DTYPES[kind]))
        except (OSError, ValueError, EOFError) as error:
            raise TrainerError(f"{path} cannot be used: {error}") from error
    return files


def _largest_token(folder: Path, files: Sequence[MappedArray]) -> int:
    """The largest token of all files. Unchanged files are read only once, at the first start."""
    counts = cached_token_counts(
        folder,
        [_version_key(file) for file in files],
        lambda missing: [_count(files[number]) for number in missing],
    )
    return max(count.largest for count in counts)


def _version_key(file: MappedArray) -> str:
    status = file.path.stat()
    return f"{file.path.name}:{file.array().dtype}:{status.st_size}:{status.st_mtime_ns}"


def _count(file: MappedArray) -> TokenCount:
    array = file.array()
    chunks = (array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK))
    return TokenCount(len(array), max(int(chunk.max()) for chunk in chunks))
