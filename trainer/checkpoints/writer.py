"""Schedule of checkpoints, writing them in the foreground or in a thread, and the results."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from trainer.checkpoints import files, rotation, streams
from trainer.checkpoints.files import FORMAT, State
from trainer.checkpoints.state import HostBuffers, Pieces, split, whole
from trainer.config import Settings
from trainer.errors import CheckpointError, RankError, SettingsError
from trainer.world import World

T = TypeVar("T")

# Of the rotation for a step's checkpoint. One that is `due` recurs, and is skipped while another is being written; one
# that is `required` is on disk when `save` returns.
Need = Literal["none", "due", "asked", "required"]

_THREAD = "checkpoint"
_LOWER_IS_BETTER = ("loss", "perplexity")


def still_writing() -> bool:
    """Return whether a thread of a closed Checkpointer is stuck in this process."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


@dataclass
class Outcome:
    """The result of a checkpoint that was due, in the terms of a line of metrics."""

    step: int
    path: Path
    also: tuple[Path, ...]  # further names of the same content
    event: Literal["checkpoint", "checkpoint_failed", "checkpoint_skipped"] = "checkpoint"
    blocked_seconds: float = 0.0  # while training waited
    seconds: float | None = None  # until it was on disk
    bytes: int | None = None  # on disk, shards included
    error: str | None = None  # why it or a further name was not written, or why older ones could not be deleted


@dataclass
class _Job:
    """A state to write under the names of its outcome."""

    outcome: Outcome
    state: State  # in the Checkpointer's buffers; needed on rank 0 only
    pieces: Pieces | None  # this rank's; None unless the checkpoint is sharded
    began: float  # time.perf_counter
    best_value: float | None  # of best_metric, if one of the names is the best checkpoint's
    published: bool = False  # under its first name; known on rank 0
    error: Exception | None = None  # an OSError is the disk's; any other is a bug, to be raised by the training thread


class Checkpointer:
    """Saves the state of a run. All ranks have one and call `begin`, `save` and `wait` alike (collective).

    At most one checkpoint is written at a time. One that is due meanwhile is skipped; those that do not recur (an
    epoch's, the best, one that was asked for) wait. A full disk costs a checkpoint, never the run or another one.
    """

    def __init__(
        self, settings: Settings, world: World, *, before_write: Callable[[int, Path], None] | None = None
    ) -> None:
        """`before_write` is called on rank 0 during each write; its OSErrors count as the disk's.

        Sharded checkpoints need a world with `writers`. Raises SettingsError without what packs them.
        """
        if settings.checkpoint_compression == "zstd" and importlib.util.find_spec("pyarrow") is None:
            raise SettingsError("--checkpoint-compression zstd needs pyarrow: pip install 'gputui[train]', or use gzip")
        self._settings = settings
        self._world = world
        self._before_write = before_write
        self._sharded = settings.sharded_checkpoints and bool(world.backend)
        self._buffers = HostBuffers()
        self._job: _Job | None = None
        self._thread: threading.Thread | None = None
        self._outcomes: list[Outcome] = []
        self._best_value: float | None = None  # known on rank 0
        self._resumed_from: Path | None = None

    @property
    def busy(self) -> bool:
        """True if this rank is still writing."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, step: int, resumed_from: Path | None = None) -> list[Path]:
        """Prepare the directory for a run that starts after `step`. Returns the new names of stale checkpoints."""
        directory = self._settings.checkpoint_dir
        self._resumed_from = resumed_from and resumed_from.resolve()
        if not self._world.is_main:
            return []
        moved = rotation.begin_branch(directory, step, self._resumed_from)
        if self._settings.best_checkpoint:
            self._best_value = rotation.best_value(directory, self._settings.best_metric)
        return moved

    def save(
        self,
        collect: Callable[[], State],
        *,
        step: int,
        need: Need = "due",
        epoch: int | None = None,
        phase: str = "",
        score: float | None = None,
    ) -> None:
        """Save the state after `step` under all names that apply (collective).

        `collect` returns it, with live tensors and DTensors, and is called on all ranks if there is anything to save.
        `need` is that of the rotation, `epoch` of `phase` has just ended, `score` is the state's best_metric. Raises
        CheckpointError on all ranks if one that is required was not written.
        """
        began = time.perf_counter()
        if not self.busy:
            self._take_result()
        settings = self._settings
        directory = settings.checkpoint_dir
        step_path = files.step_file(directory, step)
        busy, better = map(bool, self._world.vote(self.busy, self._beats_best(score)))
        paths: list[Path] = []
        if need != "none" and step_path.resolve() != self._resumed_from:
            paths.append(step_path)
        if epoch is not None and settings.epoch_checkpoints:
            paths.append(files.epoch_file(directory, phase, epoch))
        if better:
            paths.append(files.best_file(directory))
        if not paths:
            return
        if busy and paths == [step_path] and need == "due":
            if self._world.is_main:
                blocked = time.perf_counter() - began
                reason = "an earlier checkpoint is still being written"
                self._outcomes.append(Outcome(step, step_path, (), "checkpoint_skipped", blocked, error=reason))
            return
        self.wait()
        background = settings.async_checkpoints and need != "required"
        state, pieces = self._take_state(collect, copy=background)
        best_score = score if better else None
        path, *also = paths
        job = _Job(Outcome(step, path, tuple(also)), state, pieces, began, best_score)
        if background:
            # Set before the start: the thread may finish before this one continues.
            job.outcome.blocked_seconds = time.perf_counter() - began
        self._start(job)
        if background:
            return
        self.wait()
        if need == "required":
            error = None if job.published else job.error
            if error := self._world.from_main(error):
                raise CheckpointError(f"checkpoint {path} was not written: {error}; mend the disk, then start again")

    def _take_state(self, collect: Callable[[], State], *, copy: bool) -> tuple[State, Pieces | None]:
        """The state in this rank's buffers, empty but on rank 0, and this rank's pieces if it is sharded."""
        state: State = {**collect(), "format": FORMAT}
        pieces: Pieces | None = None
        if self._sharded:
            state, pieces = split(state)
        else:
            state = whole(state, self._world)
        if not self._world.is_main:
            state = {}
        state, pieces = self._buffers.take((state, pieces), copy=copy)
        return state, pieces

    def _start(self, job: _Job) -> None:
        """Start to write a checkpoint on the ranks that have a part in it."""
        self._job = job
        if self._sharded or self._world.is_main:
            # A daemon, because the process must be able to end while the disk is stuck.
            self._thread = threading.Thread(target=self._write, args=(job,), name=_THREAD, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until no rank is writing (collective). Raises RankError if one is stuck for --timeout seconds."""
        try:
            self._world.wait_for_all(self._thread, streams.sign_of_life, self._settings.timeout)
        except RankError:
            self._thread = None  # nothing waits for it any more
            raise
        self._take_result()

    def close(self) -> None:
        """Let this rank's writer finish unless it is stuck; the others may have failed."""
        alone = dataclasses.replace(self._world, backend="")
        with contextlib.suppress(RankError):
            alone.wait_for_all(self._thread, streams.sign_of_life, self._settings.timeout)

    def poll(self) -> list[Outcome]:
        """The results since the last call, on rank 0; empty on the others. Never waits."""
        if not self.busy:
            self._take_result()
        outcomes = self._outcomes
        self._outcomes = []
        return outcomes

    def _beats_best(self, score: float | None) -> bool:
        """Return whether `score` beats the best checkpoint, or that being written, which may yet fail."""
        keeps_best = self._settings.best_checkpoint and self._world.is_main
        if not keeps_best or score is None or not math.isfinite(score):
            return False
        best = self._best_value
        if self._job is not None and self._job.best_value is not None:
            best = self._job.best_value
        if best is None:
            return True
        if self._settings.best_metric.endswith(_LOWER_IS_BETTER):
            return score < best
        return score > best

    def _take_result(self) -> None:
        """Take the result of a finished job, if any. Raises its error if that was a bug."""
        job = self._job
        self._job = None
        self._thread = None
        if job is None:
            return
        if job.error is not None and not isinstance(job.error, OSError):
            raise job.error
        if self._world.is_main and job.outcome.seconds is not None:
            if job.best_value is not None and job.error is None:
                self._best_value = job.best_value
            self._outcomes.append(job.outcome)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _write(self, job: _Job) -> None:
        """Write a checkpoint, and note what comes of it. Collective if it is sharded."""
        outcome = job.outcome
        try:
            self._buffers.wait()
            if job.pieces is None:
                self._write_main(job, {})
            else:
                self._write_sharded(job)
        except Exception as error:
            job.error = error
            outcome.error = getattr(error, "strerror", None) or str(error)
            if job.published:
                outcome.error = f"not all of its further names: {outcome.error}"
            else:
                outcome.event = "checkpoint_failed"
                outcome.bytes = None
        outcome.seconds = time.perf_counter() - job.began
        outcome.blocked_seconds = outcome.blocked_seconds or outcome.seconds

    def _write_sharded(self, job: _Job) -> None:
        """Write this rank's shard, and on rank 0 then the main file. Raises OSError on all ranks."""
        world = self._world.writers
        step = job.outcome.step
        path = files.shards_folder(job.outcome.path) / files.shard_name(step, world.rank, world.size)

        def write_shard() -> tuple[str, int]:
            with streams.writing():
                with files.unfinished(path) as temporary:
                    sha256, size = streams.write(job.pieces, temporary, self._settings.checkpoint_compression)
                    temporary.replace(path)
                files.sync_folder(path.parent)
            return sha256, size

        def write_main() -> None:
            if world.is_main:
                job.outcome.bytes = sum(size for _, size in written)
                self._write_main(job, shards)

        try:
            written = _agreed(world, write_shard)
            shards = {files.shard_name(step, rank, world.size): sha256 for rank, (sha256, _) in enumerate(written)}
            _agreed(world, write_main)
        except Exception:
            if not world.from_main(job.published):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                    path.parent.rmdir()  # succeeds on the last rank
            raise

    def _write_main(self, job: _Job, shards: dict[str, str]) -> None:
        """Write the main file under all names, and delete older checkpoints. Raises OSError."""
        settings = self._settings
        outcome = job.outcome
        state = job.state
        if shards:
            state = {**state, "shards": shards}
        best = files.best_file(settings.checkpoint_dir)
        with streams.writing():
            if self._before_write is not None:
                self._before_write(outcome.step, outcome.path)
            with files.unfinished(outcome.path) as temporary:
                sha256, size = streams.write(state, temporary, settings.checkpoint_compression)
                files.publish(temporary, outcome.path, sha256, shards)
            job.published = True
            outcome.bytes = size + (outcome.bytes or 0)
            also = outcome.also
            outcome.also = ()
            for link in also:
                files.publish_link(outcome.path, link, sha256, shards)
                outcome.also += (link,)
            if job.best_value is not None:
                record = {
                    "metric": settings.best_metric,
                    "value": job.best_value,
                    "step": outcome.step,
                    "file": best.name,
                    "sha256": sha256,
                    "metrics": state["metrics"],
                    "settings": state.get("config", {}),
                }
                text = json.dumps(record, indent=2, default=str)
                files.replace(best.with_suffix(".json"), f"{text}\n".encode())
        try:
            for path in (outcome.path, *outcome.also):
                files.settle(path, sha256, shards)
            rotation.prune(settings.checkpoint_dir, settings.keep, known_valid=outcome.path)
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
