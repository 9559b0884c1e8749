"""A study in Optuna's journal storage: the truth of its trials, points, values at rungs, pruning
and verdicts.

The journal is a file in the study's folder, which any Optuna process of the same user may join.
gputui's trials carry the attribute `OWN`, written together with the trial; all others belong to
processes outside. Only a study's process, reports and exports import this module.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from gputui.runs.spec import Scalar
from gputui.store.studies import RungValue, StudyRecord, TrialRecord, read_rungs, read_trials
from gputui.store.studies import TrialState as Verdict
from gputui.studies import samplers
from gputui.studies.decide import Ruling
from gputui.studies.rows import JOURNAL_FILE
from gputui.studies.spec import StudySpec, study_spec

OWN = "gputui"
"""The attribute of a trial that gputui runs: its origin, and the numbers of its parent and request.
"""
RUN = "gputui:run"
"""The attribute with a trial's run, in an export."""
VERDICT = "gputui:verdict"
"""The attribute with gputui's verdict, written before Optuna's state."""
LOCK_SECONDS = 5
"""A lock that one process holds for so long belongs to one that was killed: an append takes
milliseconds."""

optuna.logging.set_verbosity(optuna.logging.ERROR)

_OPTUNA_STATES = {
    Verdict.COMPLETE: TrialState.COMPLETE,
    Verdict.PRUNED: TrialState.PRUNED,
    Verdict.FAILED: TrialState.FAIL,
    Verdict.STOPPED: TrialState.FAIL,
}


def open_storage(folder: Path) -> JournalStorage:
    """The storage in a study's folder."""
    file = folder / JOURNAL_FILE
    lock = _JournalLock(str(file), grace_period=LOCK_SECONDS)
    if file.exists():
        lock.acquire()
        try:
            _remove_broken_lines(file)
        finally:
            lock.release()
    return JournalStorage(_JournalFile(str(file), lock))


class _JournalLock(JournalFileSymlinkLock):
    """Optuna's lock, also where a process that was killed has locked by a relative path: its link
    leads nowhere from here, and Optuna would try for ever without a pause."""

    def acquire(self) -> bool:
        while Path(self._lock_file).is_symlink() and not Path(self._lock_file).exists():
            with suppress(OSError):
                if time.time() - os.lstat(self._lock_file).st_mtime > LOCK_SECONDS:
                    Path(self._lock_file).unlink()
            time.sleep(0.01)
        return super().acquire()


class _JournalFile(JournalFileBackend):
    """A journal that is as safe as the database: kills lose nothing, and a power failure the newest
    lines, which `gputui.studies.view` adds again."""

    def __init__(self, file: str, lock: _JournalLock) -> None:
        super().__init__(file, lock)
        self._file, self._own_lock = Path(file), lock

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        # Optuna asks for the trials dozens of times for each point; mostly nothing is new.
        if self._log_number_offset.get(log_number_from) != self._file.stat().st_size:
            yield from super().read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in logs)
        self._own_lock.acquire()
        try:
            _remove_torn_tail(self._file)
            with self._file.open("ab") as file:
                file.write(lines.encode())
        finally:
            self._own_lock.release()


def _remove_torn_tail(file: Path) -> None:
    """Remove a last line that a full disk or a kill cut: what follows it would be lost."""
    with file.open("r+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        if size == 0:
            return
        opened.seek(size - 1)
        if opened.read(1) != b"\n":
            opened.seek(0)
            opened.truncate(opened.read().rfind(b"\n") + 1)


def _remove_broken_lines(file: Path) -> None:
    """Remove lines that are no JSON, such as one that was cut and appended to: no process could read
    on behind it. `gputui.studies.view` adds what the table has."""
    content = file.read_bytes()
    kept = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n") and _is_json(line)]
    if len(whole := b"".join(kept)) < len(content):
        file.write_bytes(whole)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


class StudyJournal:
    """A study's trials in Optuna. ``study_id`` is its name there; Hyperband's brackets depend on
    name and number."""

    def __init__(self, spec: StudySpec, study_id: str, storage: optuna.storages.BaseStorage) -> None:
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        self.spec = spec
        self.study = optuna.create_study(
            study_name=study_id,
            storage=storage,
            directions=[objective.direction for objective in spec.objectives],
            pruner=samplers.pruner(spec),
            load_if_exists=True,
        )
        if not self.study.metric_names:
            self.study.set_metric_names([objective.metric for objective in spec.objectives])
        self._distributions = {dimension.name: samplers.distribution(dimension) for dimension in spec.space}
        self._cma_es: optuna.samplers.BaseSampler | None = None

    def trials(self) -> list[FrozenTrial]:
        """All trials by number, those of other processes included."""
        return self.study.get_trials(deepcopy=False)

    def add(
        self, params: Mapping[str, Scalar], origin: str, *, values: Sequence[float] = (), ended_at: float | None = None,
        **own: Any,
    ) -> None:  # fmt: skip
        """Add a trial with a known point in one line: a complete one with ``values``, else one to
        run."""
        known = {name: value for name, value in params.items() if name in self._distributions}
        trial = create_trial(
            state=TrialState.COMPLETE if values else TrialState.RUNNING,
            params=known,
            distributions={name: self._distributions[name] for name in known},
            values=list(values) or None,
            user_attrs={OWN: {"origin": origin, **own}},
        )
        if ended_at is not None:
            trial.datetime_complete = datetime.fromtimestamp(ended_at)
        self.study._storage.create_new_trial(self.study._study_id, template_trial=trial)

    def restore(self, trials: Sequence[TrialRecord], rungs: Sequence[RungValue]) -> None:
        """Add the trials of the table that the journal lost, or never had. The table of a living
        study is never ahead."""
        for trial in trials[len(self.trials()) :]:
            known = {name: value for name, value in trial.params.items() if name in self._distributions}
            state = _state(trial.state, trial.values)
            user_attrs: dict[str, Any] = {OWN: {"origin": trial.origin, "parent": trial.parent}}
            if state is not TrialState.RUNNING:
                found = (trial.state, trial.values, trial.constraints, trial.reason, trial.ended_at or 0.0)
                user_attrs[VERDICT] = _verdict(*found)
            template = create_trial(
                state=state,
                params=known,
                distributions={name: self._distributions[name] for name in known},
                values=list(trial.values) if state is TrialState.COMPLETE else None,
                intermediate_values={
                    one.rung: one.value for one in rungs if one.number == trial.number and one.value is not None
                },
                constraints={f"constraint {index}": value for index, value in enumerate(trial.constraints)},
                user_attrs=user_attrs,
            )
            self.study._storage.create_new_trial(self.study._study_id, template_trial=template)

    def sample(self) -> None:
        """Add a trial and draw its point."""
        template = create_trial(state=TrialState.RUNNING, user_attrs={OWN: {"origin": "sampled"}})
        trial_id = self.study._storage.create_new_trial(self.study._study_id, template_trial=template)
        self._draw(self.study._storage.get_trial(trial_id))

    def complete_points(self) -> None:
        """Draw the parameters that trials lack because a process was killed while it drew them."""
        for trial in self.trials():
            if trial.state is TrialState.RUNNING and trial.user_attrs.get(OWN, {}).get("origin") == "sampled":
                self._draw(trial)

    def _draw(self, trial: FrozenTrial) -> None:
        """Draw each parameter that applies, in the order of the space."""
        point: dict[str, Any] = dict(trial.params)
        asked: Trial | None = None
        for dimension in self.spec.space:
            name = dimension.name
            if name in point or not dimension.applies(point):
                continue
            # What is drawn after a restart is what would have been drawn: samplers that draw
            # parameters together are seeded once, and each value by itself has a seed of its own.
            if asked is None:
                self.study.sampler = self._sampler(trial.number, "")
                self.study._thread_local.cached_all_trials = None
                asked = Trial(self.study, trial._trial_id)
                asked.relative_params  # noqa: B018
            self.study.sampler = self._sampler(trial.number, name)
            point[name] = asked._suggest(name, self._distributions[name])

    def _sampler(self, number: int, name: str) -> optuna.samplers.BaseSampler:
        if self.spec.sampler.kind != "cmaes":
            return samplers.sampler(self.spec, number, name)
        if self._cma_es is None:
            self._cma_es = samplers.cma_es(self.spec, self.trials()[:number])
        return self._cma_es

    def report(self, number: int, rung: int, value: float) -> None:
        """Store the value of a trial at a rung; that of a population's member may be replaced."""
        trial = self.trials()[number]
        if self.spec.pbt is not None or rung not in trial.intermediate_values:
            self.study._storage.set_trial_intermediate_value(trial._trial_id, rung, value)

    def should_prune(self, number: int) -> bool:
        """Whether the pruner would prune the trial, given the reported values."""
        return self.study.pruner.prune(self.study, self.trials()[number])

    def end(self, number: int, ruling: Ruling, now: float) -> None:
        """Store the verdict on a trial, unless it has one. ``now`` is UTC unix seconds."""
        trial = self.trials()[number]
        if trial.state.is_finished():
            return
        if VERDICT not in trial.user_attrs:
            for index, value in enumerate(ruling.constraints):
                Trial(self.study, trial._trial_id).set_constraint(f"constraint {index}", value)
            found = (ruling.state, ruling.values, ruling.constraints, ruling.reason, now)
            self.study._storage.set_trial_user_attr(trial._trial_id, VERDICT, _verdict(*found))
        self.settle(self.trials()[number])

    def settle(self, trial: FrozenTrial) -> None:
        """Give a running trial the state of the verdict that it has."""
        verdict = trial.user_attrs[VERDICT]
        values = verdict["values"]
        state = _state(Verdict(verdict["state"]), values)
        if verdict["state"] == Verdict.INFEASIBLE and not values:
            # What it reported would count for the sampler, and for the pruner of others.
            worst = math.inf if self.spec.objectives[0].direction == "minimize" else -math.inf
            for rung in trial.intermediate_values:
                self.study._storage.set_trial_intermediate_value(trial._trial_id, rung, worst)
        self.study.sampler = samplers.sampler(self.spec, trial.number)
        self.study.tell(trial.number, values if state is TrialState.COMPLETE else None, state=state)


def _state(verdict: Verdict, values: Sequence[float]) -> TrialState:
    """Optuna's state for a verdict."""
    if verdict is Verdict.INFEASIBLE:
        # The worst result, so that a learning sampler avoids such points.
        return TrialState.COMPLETE if values else TrialState.PRUNED
    return _OPTUNA_STATES.get(verdict, TrialState.RUNNING)


def _verdict(
    state: Verdict, values: Sequence[float], constraints: Sequence[float], reason: str | None, at: float
) -> dict[str, Any]:
    return {"state": state, "values": list(values), "constraints": list(constraints), "reason": reason, "at": at}


class StudyExportError(Exception):
    """The target exists or cannot be written; the text says so in one line. No part of it is left."""


def export_study(connection: sqlite3.Connection, folder: Path, study: StudyRecord, target: Path) -> int:
    """Copy a study to a new Optuna storage in SQLite; returns the number of trials. Raises
    StudyExportError."""
    from sqlalchemy.exc import SQLAlchemyError

    study_id = study.study_id
    try:
        target.open("xb").close()
    except FileExistsError as error:
        raise StudyExportError(f"{target} exists; choose another name") from error
    except OSError as error:
        raise StudyExportError(f"cannot write {target}: {error.strerror or error}") from error
    try:
        copy = optuna.storages.RDBStorage(f"sqlite:///{target}")
        storage = open_storage(folder)
        journal = StudyJournal(study_spec(study), study_id, storage)
        trials = read_trials(connection, study_id)
        journal.restore(trials, read_rungs(connection, study_id))
        copied = StudyJournal(study_spec(study), study_id, copy).study
        runs = {trial.number: trial.run_id for trial in trials}
        for trial in journal.study.get_trials():
            if (run_id := runs.get(trial.number)) is not None:
                trial.set_user_attr(RUN, run_id)
            copied.add_trial(trial)
        copy.engine.dispose()
    except SQLAlchemyError as error:
        target.unlink(missing_ok=True)
        raise StudyExportError(f"cannot write {target}: {getattr(error, 'orig', None) or error}") from error
    return len(journal.trials())
