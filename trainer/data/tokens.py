"""Token files, mapped into memory: raw little-endian numbers (the layout of nanoGPT) or .npy arrays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Indices, Text
from trainer.data.disk import MappedArray, Parts, data_place, out_of_range, why, windows_in
from trainer.errors import TrainerError

_DTYPES = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
_SCANNED = 1 << 24  # tokens looked at together


class TokenFiles:
    """Windows of the tokens in some files; no window reaches over the end of a file."""

    blocks = None

    def __init__(self, files: Sequence[MappedArray], context: int, vocabulary: int) -> None:
        self._files = tuple(files)
        self._parts = Parts([windows_in(len(file), context) for file in files])
        self._context = context
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, indices: Indices) -> Fields:
        tokens = np.empty((len(indices), self._context + 1), dtype=np.int64)
        for part, places, offsets in self._parts.split(indices):
            file = self._files[part]
            try:
                array = file.array()
            except OSError as error:
                raise BrokenSample(int(indices[places[0]]), str(file.path), why(error)) from error
            for place, start in zip(places.tolist(), (offsets * self._context).tolist(), strict=True):
                tokens[place] = array[start : start + self._context + 1]
            wrong = out_of_range(tokens[places], self._vocabulary)
            if wrong is not None:
                where = f"{file.path}, from token {offsets[wrong] * self._context}"
                raise BrokenSample(int(indices[places[wrong]]), where, f"a token is not 0 .. {self._vocabulary - 1}")
        return {"tokens": torch.from_numpy(tokens)}


def tokens(settings: Settings) -> Text:
    """The files of --data-dir with train in their names, and, held out, those with val, as .bin or .npy.

    Numbers in .bin files are uint16 unless meta.json says otherwise: ``{"dtype": "uint32", "vocabulary": 128256}``.
    Without a vocabulary there, all files are read once to find their largest token.
    """
    folder = data_place(settings, "train.bin and val.bin (or .npy)")
    dtype, vocabulary = _meta(folder / "meta.json")
    train, held_out = _files(folder, "train", dtype), _files(folder, "val", dtype)
    for name, files in (("train", train), ("val", held_out)):
        if not any(windows_in(len(file), settings.context) for file in files):
            longest = max(len(file) for file in files)
            raise TrainerError(
                f"{folder}: the longest *{name}* file has {longest} tokens, too few for --context {settings.context}"
            )
    if vocabulary is None:
        vocabulary = 1 + max(_largest(file) for file in (*train, *held_out))
    return Text(
        train=TokenFiles(train, settings.context, vocabulary),
        held_out=TokenFiles(held_out, settings.context, vocabulary),
        context=settings.context,
        vocabulary=vocabulary,
    )


def _meta(path: Path) -> tuple[str, int | None]:
    """The type of the numbers in raw files, and the size of the vocabulary where it is known."""
    if not path.is_file():
        return _DTYPES["uint16"], None
    try:
        meta = json.loads(path.read_bytes())
        dtype, vocabulary = _DTYPES[meta.get("dtype", "uint16")], meta.get("vocabulary")
        if vocabulary is not None and (type(vocabulary) is not int or vocabulary < 1):
            raise ValueError(vocabulary)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = f'{{"dtype": one of {", ".join(_DTYPES)}, "vocabulary": a whole number}}'
        raise TrainerError(f"{path} is not {expected}: {type(error).__name__} {error}") from error
    return dtype, vocabulary


def _files(folder: Path, name: str, dtype: str) -> list[MappedArray]:
    paths = sorted(path for suffix in ("bin", "npy") for path in folder.glob(f"*{name}*.{suffix}"))
    if not paths:
        raise TrainerError(f"no {name}.bin or {name}.npy in {folder}; write the tokens there as uint16")
    files = []
    for path in paths:
        try:
            files.append(MappedArray(path, dtype))
        except (OSError, ValueError, EOFError) as error:
            raise TrainerError(f"{path} cannot be used: {error}") from error
    return files


def _largest(file: MappedArray) -> int:
    array = file.array()
    return max(int(array[start : start + _SCANNED].max()) for start in range(0, len(array), _SCANNED))
