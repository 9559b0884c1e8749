"""A checkpoint's file, written atomically: the last valid one of its name is never lost.

Writing has three parts. `stage` writes the content to disk under a temporary name. `publish` records its hash and
renames it; from then on it counts. `forget_former` makes the name durable and drops the hashes of the former file. A
state with several names is staged once: `publish_again` makes hard links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoints import durable, hashes, names, streams
from trainer.errors import CheckpointError, SettingsError

FORMAT = 2

State = dict[str, Any]


@dataclass(frozen=True)
class Staged:
    """Content on disk under a temporary name."""

    temporary: Path
    sha256: str
    bytes: int


def save(state: Any, path: Path) -> int:
    """Write a checkpoint and its hash. Returns its size in bytes.

    Raises OSError if the disk is full or not writable; all other checkpoints are unchanged then.
    """
    staged = stage(state, path)
    publish(staged, path)
    forget_former(staged, path)
    return staged.bytes


def stage(state: Any, path: Path, *, before_write: Callable[[Path], None] | None = None) -> Staged:
    """Write and sync the content of `path` under a temporary name.

    `before_write` is called with `path` once the file is open. Raises OSError, and leaves nothing behind.
    """
    make_folder(path.parent)
    temporary = names.temporary_file(path)
    with durable.removed_on_failure(temporary), temporary.open("wb", buffering=0) as raw:
        if before_write is not None:
            before_write(path)
        digest, size = streams.save(state, raw)
    return Staged(temporary, digest, size)


def publish(staged: Staged, path: Path, shards: Mapping[str, str] | None = None) -> None:
    """Rename staged content to `path`. `shards` maps the names of its shards, in the folder of `path`, to SHA-256.

    If the process dies here, the former or the new file of this name is valid, provided that the shards of both are
    kept until `forget_former` has returned. Raises OSError; the former file is unchanged then.
    """
    entries = _entries(staged, path, shards)
    former = _recorded(path) if path.exists() else []
    with _hashes_restored_on_failure(path, former), durable.removed_on_failure(staged.temporary):
        hashes.write(path, [*entries, *(entry for entry in former if entry not in entries)])
        sync_folder(path.parent)  # a power loss must not leave the new file with the former hash alone
        staged.temporary.replace(path)


def forget_former(staged: Staged, path: Path, shards: Mapping[str, str] | None = None) -> None:
    """Make the name of a published file durable, and drop the hashes of the former file.

    Raises OSError; the published file is valid then as long as the shards of the former one exist, too.
    """
    sync_folder(path.parent)
    entries = _entries(staged, path, shards)
    if _recorded(path) != entries:
        hashes.write(path, entries)
        sync_folder(path.parent)


def lists_shards(path: Path, shards: Mapping[str, str]) -> bool:
    """Whether the hash file of `path` lists these shards, so that it is invalid without them."""
    return set(_shard_entries(path, shards)) <= set(_recorded(path))


def publish_again(source: Path, staged: Staged, path: Path, shards: Mapping[str, str] | None = None) -> None:
    """Publish `source`, which is already published, under another name. Raises OSError."""
    make_folder(path.parent)
    temporary = names.temporary_file(path)
    with durable.removed_on_failure(temporary):
        link_or_copy(source, temporary)
    publish(Staged(temporary, staged.sha256, staged.bytes), path, shards)


def link_or_copy(source: Path, target: Path) -> None:
    """Replace `target` by a hard link to `source`, or by a synced copy if the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        with source.open("rb") as read, target.open("wb", buffering=0) as raw:
            shutil.copyfileobj(read, streams.HashingFile(raw))
            os.fsync(raw.fileno())


def read(path: Path) -> State:
    """The content of a verified checkpoint, on the CPU; of a sharded one without its shards.

    Raises CheckpointError if it is no checkpoint of this format.
    """
    state = load(path)
    version = state.get("format") if isinstance(state, dict) else None
    if version == FORMAT:
        return dict(state)
    if isinstance(version, int):
        raise CheckpointError(
            f"checkpoint {path} has format {version} and this trainer reads format {FORMAT}: finish that run with the"
            " trainer that began it, or start over with --resume none"
        )
    raise CheckpointError(f"checkpoint {path} was not written by this trainer (no format {FORMAT})")


def load(path: Path) -> Any:
    """The content of any file of a checkpoint. Raises CheckpointError."""
    try:
        return streams.load(path)
    except Exception as error:  # torch raises many types here; all mean that this file is no checkpoint of ours
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {first_line}") from error


def remove(path: Path) -> None:
    """Delete a checkpoint with its hash and shards. If interrupted, the remains do not count as a checkpoint."""
    path.unlink(missing_ok=True)
    names.hash_file(path).unlink(missing_ok=True)
    shutil.rmtree(names.shards_folder(path), ignore_errors=True)


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


@contextlib.contextmanager
def _hashes_restored_on_failure(path: Path, former: list[hashes.HashEntry]) -> Iterator[None]:
    """Restore the former hashes if anything is raised. If the disk refuses, the hash file keeps listing both."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            if former:
                hashes.write(path, former)
            elif not path.exists():
                names.hash_file(path).unlink(missing_ok=True)
        raise


def _entries(staged: Staged, path: Path, shards: Mapping[str, str] | None) -> list[hashes.HashEntry]:
    return [hashes.HashEntry(path.name, staged.sha256), *_shard_entries(path, shards or {})]


def _shard_entries(path: Path, shards: Mapping[str, str]) -> list[hashes.HashEntry]:
    folder = names.shards_folder(path).name
    return [hashes.HashEntry(f"{folder}/{name}", digest) for name, digest in sorted(shards.items())]


def _recorded(path: Path) -> list[hashes.HashEntry]:
    """The entries of the hash file of `path`; empty if it cannot be used."""
    try:
        return hashes.read(path)
    except CheckpointError:
        return []
