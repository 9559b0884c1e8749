"""A checkpoint's file: whole or not there, and never the last good one lost.

Writing has three parts. `stage` puts the content on disk under another name. `publish` records its hash and renames
it; from then on it counts. `forget_former` makes that durable and drops the hashes of what had the name before. A state
that is wanted under several names is staged once: `publish_again` makes hard links.
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
    """Content that is on disk, but not under its name yet."""

    temporary: Path
    sha256: str
    bytes: int


def save(state: Any, path: Path) -> int:
    """Writes a checkpoint and its hash; returns its size in bytes.

    Raises OSError if the disk is full or not writable; all other checkpoints are then as they were.
    """
    staged = stage(state, path)
    publish(staged, path)
    forget_former(staged, path)
    return staged.bytes


def stage(state: Any, path: Path, *, before_write: Callable[[Path], None] | None = None) -> Staged:
    """Writes what is to be called `path`, compressed where that ends in ``.gz``, and waits until the disk has it.

    `before_write` is called with `path` once the file is open. Raises OSError, leaving nothing behind.
    """
    make_folder(path.parent)
    temporary = names.temporary_file(path)
    with durable.removed_on_failure(temporary), temporary.open("wb", buffering=0) as raw:
        if before_write is not None:
            before_write(path)
        digest, size = streams.save(state, raw, compress=path.suffix == ".gz")
    return Staged(temporary, digest, size)


def publish(staged: Staged, path: Path, shards: Mapping[str, str] | None = None) -> None:
    """Gives staged content its name. `shards` are the names of its parts, in the folder of `path`, with their SHA-256.

    Whenever the process dies in here, the former file of this name or the new one is there and valid, provided that the
    shards of both are kept until `forget_former` has returned. Raises OSError; the former file is then as it was.
    """
    entries = _entries(staged, path, shards)
    former = _recorded(path) if path.exists() else []
    with _hashes_restored_on_failure(path, former), durable.removed_on_failure(staged.temporary):
        hashes.write(path, [*entries, *(entry for entry in former if entry not in entries)])
        sync_folder(path.parent)  # a power loss must not leave the new file with the former hash alone
        staged.temporary.replace(path)


def forget_former(staged: Staged, path: Path, shards: Mapping[str, str] | None = None) -> None:
    """Makes the name of what was published durable, and drops the hashes of what had it before.

    Raises OSError; the published file is then valid as long as the shards of the former one are there too.
    """
    sync_folder(path.parent)
    entries = _entries(staged, path, shards)
    if _recorded(path) != entries:
        hashes.write(path, entries)
        sync_folder(path.parent)


def lists_shards(path: Path, shards: Mapping[str, str]) -> bool:
    """Whether the hash file of `path` lists these shards: without them the file of that name would not be valid."""
    return set(_shard_entries(path, shards)) <= set(_recorded(path))


def publish_again(source: Path, staged: Staged, path: Path, shards: Mapping[str, str] | None = None) -> None:
    """Publishes under another name what is already published as `source`. Raises OSError."""
    make_folder(path.parent)
    temporary = names.temporary_file(path)
    with durable.removed_on_failure(temporary):
        link_or_copy(source, temporary)
    publish(Staged(temporary, staged.sha256, staged.bytes), path, shards)


def link_or_copy(source: Path, target: Path) -> None:
    """Another name for a file, or a durable copy where the file system has no hard links. Replaces `target`."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def read(path: Path) -> State:
    """The content of a verified checkpoint, on the CPU; where it is sharded, without its shards.

    Raises CheckpointError if it is something else.
    """
    state = load(path)
    made_with = state.get("format") if isinstance(state, dict) else None
    if made_with == FORMAT:
        return dict(state)
    if isinstance(made_with, int):
        raise CheckpointError(
            f"checkpoint {path} has format {made_with} and this trainer reads format {FORMAT}: finish that run with the"
            " trainer that began it, or start over with --resume none"
        )
    raise CheckpointError(f"checkpoint {path} was not written by this trainer (no format {FORMAT})")


def load(path: Path) -> Any:
    """What a file of a checkpoint holds. Raises CheckpointError."""
    try:
        return streams.load(path)
    except Exception as error:  # torch raises many types here; all mean that this file is no checkpoint of ours
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {first_line}") from error


def remove(path: Path) -> None:
    """Deletes a checkpoint with its hash and its shards. Where that is cut short, what is left is no checkpoint."""
    path.unlink(missing_ok=True)
    names.hash_file(path).unlink(missing_ok=True)
    if not any(main.exists() for main in names.main_files(names.shards_folder(path))):
        shutil.rmtree(names.shards_folder(path), ignore_errors=True)


def require_writable(directory: Path) -> None:
    """Makes the folder of --checkpoint-dir. Raises SettingsError if nothing could be written there, ever.

    A disk that is full now may have space when the first checkpoint comes.
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
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _hashes_restored_on_failure(path: Path, former: list[hashes.HashEntry]) -> Iterator[None]:
    """Where there is no room for them either, the hash file goes on listing the new ones too."""
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
    """What the hash file of `path` lists; nothing where that cannot be used."""
    try:
        return hashes.read(path)
    except CheckpointError:
        return []
