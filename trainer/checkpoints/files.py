"""A checkpoint's files: their names, hashes, and atomic writing.

::

    step_00000040.pt            in rotation: the newest few are kept
    step_00000040.pt.sha256     beside every checkpoint, in the format of sha256sum
    step_00000040.shards/       the ranks' shards of a sharded checkpoint
    phase_main/epoch_3.pt       the end of an epoch, never deleted
    best_model.pt               the best so far, with best_model.json for people

A state is written once, under a temporary name; the hash file exists before `publish` renames it. Further names of the
state are hard links. A name of a step is used once. Where another is used again, its hash file keeps the lines of the
former content until `settle`, so that the file matches them whenever the process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainer.checkpoints.streams import HashingFile
from trainer.errors import CheckpointError, SettingsError

FORMAT = 3

State = dict[str, Any]
# The SHA-256 of a checkpoint's file, with those of its shards by their names; two where the name is used again.
Hashes = dict[str, dict[str, str]]

_HASH_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S.*)")  # the star is that of sha256sum --binary

# --- names ------------------------------------------------------------------------------------------------------------


def step_file(directory: Path, step: int) -> Path:
    return directory / f"step_{step:08d}.pt"


def epoch_file(directory: Path, phase: str, epoch: int) -> Path:
    """Different phase names give different files, for any characters."""
    return directory / f"phase_{quote(phase or 'main', safe='')}" / f"epoch_{epoch}.pt"


def best_file(directory: Path) -> Path:
    return directory / "best_model.pt"


def hash_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def shards_folder(path: Path) -> Path:
    return path.with_suffix(".shards")


def shard_name(step: int, rank: int, ranks: int) -> str:
    """The name of a rank's shard. It has the step, so that another state of the same name never overwrites it."""
    return f"step_{step:08d}_rank_{rank}_of_{ranks}.pt"


# --- hashes -----------------------------------------------------------------------------------------------------------


def read_hashes(path: Path) -> Hashes:
    """The hashes beside a checkpoint. Raises CheckpointError if they are missing or damaged."""
    with _reading(path):
        lines = hash_file(path).read_text(encoding="utf-8").splitlines()
    entries = [match.groups() for line in lines if (match := _HASH_LINE.fullmatch(line))]
    if not entries or len(entries) < len(lines):
        raise CheckpointError(f"checkpoint {path} cannot be used: {hash_file(path)} is damaged")
    hashes: Hashes = {}
    for sha256, name in entries:
        if name == entries[0][1]:  # its own, whatever it is: both files may have been renamed
            shards = hashes.setdefault(sha256, {})
        else:
            shards[Path(name).name] = sha256
    return hashes


def verify(path: Path) -> None:
    """Raise CheckpointError unless the checkpoint and all its shards exist and have their recorded SHA-256."""

    def sha256_of(file: Path) -> str:
        with _reading(path), file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    actual = sha256_of(path)
    shards = read_hashes(path).get(actual)
    if shards is None:
        raise CheckpointError(f"checkpoint {path} is corrupt: sha256 mismatch")
    for name, sha256 in shards.items():
        if sha256_of(shards_folder(path) / name) != sha256:
            raise CheckpointError(f"checkpoint {path} is corrupt: sha256 mismatch in {name}")


@contextlib.contextmanager
def _reading(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used: {error.filename} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be read: {error}") from None


def _write_hashes(path: Path, hashes: Hashes) -> None:
    lines = ""
    for main_sha256, shards in hashes.items():
        lines += f"{main_sha256}  {path.name}\n"
        lines += "".join(f"{sha256}  {shards_folder(path).name}/{name}\n" for name, sha256 in sorted(shards.items()))
    replace(hash_file(path), lines.encode())
    sync_folder(path.parent)  # a power loss must not leave a new file with former hashes alone


# --- atomic writing ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield a temporary name for `path`, whose folder is made. If anything is raised inside, the file is deleted."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace(path: Path, content: bytes) -> None:
    """Replace the content of a small file atomically. Raises OSError; the file is unchanged then."""
    with unfinished(path) as temporary:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def publish(temporary: Path, path: Path, sha256: str, shards: dict[str, str]) -> None:
    """Rename written content to `path`. `shards` maps the names of its shards, in the folder of `path`, to SHA-256.

    Raises OSError; the former content of this name is still valid then.
    """
    hashes = {sha256: shards}
    if path.exists():
        with contextlib.suppress(CheckpointError):
            hashes = read_hashes(path) | hashes
    _write_hashes(path, hashes)
    temporary.replace(path)


def publish_link(source: Path, path: Path, sha256: str, shards: dict[str, str]) -> None:
    """Publish the content of `source`, which is already published, under another name. Raises OSError."""
    for name in shards:
        with unfinished(shards_folder(path) / name) as temporary:
            _link_or_copy(shards_folder(source) / name, temporary)
            temporary.replace(shards_folder(path) / name)
    if shards:
        sync_folder(shards_folder(path))
    with unfinished(path) as temporary:
        _link_or_copy(source, temporary)
        publish(temporary, path, sha256, shards)


def settle(path: Path, sha256: str, shards: dict[str, str]) -> None:
    """Make the name of a published checkpoint durable, and delete what its former content has left.

    Raises OSError; the published content is valid then.
    """
    sync_folder(path.parent)
    if read_hashes(path) != {sha256: shards}:
        _write_hashes(path, {sha256: shards})
    for shard in shards_folder(path).glob("*"):
        if shard.name not in shards:
            shard.unlink(missing_ok=True)
    if stale(path).exists():
        remove(stale(path))


def _link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link, or a synced copy if the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        with source.open("rb") as read, target.open("wb", buffering=0) as raw:
            shutil.copyfileobj(read, HashingFile(raw))
            os.fsync(raw.fileno())


def make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_writable(directory: Path) -> None:
    """Create the folder of --checkpoint-dir. Raises SettingsError if it is not writable.

    A full disk is no error: it may have space when the first checkpoint is written.
    """
    try:
        make_folder(directory)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise SettingsError(f"--checkpoint-dir {directory} cannot be made: {error.strerror}") from None
    else:
        if not os.access(directory, os.W_OK | os.X_OK):
            raise SettingsError(f"--checkpoint-dir {directory} is not writable; give another one, or --output-dir")


# --- setting aside and deleting ---------------------------------------------------------------------------------------


def stale(path: Path) -> Path:
    """The name of a file whose checkpoint belongs to an abandoned branch."""
    return path.with_name(path.name + ".stale")


def set_aside(path: Path) -> Path:
    """Rename a checkpoint with all its files to their `stale` names. Returns its own."""
    remove(stale(path))
    for file in _files_of(path):
        with contextlib.suppress(FileNotFoundError):
            file.replace(stale(file))
    return stale(path)


def remove(path: Path) -> None:
    """Delete a checkpoint, stale or not, with all its files."""
    files = _files_of(path)
    if path.suffix == ".stale":  # its other files are found by its name, so that goes last
        files = [stale(file) for file in reversed(_files_of(path.with_suffix("")))]
    for file in files:
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)


def _files_of(path: Path) -> list[Path]:
    """A checkpoint's own file first: without it, the others are no checkpoint, even if the process dies between."""
    return [path, hash_file(path), path.with_suffix(".json"), shards_folder(path)]


def remove_unfinished(directory: Path) -> None:
    """Delete what a killed process left: temporary files, and hashes and shards without a checkpoint."""
    ours = re.compile(r"\.?(step_\d{8,}|epoch_\d+|best_model|state_rank_\d+)[._].+")
    for path in [path for path in directory.rglob("*") if ours.fullmatch(path.name)]:
        if path.suffix == ".shards" and not path.with_suffix(".pt").exists():
            shutil.rmtree(path)
        elif (path.suffix == ".sha256" and not path.with_suffix("").exists()) or (
            path.name.startswith(".") and path.suffix == ".tmp"
        ):
            path.unlink(missing_ok=True)
