"""Validation of checkpoints, without PyTorch and without unpickling. Standard library only, for any
Python from 3.9 on, because targets validate by it too.

A file is valid only after its content was checked: against the SHA-256 beside it
(``<name>.sha256``, in the format of sha256sum; other files listed there belong to the checkpoint),
else by the CRCs of its ZIP members (``torch.save``) or of its gzip stream, else by the layout of a
safetensors file. A folder has in addition what its format writes last.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from gputui.core.files import open_regular, read_regular
from gputui.runs.checkpoint_files import CHECKSUM_SUFFIX, files_of, is_unfinished
from gputui.runs.checkpoint_names import step_in_name

# Room for tens of thousands of parts; for the largest header that safetensors allows; an index.
MAX_CHECKSUMS_BYTES = 4 << 20
MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
MAX_INDEX_BYTES = 256 << 20  # an index names each tensor; a file of tensors is larger

PIECE_BYTES = 1 << 20  # keeps the memory small at no loss of speed
_ZIP_MAGIC = b"PK\x03\x04"
_GZIP_MAGIC = b"\x1f\x8b"
# In a checkpoint folder, files with these suffixes contain weights and must each be valid.
_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gz")
_CHECKSUM_LINE = re.compile(r"\\?([0-9a-fA-F]{64})(?: [ *](.+))?")
# File names in the index of torch.distributed.checkpoint, a pickle that has them as text.
_DISTRIBUTED_NAME = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")
_TRAINER_FOLDER = re.compile(r"checkpoint-\d+")
# What damaged JSON, or JSON of another form, raises.
_BAD_JSON = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class CheckpointInfo(NamedTuple):
    """A checkpoint and the result of its validation.

    Attributes:
        step: None if unknown.
        why: what was checked, or what is wrong, as the end of a sentence about it.
        place: in the order of the run's checkpoints.
        is_unknown: its format cannot be checked.
        is_unreadable: it could not be read now.
        is_missing: it could not be read because it does not exist.
        is_replaced: something else is there now.
    """

    path: Path
    step: int | None
    valid: bool
    why: str
    size_bytes: int | None = None
    place: int = 0
    is_unknown: bool = False
    is_unreadable: bool = False
    is_missing: bool = False
    is_replaced: bool = False


class Checksums(NamedTuple):
    """The accepted digests of a checkpoint; a file has two while it is being replaced.

    Attributes:
        whole: those of the checkpoint itself.
        parts: those of each part, by path relative to its folder.
    """

    whole: set[str]
    parts: Mapping[str, set[str]]


class InvalidError(Exception):
    """The checkpoint is damaged or incomplete; the message completes "the checkpoint …"."""


class _UnknownFormatError(InvalidError):
    """The format cannot be checked."""


def validate(path: Path) -> CheckpointInfo:
    """Validate a checkpoint, which is a file or a folder. Never raises."""
    info = CheckpointInfo(path, step_in_name(path, path.parent.parent), valid=False, why="")
    try:
        status = path.stat()
        info = info._replace(size_bytes=status.st_size)
        why = _check_folder(path) if stat.S_ISDIR(status.st_mode) else _check_file(path)
    except InvalidError as error:
        return info._replace(why=str(error), is_unknown=isinstance(error, _UnknownFormatError))
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        is_missing = error.errno == errno.ENOENT
        return info._replace(why=why, is_unreadable=True, is_missing=is_missing)
    return info._replace(valid=True, why=why)


# --- files ------------------------------------------------------------------------------------


def _check_file(path: Path) -> str:
    """Check a file and return what was checked. Raises InvalidError or OSError."""
    with open_regular(path) as file:
        magic = file.read(len(_ZIP_MAGIC))
        file.seek(0)
        if not magic:
            raise InvalidError("is empty")
        recorded = checksums_of(path)
        if recorded is not None:
            return _check_hashes(path, file, recorded)
        if magic == _ZIP_MAGIC:
            return _check_zip(file)
        if magic.startswith(_GZIP_MAGIC):
            return _check_gzip(file)
        if path.suffix == ".safetensors":
            return _check_safetensors(file, path.stat().st_size)
    raise _UnknownFormatError(
        f"has no {CHECKSUM_SUFFIX} file beside it and a format that cannot be checked (none of ZIP, gzip, safetensors)"
    )


def _check_hashes(path: Path, file: BufferedReader, recorded: Checksums) -> str:
    if _sha256_of(file) not in recorded.whole:
        raise InvalidError(f"does not match the SHA-256 in {path.name}{CHECKSUM_SUFFIX}")
    for name, digests in recorded.parts.items():
        part = path.parent / name
        if not part.resolve().is_relative_to(path.parent.resolve()):
            raise InvalidError(f"lists {name} in its {CHECKSUM_SUFFIX} file, which is elsewhere")
        try:
            with open_regular(part) as opened:
                matches = _sha256_of(opened) in digests
        except FileNotFoundError:
            raise InvalidError(f"lacks its part {name}") from None
        if not matches:
            raise InvalidError(f"has a part that does not match its SHA-256: {name}")
    if not recorded.parts:
        return "matches its SHA-256"
    return f"matches its SHA-256, and so do its {len(recorded.parts)} parts"


def _sha256_of(file: BufferedReader) -> str:
    digest = hashlib.sha256()
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def checksums_of(path: Path) -> Checksums | None:
    """The hashes beside a file; None if there are none. Raises InvalidError or OSError.

    The first line belongs to the checkpoint whatever its name, so that both can be renamed together.
    """
    try:
        data = read_regular(path.with_name(path.name + CHECKSUM_SUFFIX), MAX_CHECKSUMS_BYTES)
    except FileNotFoundError:
        return None
    except ValueError:
        data = b"too large to be one"
    lines = [line.rstrip() for line in data.decode("utf-8", "replace").splitlines()]
    matches = [match for line in lines if line and (match := _CHECKSUM_LINE.fullmatch(line))]
    if not matches or len(matches) < sum(map(bool, lines)):
        raise InvalidError(f"has a {CHECKSUM_SUFFIX} file beside it that is damaged")
    names: set[str] = set()
    parts: dict[str, set[str]] = {}
    for digest, name in (match.groups() for match in matches):
        digests = names
        if name not in (None, path.name, matches[0][2]):
            digests = parts.setdefault(name, set())
        digests.add(digest.lower())
    return Checksums(names, parts)


def _check_zip(file: BufferedReader) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            damaged = archive.testzip()
    except OSError as error:
        # Not of the disk: a damaged bzip2 stream has no number, a negative offset this one.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise InvalidError(f"is damaged: {error}") from None
    # Each module of compression has errors of its own; lzma may not even be there on a target.
    except Exception as error:
        raise InvalidError(f"is damaged: {error or 'it is cut short'}") from None
    # PyTorch does not read what it takes for a folder, and returns memory that was never written.
    folders = (member for member in members if member.filename.endswith("/") or member.external_attr & 16)
    if any(folder.file_size for folder in folders):
        raise InvalidError("is damaged: a member with content is marked as a folder")
    if damaged is not None or not members:
        why = f"the CRC of {damaged} is wrong" if damaged else "it has no content"
        raise InvalidError(f"is damaged: {why}")
    return f"the CRC of each of its {len(members)} members was checked"


def _check_gzip(file: BufferedReader) -> str:
    size = 0
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            while piece := stream.read(PIECE_BYTES):
                size += len(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidError(f"is damaged: {error}") from None
    if not size:
        raise InvalidError("is damaged: it unpacks to nothing")
    return "the CRC of its gzip stream was checked"


def _check_safetensors(file: BufferedReader, size: int) -> str:
    """Compare the header with the file: eight bytes with its length, the header as JSON, then the
    tensors without gaps (github.com/huggingface/safetensors, "Format")."""
    head = file.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise InvalidError("is cut short: its header is not all there")
    try:
        header: dict[str, Any] = json.loads(file.read(length))
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        ranges = sorted(tuple(entry["data_offsets"]) for entry in entries)
        ends = [0, *(stop for _, stop in ranges)]
        has_gaps = [start for start, _ in ranges] != ends[:-1]
        described = 8 + length + ends[-1]
    except _BAD_JSON:
        raise InvalidError("is damaged: its header cannot be read") from None
    if described != size or has_gaps:
        raise InvalidError(f"is damaged: its header describes {described} bytes, it has {size}")
    return "its header describes the file exactly (the format has no checksum)"


# --- folders ----------------------------------------------------------------------------------


def _check_folder(path: Path) -> str:
    """Check that every file of weights is valid, and that nothing which its format needs lacks."""
    contents = [entry for entry in files_of(path) if not entry.name.endswith(CHECKSUM_SUFFIX)]
    if not contents:
        raise InvalidError("is an empty folder")
    unfinished = next((entry.name for entry in contents if is_unfinished(entry.name)), None)
    if unfinished is not None:
        what = "is still being written, or its writing was cut short"
        raise InvalidError(f"{what}: it holds {unfinished}")
    _check_indexes(path, contents)
    _check_trainer(path, {entry.name for entry in contents if entry.parent == path})
    states = (entry for entry in contents if entry.name.endswith("_model_states.pt"))
    for folder in sorted({entry.parent for entry in states}):
        _check_deepspeed(folder)
    for entry in contents:
        try:
            if entry.name.endswith(_WEIGHTS) or checksums_of(entry) is not None:
                _check_file(entry)
            elif entry.suffix == ".distcp" and not entry.stat().st_size:
                raise InvalidError("is empty")
        except InvalidError as error:
            raise type(error)(f"{entry.relative_to(path)} {error}") from None
    return f"each of its {len(contents)} files was checked"


def _check_indexes(path: Path, files: Sequence[Path]) -> None:
    """Compare the files with what ``.metadata`` and ``*.index.json`` name."""
    present = set(files)
    for folder in {entry.parent for entry in files if entry.suffix == ".distcp"}:
        if folder / ".metadata" not in present or not (folder / ".metadata").stat().st_size:
            raise InvalidError("is a distributed checkpoint without its .metadata")
    for entry in files:
        try:
            if entry.name == ".metadata":
                data = read_regular(entry, MAX_INDEX_BYTES)
                file_names = {match.decode() for match in _DISTRIBUTED_NAME.findall(data)}
            elif entry.name.endswith(".index.json"):
                index = json.loads(read_regular(entry, MAX_INDEX_BYTES))
                file_names = {str(name) for name in index["weight_map"].values()}
            else:
                continue
        except _BAD_JSON:
            raise InvalidError(f"has an index that cannot be read: {entry.name}") from None
        missing = sorted(name for name in file_names if entry.parent / name not in present)
        if missing:
            raise InvalidError(f"lacks {missing[0]}, which {entry.relative_to(path)} names")


def _check_trainer(path: Path, names: set[str]) -> None:
    """A folder of the Hugging Face Trainer has its trainer_state.json, which is written last.
    Accelerate's, of the same name, has random states."""
    has_config = names & {"config.json", "adapter_config.json"}
    if not _TRAINER_FOLDER.fullmatch(path.name) or not has_config:
        return
    if any(name.startswith("random_states") for name in names):
        return
    is_saved = any(name.endswith(_WEIGHTS) for name in names)
    if not is_saved or "trainer_state.json" not in names:
        what = "trainer_state.json" if is_saved else "weights"
        raise InvalidError(f"lacks its {what}: its save was cut short")


def _check_deepspeed(folder: Path) -> None:
    """A folder of DeepSpeed is complete once ``latest`` beside it names it, or a later one."""
    step = step_in_name(folder)
    try:
        latest = (folder.parent / "latest").read_text("utf-8", "replace")[:1000].strip()
    except FileNotFoundError:
        states = folder.parent.glob("*/*_model_states.pt")
        # Scripts may save without it, but then no earlier one has it either.
        if step is None or any(state.parent != folder for state in states):
            return
        raise InvalidError("is not named by a file latest: its save was cut short") from None
    latest_step = step_in_name(Path(latest))
    if latest != folder.name and step is not None and latest_step is not None and latest_step < step:
        raise InvalidError(f"is newer than {latest}, which latest names: its save was cut short")
