"""Records of writers in shared checkpoint folders. A home cannot read the store of another one, so each run keeps a
small hidden file with the times of its attempts in a checkpoint folder that is outside of its home."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.core.config import open_regular
from gputui.recovery.ledger_inputs import AttemptSpan
from gputui.store.checkpoints import AFTER_END_SECONDS, Neighbour
from gputui.store.machine import Machine, this_machine

PREFIX = ".gputui-writer-"
# An agent renews its files several times a minute. A home without renewal for this long counts as gone; runs may
# outlive their agent, but their end starts a new one.
SILENT_SECONDS = 86_400.0
# After a reboot, or the removal of a home, an attempt had ended this long after its last renewal.
RENEWED_SECONDS = 20.0
MOST_RECORDS = 1000
MOST_PLACES = 100
MOST_ATTEMPTS = 500
MOST_BYTES = 1 << 16
MOST_CHARACTERS = 4096


class HomeIdentity(Struct, frozen=True):
    """A home, identified by path and inode of its state folder: in a container, another home may have the same path."""

    path: str
    inode: int
    machine: Machine

    @classmethod
    def of(cls, home: Path) -> HomeIdentity:
        """Raises OSError if the home is gone."""
        return cls(str(home), home.stat().st_ino, this_machine())

    def is_gone(self) -> bool:
        """Whether it was removed from this machine. Another user's home may be invisible, which does not count."""
        try:
            Path(self.path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            return False
        return False

    def is_same(self, other: HomeIdentity) -> bool:
        return (self.path, self.inode) == (other.path, other.inode) and self.machine.is_same(other.machine)


class WriterRecord(Struct, frozen=True):
    """The record of one run in a checkpoint folder.

    Attributes:
        folder: the folder's real path as the run's home sees it.
        attempts: begin and end of each, UTC unix seconds; the end is None while it lives.
        seen_at: the last renewal by its agent, UTC unix seconds.
    """

    path: Path
    home: HomeIdentity
    folder: str
    run_id: str
    attempts: tuple[tuple[float, float | None], ...]
    seen_at: float

    def ended_at(self, end: float | None, here: Machine, now: float) -> float | None:
        """The latest possible end of an attempt; None if it may be alive."""
        if end is not None:
            return end
        machine = self.home.machine
        is_rebooted = machine.machine_id == here.machine_id and machine.boot_id != here.boot_id
        if is_rebooted or (machine.is_same(here) and self.home.is_gone()):
            return self.seen_at + RENEWED_SECONDS
        return None if now - self.seen_at < SILENT_SECONDS else self.seen_at + SILENT_SECONDS


def others(
    home: Path, run_id: str, attempts: Sequence[AttemptSpan], folder: Path, paths: Iterable[str], now: float
) -> list[Neighbour]:
    """Attempts that write into a folder, or into subfolders of the paths in ``found``, and that this home's store does
    not know for it: those of other homes, and of runs that use another path of the folder. Records of this run's own
    attempts are skipped: its home was moved or copied. Raises OSError."""
    own, ours = HomeIdentity.of(home), {(run_id, span.begun_at) for span in attempts}
    folders = sorted({folder, *(Path(path).parent for path in paths)})[:MOST_PLACES]
    neighbours = []
    for shared_folder in folders:
        below = None if shared_folder == folder else str(shared_folder)
        for record in _records(shared_folder):
            if _is_known(record, own, shared_folder):
                continue
            name = record.run_id if record.home.is_same(own) else f"{record.run_id} of the home {record.home.path}"
            neighbours += [
                Neighbour(name, begun_at, record.ended_at(end, own.machine, now), below)
                for begun_at, end in record.attempts
                if (record.run_id, begun_at) not in ours
            ]
    return neighbours


def write_record(home: Path, run_id: str, attempts: Sequence[AttemptSpan], folder: Path, now: float) -> bool:
    """Write or renew a run's record, unless the folder is inside the home. False if the file cannot be written. ``now``
    is UTC unix seconds."""
    if not attempts or _is_inside(folder, home):
        return True
    # A folder that is missing or not writable gets no checkpoint now either.
    with suppress(OSError):
        own, real = HomeIdentity.of(home), os.path.realpath(folder)
        spans = [(span.begun_at, span.ended_at) for span in attempts[-MOST_ATTEMPTS:]]
        content = json.dumps({"home": msgspec.to_builtins(own), "folder": real, "run_id": run_id, "attempts": spans})
        name = f"{own.machine.machine_id} {own.path} {own.inode} {run_id}"
        path = folder / f"{PREFIX}{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            # Readable for other users, whatever the umask.
            os.fchmod(file.fileno(), 0o644)
        os.utime(temporary, (now, now))
        temporary.replace(path)
        return True
    return False


def remove_records(home: Path, folder: Path, now: float) -> None:
    """Remove this home's records that no foreign attempt overlaps in time. Raises OSError."""
    if _is_inside(folder, home):
        return
    own = HomeIdentity.of(home)
    records = list(_records(folder))
    foreign = [record for record in records if not _is_known(record, own, folder)]
    lives = [(begin, record.ended_at(end, own.machine, now)) for record in foreign for begin, end in record.attempts]
    for record in records:
        is_over = all(end is not None and end + AFTER_END_SECONDS < now for _, end in record.attempts)
        if _is_known(record, own, folder) and is_over and not _overlap(record.attempts, lives):
            with suppress(OSError):
                record.path.unlink(missing_ok=True)


def _is_known(record: WriterRecord, own: HomeIdentity, folder: Path) -> bool:
    """Whether this home's store knows these attempts for this folder."""
    return record.home.is_same(own) and record.folder == os.path.realpath(folder)


def _overlap(ours: Iterable[tuple[float, float | None]], theirs: Sequence[tuple[float, float | None]]) -> bool:
    return any(
        (their_end is None or begin <= their_end + AFTER_END_SECONDS)
        and (end is None or their_begin <= end + AFTER_END_SECONDS)
        for begin, end in ours
        for their_begin, their_end in theirs
    )


def _is_inside(folder: Path, home: Path) -> bool:
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(home))


def _records(folder: Path) -> Iterator[WriterRecord]:
    """The readable records, newest first. Raises OSError if the folder cannot be read."""
    times = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX):
                    with suppress(OSError):
                        times[entry.name] = entry.stat(follow_symlinks=False).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(times, key=lambda name: (-times[name], name))[:MOST_RECORDS]:
        with suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            yield _record(folder / name)


def _record(path: Path) -> WriterRecord:
    """Read a record. Raises one of the errors that `_records` suppresses if it is invalid."""
    with open_regular(path, flags=os.O_NOFOLLOW) as file:
        status = os.fstat(file.fileno())
        content = json.loads(file.read(MOST_BYTES))
    home = content["home"]
    machine = Machine(**home["machine"])
    texts = (home["path"], content["folder"], content["run_id"], *msgspec.to_builtins(machine).values())
    if not all(isinstance(text, str) and len(text) <= MOST_CHARACTERS for text in texts):
        raise TypeError(f"{path} holds something else than text")
    identity = HomeIdentity(home["path"], int(home["inode"]), machine)
    attempts = tuple((float(begin), None if end is None else float(end)) for begin, end in content["attempts"])
    return WriterRecord(
        path, identity, content["folder"], content["run_id"], attempts[-MOST_ATTEMPTS:], status.st_mtime
    )
