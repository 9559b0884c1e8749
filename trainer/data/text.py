"""Text as bytes: every file of a folder, or the Python source of the standard library."""

from __future__ import annotations

import errno
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from trainer.config import Settings
from trainer.data.concatenation import Concatenation
from trainer.data.contract import BrokenSample, Fields, Indices, Text
from trainer.data.paths import name_hashes, reason_of, require_data_dir
from trainer.data.windows import window_count
from trainer.errors import TrainerError

VOCABULARY = 256  # the values of a byte
_HELD_OUT_ONE_IN = 25


class JoinedFiles:
    """Files joined by newlines. They are read piece by piece; none is held in memory."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [str(path) for path in paths]
        # The newline counts as the last byte of the file before it.
        self._parts = Concatenation([os.stat(path).st_size + 1 for path in paths])  # noqa: PTH116

    def __len__(self) -> int:
        return max(0, len(self._parts) - 1)

    def read(self, start: int, count: int) -> bytearray:
        """Read `count` bytes from `start` on. Raises OSError naming a file that is gone or has become shorter."""
        content = bytearray()
        part, offset = self._parts.locate(start)
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
        self._windows = window_count(stop - start, context)
        self._context = context

    def __len__(self) -> int:
        return self._windows

    def read(self, indices: Indices) -> Fields:
        tokens = np.empty((len(indices), self._context + 1), dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            start = self._start + index * self._context
            try:
                content = self._text.read(start, self._context + 1)
            except OSError as error:
                raise BrokenSample(index, str(error.filename), reason_of(error)) from error
            tokens[row] = np.frombuffer(content, dtype=np.uint8)
        return {"tokens": torch.from_numpy(tokens)}


def text(settings: Settings) -> Text:
    """Every file below --data-dir, or that one file, as bytes; what begins with a dot is left out.

    About one file in 25 is held out, chosen by its path; where that leaves too little of either, such as with a single
    file, the last tenth of the whole text is.
    """
    source = require_data_dir(settings, "text files", allow_file=True)
    paths = [source] if source.is_file() else _files_below(source)
    return _split_text(paths, source, settings.context, "add text, or lower --context")


def stdlib(settings: Settings) -> Text:
    """The modules at the top of the running interpreter's standard library; about one file in 25 is held out."""
    folder = Path(sysconfig.get_path("stdlib"))
    return _split_text(
        sorted(folder.glob("*.py")), folder, settings.context, "use a Python that ships its library, or --data text"
    )


def _files_below(folder: Path) -> list[Path]:
    paths = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [path for name in names if not name.startswith(".") and (path := Path(parent, name)).is_file()]
    return sorted(paths)


def _split_text(paths: Sequence[Path], source: Path, context: int, remedy: str) -> Text:
    """Hold out files by their names relative to `source`, or else the last tenth of the joined text.

    Raises TrainerError with `remedy` if either split has no window.
    """
    hashes = name_hashes(os.fsencode(path.relative_to(source)) for path in paths)
    is_held_out = (hashes % _HELD_OUT_ONE_IN == 0).tolist()
    train_text, held_out_text = (
        JoinedFiles([path for path, held in zip(paths, is_held_out, strict=True) if held == wanted])
        for wanted in (False, True)
    )
    train = ByteWindows(train_text, 0, len(train_text), context)
    held_out = ByteWindows(held_out_text, 0, len(held_out_text), context)
    if not len(train) or not len(held_out):
        whole = JoinedFiles(paths)
        cut = len(whole) - len(whole) // 10
        train, held_out = ByteWindows(whole, 0, cut, context), ByteWindows(whole, cut, len(whole), context)
        if not len(train) or not len(held_out):
            raise TrainerError(
                f"{source} has {len(whole)} bytes of text in {len(paths)} files, "
                f"too few for --context {context}: {remedy}"
            )
    return Text(train=train, held_out=held_out, context=context, vocabulary=VOCABULARY)
