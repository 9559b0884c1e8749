"""When a checkpoint is saved, in the foreground or behind the training's back, and what came of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.checkpoints import best, files, names, rotation, sharded
from trainer.checkpoints.job import WriteJob
from trainer.checkpoints.snapshot import HostBuffers
from trainer.config import Settings
from trainer.world import World


@dataclass(frozen=True)
class Outcome:
    """What became of a checkpoint that was due; `event` and the other attributes make a line of metrics.

    Attributes:
        path: its first name; `also` are the further ones of the same content.
        blocked_seconds: how long training stood still for it.
        seconds: from the beginning until the disk had it; None if it was skipped.
        bytes: on disk, shards included; None if nothing was written.
        error: why it was not written, or what could not be tidied up after it was.
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
    """A state that was, or is being, saved: its step, and the names it has."""

    step: int
    paths: frozenset[Path]


class Checkpointer:
    """Saves the state of a run. All ranks have one and call `begin`, `save` and `wait` alike (collective).

    There is one thread at most that writes, and never two checkpoints at once: one that is due while an earlier one is
    still being written is skipped, but for those that do not come again (an epoch's, the best, and what is required),
    which wait. A disk that is full costs a checkpoint, never the run or another checkpoint.
    """

    def __init__(
        self, settings: Settings, world: World, *, before_write: Callable[[int, Path], None] | None = None
    ) -> None:
        """`before_write` is called on rank 0 with step and path inside every writing; an OSError of it is a disk's.

        Sharded checkpoints in the background need a world with `writers`.
        """
        self._settings = settings
        self._world = world
        self._before_write = before_write
        self._sharded = settings.sharded_checkpoints and bool(world.backend)
        self._writes = self._sharded or world.is_main
        self._writers = world.writers if self._sharded and settings.async_checkpoints else world
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
        """Prepares the directory for a run that starts after `step`.

        Returns the checkpoints that were set aside, on rank 0; nothing on the others.
        """
        directory = self._settings.checkpoint_dir
        own = names.step_file(directory, step, gzip=self._settings.gzip_checkpoints)
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
        """Saves the state after `step`, once, under all names that are due. Collective; the answer is the same on all.

        `collect` is called, on all ranks, if there is anything to save; its tensors may be live ones. `periodic` asks
        for the checkpoint in rotation, `epoch` (of `phase`) says which one has just ended, `score` is best_metric's
        value for just this state; the latter two count only where settings ask for such checkpoints. A `required` one
        is on disk on return.

        Returns whether the state is saved or, asynchronously, being saved. Raises OSError, on all ranks, where a
        required one cannot be written.
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
        known = self._names_of(step)
        paths = tuple(path for path in paths if path not in known)
        if not paths:
            return True
        background = self._settings.async_checkpoints and not required
        self._job = self._make_job(collect, step, paths, score if better else None, began, copy=background)
        self._newest = _Saved(step, known.union(paths))
        if background:
            self._write_in_background(self._job)
            return True
        error = self._write_now(self._job)
        if error is not None and required:
            raise error
        return error is None

    def wait(self) -> None:
        """Returns when nothing is being written any more. Call it before leaving."""
        if self._thread is not None:
            self._thread.join()
        self._take_result()

    def poll(self) -> list[Outcome]:
        """What has come of checkpoints since the last call, on rank 0; empty on the others. Never waits."""
        if not self.busy:
            self._take_result()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _beats_best(self, score: float | None) -> bool:
        """Whether `score` beats the best on disk or, where one is being written, that one."""
        if score is None or not (self._settings.best_checkpoint and self._world.is_main):
            return False
        # One being written counts although it may fail: only to wait for it would tell, and hold up the training.
        pending = self._job.best_value if self._job is not None else None
        return best.is_better(self._settings.best_metric, score, self._best_value if pending is None else pending)

    def _paths(self, step: int, periodic: bool, epoch: int | None, phase: str, better: bool) -> tuple[Path, ...]:
        directory, gzip = self._settings.checkpoint_dir, self._settings.gzip_checkpoints
        paths = [names.step_file(directory, step, gzip=gzip)] if periodic else []
        if epoch is not None:
            paths.append(names.epoch_file(directory, phase, epoch, gzip=gzip))
        if better:
            paths.append(names.best_file(directory, gzip=gzip))
        return tuple(paths)

    def _is_on_its_way(self, step: int, paths: tuple[Path, ...]) -> bool:
        return step == self._newest.step and self._newest.paths.issuperset(paths)

    def _note_skipped(self, step: int, paths: tuple[Path, ...], began: float) -> None:
        if self._world.is_main:
            blocked, reason = time.perf_counter() - began, "an earlier checkpoint is still being written"
            self._outcomes.append(Outcome("checkpoint_skipped", step, paths[0], paths[1:], blocked, None, None, reason))

    def _names_of(self, step: int) -> frozenset[Path]:
        """The names under which the state after `step` is on disk. Collective; nothing may be being written."""
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

    def _write_in_background(self, job: WriteJob) -> None:
        """Starts a thread that writes, on the ranks that write."""
        # Before the thread begins: it may have written everything by the time this one runs again.
        job.blocked_seconds = time.perf_counter() - job.began
        if self._writes:
            self._thread = threading.Thread(target=self._write, args=(job,), name="checkpoint")
            self._thread.start()

    def _write_now(self, job: WriteJob) -> OSError | None:
        """Writes, on the ranks that write; returns the disk's error, on all ranks (collective)."""
        if self._writes:
            self._write(job)
        self._take_result()
        return self._world.from_main(job.error)

    def _write(self, job: WriteJob) -> None:
        job.write(self._settings, self._writers, self._before_write)

    def _take_result(self) -> None:
        """Takes over what came of the job that has been written, if any. Raises what was a bug in writing it."""
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
    """The disk's error, and its file if that is not `path`."""
    if error.strerror is None:
        return str(error)
    other = error.filename is not None and str(error.filename) != str(path)
    return f"{error.strerror}: {error.filename}" if other else error.strerror
