"""Writing one state to disk under all its names."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from trainer.checkpoints import best, durable, files, names, rotation, sharded, streams
from trainer.checkpoints.snapshot import HostSnapshot
from trainer.config import Settings
from trainer.errors import RankError
from trainer.world import World

T = TypeVar("T")


@dataclass
class WriteJob:
    """A state to write, and the result once `write` has run.

    `snapshot` holds (state, pieces) of this rank: the state is needed on rank 0 only, and the pieces are None unless
    the checkpoint is sharded. The first of `paths` is written, the others are links to it.
    """

    step: int
    paths: tuple[Path, ...]
    best_value: float | None  # of best_metric, if one of the paths is the best checkpoint's
    snapshot: HostSnapshot
    began: float  # time.perf_counter
    blocked_seconds: float = 0.0
    seconds: float | None = None
    bytes: int = 0
    error: OSError | None = None  # the disk's error; the same on all ranks of a sharded checkpoint
    problem: str | None = None  # the checkpoint is valid, but older ones could not be deleted
    crash: BaseException | None = None  # any other error: a bug, to be raised in the training thread

    def write(self, settings: Settings, world: World, before_write: Callable[[int, Path], None] | None) -> None:
        """Write the checkpoint. Never raises: it may run in a thread. Collective if the checkpoint is sharded."""
        try:
            _CheckpointWrite(self, settings, world, before_write).run()
        except OSError as error:
            self.error = error
        except BaseException as error:
            self.crash = error
        self.seconds = time.perf_counter() - self.began


class _CheckpointWrite:
    """The steps of `WriteJob.write`, and the agreement of all ranks on errors."""

    def __init__(
        self, job: WriteJob, settings: Settings, world: World, before_write: Callable[[int, Path], None] | None
    ) -> None:
        self.job = job
        self.settings = settings
        self.world = world
        self.before_write = before_write
        self.state: files.State
        self.pieces: sharded.Pieces | None
        self.state, self.pieces = job.snapshot.state
        self.bug: Exception | None = None  # of this rank

    def run(self) -> None:
        if self.pieces is None:
            self.job.snapshot.wait()
            self._write_main({})
            return
        pieces = self.pieces
        shards: dict[str, str] = {}
        for rank, result in enumerate(self.world.gather(self._attempt(lambda: self._write_own_shard(pieces)))):
            if isinstance(result, Exception):
                self._fail(result)
            shards[self._shard_name(rank)], size = result
            self.job.bytes += size
        main_error: Exception | None = None
        listing: list[Path] = []
        if self.world.is_main:
            main_error = self._attempt(lambda: self._write_main(shards))
            listing = [path for path in self.job.paths if files.lists_shards(path, shards)]
        listing, main_error = self.world.from_main((listing, main_error))
        if main_error is not None:
            self._fail(main_error, listing)

    def _attempt(self, work: Callable[[], T]) -> T | Exception:
        """Return the result of `work`, or its error in a form that can be sent to the other ranks.

        An OSError is sent unchanged. Any other error is a bug: this rank raises it, and the others a RankError.
        """
        try:
            return work()
        except OSError as error:
            return error
        except Exception as error:
            self.bug = error
            return RankError(f"rank {self.world.rank} could not write its checkpoint: {type(error).__name__}: {error}")

    def _fail(self, error: Exception, listing: Sequence[Path] = ()) -> NoReturn:
        self._remove_own_shard(listing)
        raise self.bug or error

    def _write_own_shard(self, pieces: sharded.Pieces) -> tuple[str, int]:
        self.job.snapshot.wait()
        first, *others = self._own_shards()
        with streams.writing():
            staged = files.stage(pieces, first)
            with durable.removed_on_failure(staged.temporary):
                staged.temporary.replace(first)
            for other in others:
                files.make_folder(other.parent)
                files.link_or_copy(first, other)
            for path in (first, *others):
                files.sync_folder(path.parent)
        return staged.sha256, staged.bytes

    def _write_main(self, shards: dict[str, str]) -> None:
        job = self.job
        first, *others = job.paths
        state = {**self.state, "shards": shards} if shards else self.state
        step, before_write = job.step, self.before_write
        best_path = self._best_path()
        with streams.writing():
            staged = files.stage(
                state, first, before_write=None if before_write is None else lambda path: before_write(step, path)
            )
            job.bytes += staged.bytes
            files.publish(staged, first, shards)
            for other in others:
                files.publish_again(first, staged, other, shards)
            if job.best_value is not None:
                best.write_record(best_path, state, self.settings.best_metric, job.best_value)
        try:
            for path in job.paths:
                # Former shards are needed as long as they are listed.
                files.forget_former(staged, path, shards)
                _remove_other_shards(path, shards)
            if job.best_value is not None:
                rotation.forget_stale_best(best_path)
            rotation.prune(self.settings.checkpoint_dir, self.settings.keep, known_valid=first)
        except OSError as error:
            job.problem = f"older checkpoints could not be deleted: {error}"

    def _best_path(self) -> Path:
        return names.best_file(self.settings.checkpoint_dir)

    def _shard_name(self, rank: int) -> str:
        return names.shard_file(self.job.step, rank, self.world.size)

    def _own_shards(self) -> list[Path]:
        return [names.shards_folder(path) / self._shard_name(self.world.rank) for path in self.job.paths]

    def _remove_own_shard(self, listing: Sequence[Path]) -> None:
        """After a failure, remove this rank's shards, except of the paths in `listing`, whose hash files list them."""
        for path, shard in zip(self.job.paths, self._own_shards(), strict=True):
            if path not in listing:
                with contextlib.suppress(OSError):
                    shard.unlink(missing_ok=True)
                    shard.parent.rmdir()  # succeeds on the last rank


def _remove_other_shards(path: Path, shards: dict[str, str]) -> None:
    """Delete the shards of a former checkpoint of this name."""
    folder = names.shards_folder(path)
    if not shards:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for other in list(folder.iterdir()):
        if other.name not in shards:
            other.unlink(missing_ok=True)
