"""Removal of old checkpoints while runs go on well, for profiles that say how many to keep."""

from __future__ import annotations

import logging
import os
import sqlite3
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.run_files import policy_of
from gputui.core.units import count_of
from gputui.metrics.curves.names import is_more_better
from gputui.recovery.checkpoints.removal import Keep, PruneResult, prune
from gputui.runs.repository import forget_size, transaction
from gputui.runs.spec import CheckpointSpec
from gputui.runs.stored_spec import known_spec
from gputui.store import checkpoints
from gputui.store.checkpoints import CheckpointRow
from gputui.store.events import EventKind, Severity, has_event
from gputui.store.metrics.losses import unsound_since
from gputui.store.metrics.step_lines import StepLines
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, read_runs

log = logging.getLogger(__name__)

# Whole checkpoints are read, from a disk that may be slow.
PRUNE_SECONDS = 1800.0


@dataclass(slots=True)
class CheckpointRetention:
    """Prunes the checkpoints of runs after scans, in one job per run.

    Attributes:
        noted: the runs to look at.
        jobs: what the job of a run keeps, and the job.
        pruned: the newest entry of a run's ledger when its checkpoints were last pruned.
    """

    context: AgentContext
    noted: set[str] = field(default_factory=set)
    jobs: dict[str, tuple[Keep, Job[PruneResult]]] = field(default_factory=dict)
    pruned: dict[str, int] = field(default_factory=dict)

    def note_scan(self, run_id: str) -> None:
        """Look at a run in the next turn: its checkpoints were scanned, or it is over."""
        self.noted.add(run_id)

    def poll(self) -> None:
        """Store what was removed, and remove what may go. Raises sqlite3.Error."""
        for run_id, (keep, job) in list(self.jobs.items()):
            if job.is_over:
                del self.jobs[run_id]
                self._store_result(run_id, keep, job)
        for run_id in self.noted - self.jobs.keys():
            self.noted.discard(run_id)
            self._begin(run_id)

    def _begin(self, run_id: str) -> None:
        context = self.context
        run = get_run(self.context.connection, run_id)
        if run is None:
            return
        spec = known_spec(run)
        if spec is None or spec.checkpoints is None or spec.checkpoints.keep is None:
            return
        newest = self._newest_to_prune(run, spec.checkpoints.keep)
        if newest is None:
            return
        search = checkpoint_survey.search_now(context, run)
        if search is None:
            return
        self.pruned[run_id] = newest
        keep = self._what_to_keep(run, spec.checkpoints, spec.checkpoints.keep)
        name = f"removing old checkpoints of {run_id}"
        work = partial(prune, search, keep)
        self.jobs[run_id] = keep, context.jobs.start(name, work, deadline_seconds=PRUNE_SECONDS)

    def _newest_to_prune(self, run: Run, keep: int) -> int | None:
        """The newest entry of the ledger if some may go now; else None.

        A run that fails needs its checkpoints until it is decided which one it goes on from, and so does one
        whose loss is no number.
        """
        connection = self.context.connection
        is_well = run.state is RunState.RUNNING or run.state.is_over
        if not is_well or unsound_since(StepLines(connection, run.run_id), run.attempt) is not None:
            return None
        written = [row for row in checkpoints.of_run(connection, run.run_id) if row.is_written]
        if len(written) <= keep:
            return None
        # Once more at the end, when the newest one counts.
        newest = max(row.place for row in written) + run.state.is_over
        if newest > self.pruned.get(run.run_id, 0):
            return newest
        return None

    def _what_to_keep(self, run: Run, spec: CheckpointSpec, newest: int) -> Keep:
        """At least what recovery may go back over, if it may bring the run back, and what other runs name."""
        roles = run.roles
        best = spec.keep_best
        if best == roles.best and roles.mode is not None:
            mode = roles.mode
        else:
            mode = "max" if best is not None and is_more_better(best) else "min"
        paths = set()
        if run.resume_from is not None:
            paths.add(run.resume_from)
        for active in read_runs(self.context.connection, active_only=True):
            if active.run_id != run.run_id:
                paths |= _named_paths(active)
        minimum = 1 if run.state is RunState.SUCCEEDED else policy_of(run).checkpoints_kept
        return Keep(max(newest, minimum), paths, best, mode)

    def _store_result(self, run_id: str, keep: Keep, job: Job[PruneResult]) -> None:
        """Keep the verdicts, so that no checkpoint is read twice, and say once what is removed."""
        try:
            result = job.result()
        except (OSError, sqlite3.Error) as error:
            self._note_once(run_id, "checkpoints_not_pruned", f"old checkpoints cannot be removed: {error}")
            return
        connection = self.context.connection
        with transaction(connection):
            before = checkpoints.of_run(connection, run_id)
            after = [_after_pruning(row, result, self.context.now()) for row in before]
            checkpoints.save(connection, run_id, before, after)
            if result.removed:
                forget_size(connection, run_id)
        if result.removed:
            log.info("%s: removed %s", run_id, ", ".join(result.removed))
            text = f"keeps its newest {count_of(keep.newest, 'checkpoint')}"
            if keep.best is not None:
                text += f" and the best by {keep.best}"
            self._note_once(run_id, "checkpoints_pruned", f"{text}; older ones are removed")

    def _note_once(self, run_id: str, kind: EventKind, text: str) -> None:
        if not has_event(self.context.connection, kind, run_id=run_id, key="keep"):
            severity: Severity = "info" if kind == "checkpoints_pruned" else "warning"
            self.context.note(kind, text, run_id, key="keep", severity=severity)


def _named_paths(run: Run) -> set[str]:
    """The possible paths in the command of a run, as in ``--weights=step_40.pt``, and where it begins."""
    spec = known_spec(run)
    if spec is None:
        return set()
    arguments = [*map(str, run.params.values()), *(spec.args or ()), *spec.typed, run.resume_from or ""]
    return {os.path.join(spec.workdir, word.rpartition("=")[2]) for word in arguments if word}  # noqa: PTH118


def _after_pruning(row: CheckpointRow, result: PruneResult, now: float) -> CheckpointRow:
    """An entry of the ledger after pruning; ``now`` is UTC unix seconds."""
    if row.path in result.removed:
        return replace(row, gone_at=now)
    is_found_valid = row.verdict == "unexamined" and result.valid.get(row.path) == row.content
    if is_found_valid:
        return replace(row, verdict="valid")
    return row
