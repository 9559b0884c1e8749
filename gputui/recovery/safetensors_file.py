"""Validation of safetensors files. The format has no checksum, so the header must describe the file to the last byte.

Layout after github.com/huggingface/safetensors, "Format": eight bytes with the length of the header, the header as
JSON, then the tensors without gaps.
"""

from __future__ import annotations

import json
import math
from typing import IO, Any

# The format's own limit.
MAX_HEADER_BYTES = 100_000_000

# Bytes per element; tensors of other types are not compared with their shape.
_ELEMENT_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class DamagedHeaderError(Exception):
    """The file is damaged or incomplete; the message completes "the checkpoint …"."""


def check(file: IO[bytes], size: int) -> None:
    """Compare the header with the file's ``size``. Raises DamagedHeaderError or OSError."""
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise DamagedHeaderError("is cut short: its header is not all there")
    try:
        header = json.loads(file.read(length))
        end = _data_end(header)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedHeaderError("is damaged: its header cannot be read") from None
    if 8 + length + end != size:
        raise DamagedHeaderError(f"is damaged: its header describes {8 + length + end} bytes, it has {size}")


def _data_end(header: dict[str, Any]) -> int:
    """The end of the data, relative to the header's end. Tensors must have no gaps, and sizes that match their shapes.
    Raises ValueError, TypeError or KeyError."""
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    end = 0
    for entry in sorted(entries, key=lambda entry: tuple(entry["data_offsets"])):
        start, stop = entry["data_offsets"]
        if not isinstance(start, int) or not isinstance(stop, int) or start != end or stop < start:
            raise ValueError("offsets")
        element = _ELEMENT_BYTES.get(entry["dtype"])
        if element is not None and stop - start != element * math.prod(entry["shape"]):
            raise ValueError("a shape that does not fit its offsets")
        end = stop
    return end
