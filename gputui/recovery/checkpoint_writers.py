"""Which runs of other homes write into a checkpoint folder. A home does not know the store of another one; so each run
keeps a small hidden file, with the times of its attempts, in a checkpoint folder that is outside of its home."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gputui.recovery.checkpoint_ledger import StepSpan
from gputui.regular_files import open_regular
from gputui.store.checkpoints import AFTER_END_SECONDS, Neighbour
from gputui.store.machine import Machine, this_machine

PREFIX = ".gputui-writer-"
# An agent renews its files several times a minute. Its runs may live on without it, and it is started again when one
# ends; a home that is silent for longer is taken to be gone.
SILENT_SECONDS = 86_400.0
# After a reboot, and of a home that was removed, nothing lives on: this much later than it was renewed, an attempt had
# ended.
RENEWED_SECONDS = 20.0
MOST_RECORDS = 1000
MOST_PLACES = 100
MOST_ATTEMPTS = 500
MOST_BYTES = 1 << 16
MOST_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class HomeIdentity:
    """A home by the path and the inode of its state folder: in a container, another one may have the same path."""

    path: str
    inode: int
    machine: Machine

    @classmethod
    def of(cls, home: Path) -> HomeIdentity:
        """Raises OSError if the home is gone."""
        return cls(str(home), home.stat().st_ino, this_machine())

    def is_gone(self) -> bool:
        """Whether it was removed from this machine; another user's may only not be seen."""
        try:
            Path(self.path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            return False
        return False

    def is_same(self, other: HomeIdentity) -> bool:
        return (self.path, self.inode) == (other.path, other.inode) and self.machine.is_same(other.machine)


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """What one run tells of itself in a checkpoint folder.

    Attributes:
        folder: the folder as its home knows it, links resolved.
        attempts: begin and end of each, UTC unix seconds; the end is None while it lives.
        seen_at: when its agent last renewed the file, UTC unix seconds.
    """

    path: Path
    home: HomeIdentity
    folder: str
    run_id: str
    attempts: tuple[tuple[float, float | None], ...]
    seen_at: float

    def ended_at(self, end: float | None, here: Machine, now: float) -> float | None:
        """When an attempt ended at the latest; None if it may live."""
        if end is not None:
            return end
        machine = self.home.machine
        is_rebooted = machine.machine_id == here.machine_id and machine.boot_id != here.boot_id
        if is_rebooted or (machine.is_same(here) and self.home.is_gone()):
            return self.seen_at + RENEWED_SECONDS
        return None if now - self.seen_at < SILENT_SECONDS else self.seen_at + SILENT_SECONDS


def others(
    home: Path, run_id: str, attempts: Sequence[StepSpan], folder: Path, found: Iterable[str], now: float
) -> list[Neighbour]:
    """The attempts that write into a folder, or into one below it that holds some of what was found there (paths), and
    that the store of the home does not tell of: those of other homes, and of runs that know the folder by another path.
    A file of this run's own attempts is of a home that was moved or copied. Raises OSError."""
    own, ours = HomeIdentity.of(home), {(run_id, span.begun_at) for span in attempts}
    places = sorted({folder, *(Path(path).parent for path in found)})[:MOST_PLACES]
    neighbours = []
    for place in places:
        below = None if place == folder else str(place)
        for record in _records(place):
            if _is_known(record, own, place):
                continue
            name = record.run_id if record.home.is_same(own) else f"{record.run_id} of the home {record.home.path}"
            neighbours += [
                Neighbour(name, begun_at, record.ended_at(end, own.machine, now), below)
                for begun_at, end in record.attempts
                if (record.run_id, begun_at) not in ours
            ]
    return neighbours


def write_record(home: Path, run_id: str, attempts: Sequence[StepSpan], folder: Path, now: float) -> bool:
    """Tell others of a run's attempts, or renew what was told; nothing inside the home. False where no file could be
    made. ``now`` is UTC unix seconds."""
    if not attempts or _is_inside(folder, home):
        return True
    # A folder that is not there yet, or in which nothing can be made, gets no checkpoint now either.
    with suppress(OSError):
        own, real = HomeIdentity.of(home), os.path.realpath(folder)
        spans = [(span.begun_at, span.ended_at) for span in attempts[-MOST_ATTEMPTS:]]
        content = json.dumps({"home": asdict(own), "folder": real, "run_id": run_id, "attempts": spans})
        name = f"{own.machine.machine_id} {own.path} {own.inode} {run_id}"
        path = folder / f"{PREFIX}{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            # Other users read it too, whatever the umask.
            os.fchmod(file.fileno(), 0o644)
        os.utime(temporary, (now, now))
        temporary.replace(path)
        return True
    return False


def remove_records(home: Path, folder: Path, now: float) -> None:
    """Remove the files of this home that nobody else needs: an attempt must know only those that lived at its time, or
    just before or after it. Raises OSError."""
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
    """Whether the home's store tells of these attempts in this folder."""
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
    """The files that can be read, the newest first. Raises OSError if the folder cannot be."""
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
    """Raises one of what `_records` suppresses where it is no such file."""
    with open_regular(path, flags=os.O_NOFOLLOW) as file:
        status = os.fstat(file.fileno())
        content = json.loads(file.read(MOST_BYTES))
    home = content["home"]
    machine = Machine(**home["machine"])
    texts = (home["path"], content["folder"], content["run_id"], *asdict(machine).values())
    if not all(isinstance(one, str) and len(one) <= MOST_CHARACTERS for one in texts):
        raise TypeError(f"{path} holds something else than text")
    identity = HomeIdentity(home["path"], int(home["inode"]), machine)
    attempts = tuple((float(begin), None if end is None else float(end)) for begin, end in content["attempts"])
    return WriterRecord(
        path, identity, content["folder"], content["run_id"], attempts[-MOST_ATTEMPTS:], status.st_mtime
    )
