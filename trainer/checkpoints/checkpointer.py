"""When a state is saved and under which names, and the thread that writes it while training goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from trainer.checkpoints import files, rotation, streams
from trainer.checkpoints.files import FORMAT, State
from trainer.checkpoints.state import HostBuffers, Pieces, split, whole
from trainer.checkpoints.writer import BeforeWrite, CheckpointJob, Outcome, Writer
from trainer.config import Settings
from trainer.errors import CheckpointError, RankError, SettingsError
from trainer.world import World

# Of the rotation for a step's checkpoint. One that is `due` recurs, and is skipped while another is being written; one
# that is `required` is on disk when `save` returns.
Need = Literal["none", "due", "asked", "required"]

_LOWER_IS_BETTER = ("loss", "perplexity")


class WritingThread(threading.Thread):
    """Writes a checkpoint; has its `outcome` afterwards, or the `bug` by which it ended."""

    def __init__(self, job: CheckpointJob, writer: Writer, buffers: HostBuffers) -> None:
        # A daemon, because the process must be able to end while the disk is stuck.
        super().__init__(name="checkpoint", daemon=True)
        self.job = job
        self.outcome: Outcome | None = None
        self.bug: Exception | None = None
        self._writer = writer
        self._buffers = buffers

    def run(self) -> None:
        try:
            self._buffers.wait()
            self.outcome = self._writer.write(self.job)
        except Exception as error:
            self.bug = error


def still_writing() -> bool:
    """Return whether a thread of a closed Checkpointer is stuck in this process."""
    return any(isinstance(thread, WritingThread) for thread in threading.enumerate())


class Checkpointer:
    """Saves the state of a run. All ranks have one and call `begin`, `save` and `wait` alike (collective).

    At most one checkpoint is written at a time. One that is due meanwhile is skipped; those that do not recur (an
    epoch's, the best, one that was asked for) wait. A full disk costs a checkpoint, never the run or another one.
    """

    def __init__(self, settings: Settings, world: World, *, before_write: BeforeWrite | None = None) -> None:
        """`before_write` is called on rank 0 during each write; its OSErrors count as the disk's.

        Sharded checkpoints need a world with `writers`. Raises SettingsError without what packs them.
        """
        if settings.checkpoint_compression == "zstd" and importlib.util.find_spec("pyarrow") is None:
            raise SettingsError("--checkpoint-compression zstd needs pyarrow: pip install 'gputui[train]', or use gzip")
        self._settings = settings
        self._world = world
        self._writer = Writer(settings, world, before_write)
        self._sharded = settings.sharded_checkpoints and bool(world.backend)
        self._buffers = HostBuffers()
        self._thread: WritingThread | None = None  # None also on ranks that have no part in writing
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
        self._take_result()
        directory = self._settings.checkpoint_dir
        step_path = files.step_file(directory, step)
        busy, better = map(bool, self._world.vote(self.busy, self._beats_best(score)))
        paths: list[Path] = []
        if need != "none" and step_path.resolve() != self._resumed_from:
            paths.append(step_path)
        if epoch is not None and self._settings.epoch_checkpoints:
            paths.append(files.epoch_file(directory, phase, epoch))
        if better:
            paths.append(files.best_file(directory))
        if not paths:
            return
        if busy and need == "due" and paths == [step_path]:
            if self._world.is_main:
                blocked_seconds = time.perf_counter() - began
                reason = "an earlier checkpoint is still being written"
                self._outcomes.append(Outcome(step, step_path, (), "checkpoint_skipped", blocked_seconds, error=reason))
            return
        self.wait()
        background = self._settings.async_checkpoints and need != "required"
        state, pieces = self._take_state(collect, copy=background)
        best_score = score if better else None
        blocked_seconds = time.perf_counter() - began if background else 0.0
        job = CheckpointJob(
            step, paths, state, pieces=pieces, score=best_score, began=began, blocked_seconds=blocked_seconds
        )
        if self._sharded or self._world.is_main:
            self._thread = WritingThread(job, self._writer, self._buffers)
            self._thread.start()
        if not background:
            self.wait()
        if need == "required":
            message = ""
            if self._world.is_main and self._outcomes[-1].event == "checkpoint_failed":
                failure = self._outcomes[-1].failure
                message = f"checkpoint {paths[0]} was not written: {failure}; mend the disk, then start again"
            if message := self._world.from_main(message):
                raise CheckpointError(message)

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
        if self._thread is not None and self._thread.job.score is not None:
            best = self._thread.job.score
        if best is None:
            return True
        if self._settings.best_metric.endswith(_LOWER_IS_BETTER):
            return score < best
        return score > best

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

    def _take_result(self) -> None:
        """Take the result of the thread if it has ended. Raises its bug."""
        thread = self._thread
        if thread is None or thread.is_alive():
            return
        self._thread = None
        if thread.bug is not None:
            raise thread.bug
        if self._world.is_main and thread.outcome is not None:
            if thread.job.score is not None and thread.outcome.failure is None:
                self._best_value = thread.job.score
            self._outcomes.append(thread.outcome)
