"""Files as TensorBoard's and W&B's own writers make them."""

from __future__ import annotations

import struct
from pathlib import Path

# By whether a chunk is the first of its record, and whether it is the last.
CHUNK_KINDS = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}


def framed(record: bytes) -> bytes:
    """The checksums are not read."""
    return struct.pack("<QI", len(record), 0) + record + bytes(4)


def chunked(records: list[bytes]) -> bytes:
    """As W&B's datastore writes."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        first = True
        rest = record
        while first or rest:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            part = rest[: room - 7]
            rest = rest[room - 7 :]
            kind = CHUNK_KINDS[first, not rest]
            out += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return bytes(out)


def event(step: int, /, **values: float) -> bytes:
    """One event as TensorBoard's writer makes it."""
    inner = b""
    for name, value in values.items():
        tag = name.encode()
        message = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
        inner += b"\x0a" + bytes([len(message)]) + message
    body = b"\x09" + struct.pack("<d", 1.6e9 + step) + b"\x10" + bytes([step])
    return framed(body + (b"\x2a" + bytes([len(inner)]) + inner if inner else b""))


def history(step: int, loss: float, /, **values: float) -> bytes:
    """One record of history as W&B's service makes it."""
    items = b""
    for name, value in {"_step": step, "_timestamp": 1.6e9 + step, "loss": loss, **values}.items():
        text = str(value)
        message = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x82\x01" + bytes([len(text)]) + text.encode()
        items += b"\x0a" + bytes([len(message)]) + message
    return b"\x12" + bytes([len(items)]) + items


def events_of(folder: Path, name: str = "events.out.tfevents.1.host.1.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def append(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(content)
