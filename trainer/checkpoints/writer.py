"""When a checkpoint is saved, in the foreground or in a thread, and the results."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.checkpoints import best, files, names, rotation, sharded
from trainer.checkpoints.job import WriteJob
from trainer.checkpoints.snapshot import HostBuffers
from trainer.checkpoints.streams import sign_of_life
from trainer.config import Settings
from trainer.errors import RankError
from trainer.world import World

_THREAD = "checkpoint"


def still_writing() -> bool:
    """Whether a thread of a closed Checkpointer is stuck in this process."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


@dataclass(frozen=True)
class Outcome:
    """The result of a checkpoint that was due, in the terms of a line of metrics.

    Attributes:
        path: its first name; `also` has the other names of the same content.
        blocked_seconds: how long training was blocked.
        seconds: until it was on disk; None if it was skipped.
        bytes: on disk, shards included; None if nothing was written.
        error: why it was not written, or why older ones could not be deleted.
    """

    event: Literal["checkpoint", "checkpoint_failed", "checkpoint_skipped"]
    step: int
    path: Path
    also: tuple[Path, ...]
    blocked_seconds: float
    seconds: float | None
    bytes: int | None
    error: str | None


@dataclass(frozen=True)
class _Saved:
    """The step and the names of a state that is saved or being saved."""

    step: int
    paths: frozenset[Path]


class Checkpointer:
    """Saves the state of a run. All ranks have one and call `begin`, `save` and `wait` alike (collective).

    At most one checkpoint is written at a time. One that is due meanwhile is skipped, except those that do not recur
    (an epoch's, the best, a required one), which wait. A full disk costs a checkpoint, never the run or another one.
    """

    def __init__(
        self, settings: Settings, world: World, *, before_write: Callable[[int, Path], None] | None = None
    ) -> None:
        """`before_write` is called on rank 0 with step and path during each write; its OSErrors count as the disk's.

        Sharded checkpoints need a world with `writers`.
        """
        self._settings = settings
        self._world = world
        self._before_write = before_write
        self._sharded = settings.sharded_checkpoints and bool(world.backend)
        self._writes = self._sharded or world.is_main
        self._writers = world.writers if self._sharded else world
        self._buffers = HostBuffers()
        self._job: WriteJob | None = None
        self._thread: threading.Thread | None = None
        self._outcomes: list[Outcome] = []
        self._best_value: float | None = None  # known on rank 0
        self._newest = _Saved(-1, frozenset())  # alike on all ranks
        self._failed = False

    @property
    def busy(self) -> bool:
        """Whether this rank is still writing."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, step: int, resumed_from: Path | None = None) -> list[Path]:
        """Prepare the directory for a run that starts after `step`.

        Returns the new names of stale checkpoints on rank 0; an empty list on the others.
        """
        directory = self._settings.checkpoint_dir
        own = names.step_file(directory, step)
        if resumed_from is not None and resumed_from.resolve() == own.resolve():
            self._newest = _Saved(step, frozenset({own}))
        if not self._world.is_main:
            return []
        moved = rotation.begin_branch(directory, step)
        if self._settings.best_checkpoint:
            self._best_value = best.best_value(directory, self._settings.best_metric)
        return moved

    def save(
        self,
        collect: Callable[[], files.State],
        *,
        step: int,
        periodic: bool = True,
        epoch: int | None = None,
        phase: str = "",
        score: float | None = None,
        required: bool = False,
    ) -> bool:
        """Save the state after `step` under all names that are due (collective).

        Args:
            collect: returns the state; called on all ranks if there is anything to save. Tensors may be live.
            periodic: write the checkpoint in rotation.
            epoch: the epoch of `phase` that has just ended, for --epoch-checkpoints.
            score: the value of best_metric for this state, for --best-checkpoint.
            required: the checkpoint is on disk on return.

        Returns whether the state is saved or being saved, the same on all ranks. Raises OSError on all ranks if a
        required checkpoint cannot be written.
        """
        began = time.perf_counter()
        if not self.busy:
            self._take_result()
        if not self._settings.epoch_checkpoints:
            epoch = None
        busy, better = (bool(votes) for votes in self._world.vote(self.busy, self._beats_best(score)))
        paths = self._paths(step, periodic or required, epoch, phase, better)
        if busy and not (required or better or epoch is not None):
            if not paths or self._is_on_its_way(step, paths):
                return True
            self._note_skipped(step, paths, began)
            return False
        self.wait()
        saved_paths = self._names_of(step)
        paths = tuple(path for path in paths if path not in saved_paths)
        if not paths:
            return True
        background = self._settings.async_checkpoints and not required
        self._job = job = self._make_job(collect, step, paths, score if better else None, began, copy=background)
        self._newest = _Saved(step, saved_paths.union(paths))
        if background:
            # Set before the start: the thread may finish before this one continues.
            job.blocked_seconds = time.perf_counter() - began
        if self._writes:
            arguments = (self._settings, self._writers, self._before_write)
            # A daemon, because the process must be able to end while the disk is stuck.
            self._thread = threading.Thread(target=job.write, args=arguments, name=_THREAD, daemon=True)
            self._thread.start()
        if background:
            return True
        self.wait()
        error = self._world.from_main(job.error)
        if error is not None and required:
            raise error
        return error is None

    def wait(self) -> None:
        """Wait until no rank is writing, however long that takes (collective).

        Raises RankError on all ranks if a writer makes no progress for --timeout seconds.
        """
        try:
            self._world.wait_for_all(self._thread, sign_of_life, self._settings.timeout)
        except RankError:
            self._thread = None  # nothing waits for it any more
            raise
        self._take_result()

    def close(self) -> None:
        """Let this rank's writer finish unless it is stuck; the others may have failed."""
        alone = dataclasses.replace(self._world, backend="")
        with contextlib.suppress(RankError):
            alone.wait_for_all(self._thread, sign_of_life, self._settings.timeout)

    def poll(self) -> list[Outcome]:
        """The results since the last call, on rank 0; empty on the others. Never waits."""
        if not self.busy:
            self._take_result()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _beats_best(self, score: float | None) -> bool:
        """Whether `score` beats the best checkpoint, which may still be in the process of being written."""
        if score is None or not (self._settings.best_checkpoint and self._world.is_main):
            return False
        # One that is being written counts, although it may fail: waiting for it would block training.
        pending = self._job.best_value if self._job is not None else None
        return best.is_better(self._settings.best_metric, score, self._best_value if pending is None else pending)

    def _paths(self, step: int, periodic: bool, epoch: int | None, phase: str, better: bool) -> tuple[Path, ...]:
        directory = self._settings.checkpoint_dir
        paths = [names.step_file(directory, step)] if periodic else []
        if epoch is not None:
            paths.append(names.epoch_file(directory, phase, epoch))
        if better:
            paths.append(names.best_file(directory))
        return tuple(paths)

    def _is_on_its_way(self, step: int, paths: tuple[Path, ...]) -> bool:
        return step == self._newest.step and self._newest.paths.issuperset(paths)

    def _note_skipped(self, step: int, paths: tuple[Path, ...], began: float) -> None:
        if self._world.is_main:
            blocked, reason = time.perf_counter() - began, "an earlier checkpoint is still being written"
            self._outcomes.append(Outcome("checkpoint_skipped", step, paths[0], paths[1:], blocked, None, None, reason))

    def _names_of(self, step: int) -> frozenset[Path]:
        """The names of the state after `step` on disk (collective). Only valid while nothing is being written."""
        if step != self._newest.step or self._world.from_main(self._failed):
            return frozenset()
        return self._newest.paths

    def _make_job(
        self,
        collect: Callable[[], files.State],
        step: int,
        paths: tuple[Path, ...],
        best_value: float | None,
        began: float,
        *,
        copy: bool,
    ) -> WriteJob:
        state: files.State = {**collect(), "format": files.FORMAT}
        if best_value is not None:
            state["metrics"] = {**state.get("metrics", {}), self._settings.best_metric: best_value}
        pieces: Any = None
        if self._sharded:
            state, pieces = sharded.split(state)
        snapshot = self._buffers.take((state if self._world.is_main else {}, pieces), copy=copy)
        return WriteJob(step, paths, best_value, snapshot, began)

    def _take_result(self) -> None:
        """Take the result of a finished job, if any. Raises its error if that was a bug."""
        job, self._job, self._thread = self._job, None, None
        if job is None:
            return
        if job.crash is not None:
            raise job.crash
        self._failed = job.error is not None
        if not self._world.is_main or job.seconds is None:
            return
        if job.best_value is not None and not self._failed:
            self._best_value = job.best_value
        self._outcomes.append(
            Outcome(
                event="checkpoint_failed" if job.error else "checkpoint",
                step=job.step,
                path=job.paths[0],
                also=job.paths[1:],
                blocked_seconds=job.blocked_seconds or job.seconds,
                seconds=job.seconds,
                bytes=None if job.error else job.bytes,
                error=_disk_error_text(job.error, job.paths[0]) if job.error else job.problem,
            )
        )


def _disk_error_text(error: OSError, path: Path) -> str:
    """The message of an error, with its file if that is not `path`."""
    if error.strerror is None:
        return str(error)
    is_other_file = error.filename is not None and str(error.filename) != str(path)
    return f"{error.strerror}: {error.filename}" if is_other_file else error.strerror
