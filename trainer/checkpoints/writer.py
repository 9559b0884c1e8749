"""Writing a checkpoint: the ranks' shards, then the main file under all its names; and what came of it."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from trainer.checkpoints import files, rotation, streams
from trainer.checkpoints.files import State
from trainer.checkpoints.state import Pieces
from trainer.config import Settings
from trainer.errors import RankError
from trainer.world import World

T = TypeVar("T")

BeforeWrite = Callable[[int, Path], None]


@dataclass(frozen=True)
class CheckpointJob:
    """A state to write on this rank."""

    step: int
    paths: list[Path]  # all but the first become links
    state: State  # in host memory; empty but on rank 0
    pieces: Pieces | None  # this rank's, in host memory; None unless the checkpoint is sharded
    score: float | None  # the state's best_metric, if one of the names is the best checkpoint's
    began: float  # time.perf_counter
    blocked_seconds: float  # while training waited; 0 if it waits until all is written


@dataclass
class Outcome:
    """What came of a checkpoint that was due, in the terms of a line of metrics. Only rank 0's counts."""

    step: int
    path: Path
    also: tuple[Path, ...]  # further names of the same content
    event: Literal["checkpoint", "checkpoint_failed", "checkpoint_skipped"]
    blocked_seconds: float = 0.0  # while training waited
    seconds: float | None = None  # until it was on disk
    bytes: int | None = None  # on disk, shards included
    error: str | None = None  # why it or a further name was not written, or why older ones could not be deleted
    failure: OSError | None = None  # by which it or a further name was not written


class Writer:
    """Writes the files of one checkpoint at a time. It decides nothing, and knows nothing of threads."""

    def __init__(self, settings: Settings, world: World, before_write: BeforeWrite | None) -> None:
        self._settings = settings
        self._world = world
        self._before_write = before_write

    def write(self, job: CheckpointJob) -> Outcome:
        """Write a checkpoint, and delete older ones. Collective if it is sharded, else for rank 0.

        Errors of the disk become part of the outcome. Any other is a bug, and raised.
        """
        path, *links = job.paths
        outcome = Outcome(job.step, path, tuple(links), "checkpoint_failed")  # until it is published
        try:
            if job.pieces is None:
                self._write_main(job, outcome, {})
            else:
                self._write_sharded(job, outcome)
        except OSError as error:
            outcome.failure = error
            outcome.error = error.strerror or str(error)
            if outcome.event == "checkpoint":
                outcome.error = f"not all of its further names: {outcome.error}"
        outcome.seconds = time.perf_counter() - job.began
        outcome.blocked_seconds = job.blocked_seconds or outcome.seconds
        return outcome

    def _write_sharded(self, job: CheckpointJob, outcome: Outcome) -> None:
        """Write this rank's shard, and on rank 0 then the main file. Raises OSError on all ranks."""
        world = self._world.writers
        shard = files.shards_folder(outcome.path) / files.shard_name(job.step, world.rank, world.size)
        try:
            written = _agreed(world, functools.partial(self._write_shard, job, shard))
            shards = {files.shard_name(job.step, rank, world.size): sha256 for rank, (sha256, _) in enumerate(written)}
            shard_bytes = sum(size for _, size in written)

            def write_main() -> None:
                if world.is_main:
                    self._write_main(job, outcome, shards, shard_bytes)

            _agreed(world, write_main)
        except Exception:
            if world.from_main(outcome.event) == "checkpoint_failed":
                with contextlib.suppress(OSError):
                    shard.unlink(missing_ok=True)
                    shard.parent.rmdir()  # succeeds on the last rank
            raise

    def _write_shard(self, job: CheckpointJob, path: Path) -> tuple[str, int]:
        """Write this rank's shard. Returns its SHA-256 and size in bytes. Raises OSError."""
        with streams.writing():
            with files.unfinished(path) as temporary:
                sha256, size = streams.write(job.pieces, temporary, self._settings.checkpoint_compression)
                temporary.replace(path)
            files.sync_folder(path.parent)
        return sha256, size

    def _write_main(self, job: CheckpointJob, outcome: Outcome, shards: dict[str, str], shard_bytes: int = 0) -> None:
        """Write the main file under all names, and delete older checkpoints. Raises OSError.

        `shards` maps the names of the shards to their SHA-256.
        """
        settings = self._settings
        path, *links = job.paths
        state = job.state
        if shards:
            state = {**state, "shards": shards}
        with streams.writing():
            if self._before_write is not None:
                self._before_write(job.step, path)
            with files.unfinished(path) as temporary:
                sha256, size = streams.write(state, temporary, settings.checkpoint_compression)
                files.publish(temporary, path, sha256, shards)
            outcome.event = "checkpoint"
            outcome.bytes = size + shard_bytes
            outcome.also = ()
            for link in links:
                files.publish_link(path, link, sha256, shards)
                outcome.also += (link,)
            if job.score is not None:
                best = files.best_file(settings.checkpoint_dir)
                record = {
                    "metric": settings.best_metric,
                    "value": job.score,
                    "step": job.step,
                    "file": best.name,
                    "sha256": sha256,
                    "metrics": state["metrics"],
                    "settings": state.get("config", {}),
                }
                text = json.dumps(record, indent=2, default=str)
                files.replace(best.with_suffix(".json"), f"{text}\n".encode())
        try:
            for published in job.paths:
                files.settle(published, sha256, shards)
            rotation.prune(settings.checkpoint_dir, settings.keep, known_valid=path)
        except OSError as error:
            outcome.error = f"older checkpoints could not be deleted: {error}"


def _agreed(world: World, work: Callable[[], T]) -> list[T]:
    """The results of the work of all ranks; if any fails, its error is raised on all of them.

    Any error but the disk's is a bug: the rank raises it, and the others a RankError.
    """
    bug: Exception | None = None
    try:
        result: Any = work()
    except OSError as error:
        result = error
    except Exception as error:
        bug = error
        result = RankError(f"rank {world.rank} could not write its checkpoint: {type(error).__name__}: {error}")
    results = world.gather(result)
    failures = [outcome for outcome in results if isinstance(outcome, Exception)]
    if failures:
        raise bug or failures[0]
    return results
