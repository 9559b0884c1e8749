"""Text as bytes: every file of a folder, or the Python source that every interpreter brings along."""

from __future__ import annotations

import errno
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Fields, Indices, Text
from trainer.data.disk import PartLengths, data_place, name_hashes, why, windows_in
from trainer.errors import TrainerError

VOCABULARY = 256  # the values of a byte
_HELD_OUT_ONE_IN = 25


class JoinedFiles:
    """Files one after another, a newline between two of them; read piece by piece, never held in memory."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [str(path) for path in paths]
        # The newline counts as the last byte of the file before it.
        self._parts = PartLengths([os.stat(path).st_size + 1 for path in paths])  # noqa: PTH116

    def __len__(self) -> int:
        return max(0, len(self._parts) - 1)

    def read(self, start: int, count: int) -> bytearray:
        """These bytes. Raises OSError naming a file that is gone or shorter than it was."""
        content = bytearray()
        part, offset = self._parts.place(start)
        while len(content) < count:
            size = self._parts.lengths[part] - 1
            wanted = min(size - offset, count - len(content))
            with open(self._paths[part], "rb", buffering=0) as file:  # noqa: PTH123
                file.seek(offset)
                piece = file.read(wanted)
            if len(piece) < wanted:
                raise OSError(
                    errno.EINVAL, f"it is shorter than the {size} bytes that it had at first", self._paths[part]
                )
            content += piece
            if len(content) < count:
                content += b"\n"
            part, offset = part + 1, 0
        return content


class ByteWindows:
    """Windows of the bytes from `start` to `stop`."""

    blocks = None

    def __init__(self, text: JoinedFiles, start: int, stop: int, context: int) -> None:
        self._text = text
        self._start = start
        self._windows = windows_in(stop - start, context)
        self._context = context

    def __len__(self) -> int:
        return self._windows

    def read(self, indices: Indices) -> Fields:
        tokens = np.empty((len(indices), self._context + 1), dtype=np.int64)
        for place, index in enumerate(indices.tolist()):
            start = self._start + index * self._context
            try:
                content = self._text.read(start, self._context + 1)
            except OSError as error:
                raise BrokenSample(index, str(error.filename), why(error)) from error
            tokens[place] = np.frombuffer(content, dtype=np.uint8)
        return {"tokens": torch.from_numpy(tokens)}


def text(settings: Settings) -> Text:
    """Every file below --data-dir, or that one file, as bytes; what begins with a dot is left out.

    About one file in 25 is held out, chosen by its path; where that leaves too little of either, such as with a single
    file, the last tenth of the whole text is.
    """
    place = data_place(settings, "text files", file_allowed=True)
    paths = [place] if place.is_file() else _files_below(place)
    return _windows(paths, place, settings.context, "add text, or lower --context")


def stdlib(settings: Settings) -> Text:
    """The modules at the top of the running interpreter's standard library; about one file in 25 is held out."""
    folder = Path(sysconfig.get_path("stdlib"))
    return _windows(
        sorted(folder.glob("*.py")), folder, settings.context, "use a Python that ships its library, or --data text"
    )


def _files_below(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [path for name in names if not name.startswith(".") and (path := Path(parent, name)).is_file()]
    return sorted(found)


def _windows(paths: Sequence[Path], place: Path, context: int, remedy: str) -> Text:
    hashes = name_hashes(os.fsencode(path.relative_to(place)) for path in paths)
    kept, picked = (
        JoinedFiles([paths[number] for number in np.flatnonzero(which).tolist()])
        for which in (hashes % _HELD_OUT_ONE_IN != 0, hashes % _HELD_OUT_ONE_IN == 0)
    )
    train, held_out = ByteWindows(kept, 0, len(kept), context), ByteWindows(picked, 0, len(picked), context)
    if not len(train) or not len(held_out):
        whole = JoinedFiles(paths)
        cut = len(whole) - len(whole) // 10
        train, held_out = ByteWindows(whole, 0, cut, context), ByteWindows(whole, cut, len(whole), context)
        if not len(train) or not len(held_out):
            found = f"{len(whole)} bytes of text in {len(paths)} files"
            raise TrainerError(f"{place} has {found}, too few for --context {context}: {remedy}")
    return Text(train=train, held_out=held_out, context=context, vocabulary=VOCABULARY)
