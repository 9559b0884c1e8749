"""Find the entries of a ``trainer_state.json`` in pieces, without parsing them."""

from __future__ import annotations

import json
import re
import zlib
from array import array
from pathlib import Path

import orjson

from gputui.core.config import open_regular
from gputui.metrics.contract import MAX_LINE_BYTES

PIECE_BYTES = 256 << 10

_STRING = rb'"(?:[^"\\]|\\.)*+"'
_KEY = re.compile(rb'"log_history"\s*:\s*\[')
_BETWEEN = re.compile(rb"[\s,]*")
# A flat object, as the Trainer writes them, is matched in one step; any other value bracket by bracket.
_FLAT = re.compile(rb'\{[^{}\[\]"]*+(?:' + _STRING + rb'[^{}\[\]"]*+)*+\}', re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_SCALAR = re.compile(_STRING + rb'(?=[\s,\]])|[^\s,{}\[\]"]+(?=[\s,\]])', re.DOTALL)


class HistoryScan:
    """The scan of one version of a file, written at ``modified_at`` (UTC unix seconds). After the last piece
    ``starts``, ``sizes`` (bytes) and ``marks`` describe each entry. ``is_damaged``: the file is no JSON document with a
    history, or is incomplete."""

    def __init__(self, path: str, version: str, modified_at: float) -> None:
        self.path = path
        self.version = version
        self.modified_at = modified_at
        self.starts = array("Q")
        self.sizes = array("I")
        self.marks = array("I")
        self.is_damaged = False
        self._is_done = False
        self._around = b""
        self._is_inside = False
        self._is_behind = False
        self._left = b""
        self._at = 0

    def advance(self) -> bool:
        """Scan the next piece; returns whether the scan is complete. A missing file counts as damaged. Raises
        OSError."""
        if self._is_done:
            return True
        try:
            with open_regular(Path(self.path)) as file:
                file.seek(self._at + len(self._left))
                piece = file.read(PIECE_BYTES)
        except FileNotFoundError:
            piece = b""
        buffer = self._left + piece
        used = self._scan(buffer)
        self._left = buffer[used:]
        self._at += used
        if not piece:
            self._end()
        elif len(self._left) > MAX_LINE_BYTES + PIECE_BYTES or len(self._around) > MAX_LINE_BYTES + PIECE_BYTES:
            # An entry, or the text around the entries, that does not end.
            self.is_damaged = self._is_done = True
        return self._is_done

    def _scan(self, buffer: bytes) -> int:
        """Scan the buffer; returns how many bytes are done."""
        used = 0
        if not self._is_inside and not self._is_behind:
            found = _KEY.search(buffer)
            if found is None:
                return 0
            self._around = buffer[: found.end()]
            self._is_inside, used = True, found.end()
        if self._is_inside:
            used = self._entries(buffer, used)
        if self._is_behind:
            self._around += buffer[used:]
            used = len(buffer)
        return used

    def _entries(self, buffer: bytes, at: int) -> int:
        starts, sizes, marks, crc32 = self.starts, self.sizes, self.marks, zlib.crc32
        between, flat = _BETWEEN.match, _FLAT.match
        while True:
            found = between(buffer, at)
            assert found is not None
            begin = found.end()
            if begin >= len(buffer):
                return begin
            entry = flat(buffer, begin)
            if entry is not None:
                end = entry.end()
            elif buffer[begin] == 0x5D:
                self._is_inside, self._is_behind = False, True
                return begin
            else:
                other = _end_of(buffer, begin)
                if other is None:
                    return begin
                end = other
            starts.append(self._at + begin)
            sizes.append(end - begin)
            marks.append(crc32(buffer[begin:end]))
            at = end

    def _end(self) -> None:
        self._is_done = True
        self.is_damaged = not (self._is_behind and _is_document(self._around))
        self._around = self._left = b""


def _end_of(buffer: bytes, begin: int) -> int | None:
    """The end of a value that is no flat object; None if it is not in the buffer."""
    if buffer[begin] not in b"{[":
        scalar = _SCALAR.match(buffer, begin)
        return None if scalar is None else scalar.end()
    depth = 0
    for token in _TOKEN.finditer(buffer, begin):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth == 0:
                    return token.end()
    return None


def _is_document(around: bytes) -> bool:
    """Whether the text around the entries is a document with an empty history."""
    try:
        document = orjson.loads(around)
    except orjson.JSONDecodeError:
        try:
            document = json.loads(around)
        except (ValueError, RecursionError):
            return False
    return isinstance(document, dict) and document.get("log_history") == []
