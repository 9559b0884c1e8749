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
import shutil
import sqlite3
import time
import warnings
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
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
"""The attribute of a trial that gputui made: the study that it is of, its origin, and the run, request
or parent behind it."""
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
        size, read = self._file.stat().st_size, self._log_number_offset.get(log_number_from)
        if read is not None and size < read:
            raise OSError(f"{self._file} was cut by another process")
        if size != read:
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
        self._study_id = study_id
        self.study = optuna.create_study(
            study_name=study_id,
            storage=storage,
            directions=[objective.direction for objective in spec.objectives],
            sampler=optuna.samplers.RandomSampler(),  # tells; each point has a sampler of its own
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

    def own(self, trial: FrozenTrial) -> Mapping[str, Any] | None:
        """What gputui noted when it made a trial of this study; None for a trial of another process."""
        noted = trial.user_attrs.get(OWN)
        is_own = isinstance(noted, dict) and noted.get("study") == self._study_id and "origin" in noted
        return noted if is_own else None

    def is_told_outside(self, number: int) -> bool:
        """Whether another process has ended a trial."""
        trial = self.trials()[number]
        return trial.state.is_finished() and VERDICT not in trial.user_attrs

    def add(
        self, params: Mapping[str, Scalar], origin: str, *, values: Sequence[float] = (), ended_at: float | None = None,
        **own: Any,
    ) -> None:  # fmt: skip
        """Add a trial with a known point in one line: a complete one with ``values``, else one to
        run."""
        state = TrialState.COMPLETE if values else TrialState.RUNNING
        trial = self._trial(params, state, {"origin": origin, **own}, values=list(values) or None)
        if ended_at is not None:
            trial.datetime_complete = datetime.fromtimestamp(ended_at)
        self.study._storage.create_new_trial(self.study._study_id, template_trial=trial)

    def _trial(
        self, params: Mapping[str, Scalar], state: TrialState, own: Mapping[str, Any], **parts: Any
    ) -> FrozenTrial:
        """A trial of gputui with the parameters that the space has."""
        known = {name: value for name, value in params.items() if name in self._distributions}
        user_attrs = {OWN: {"study": self._study_id, **own}, **parts.pop("user_attrs", {})}
        distributions = {name: self._distributions[name] for name in known}
        return create_trial(state=state, params=known, distributions=distributions, user_attrs=user_attrs, **parts)

    def restore(self, rows: Sequence[TrialRecord], rungs: Sequence[RungValue]) -> None:
        """Add the trials of the table that the journal lost, or never had. The table of a living
        study is never ahead."""
        for row in rows[len(self.trials()) :]:
            state = _state(row.state, row.values)
            verdict = _verdict(_ruling(row), row.ended_at or 0.0)
            trial = self._trial(
                row.params,
                state,
                {"origin": row.origin, "parent": row.parent, "run": row.run_id},
                user_attrs={} if state is TrialState.RUNNING else {VERDICT: verdict},
                values=list(row.values) if state is TrialState.COMPLETE else None,
                intermediate_values={
                    one.rung: one.value for one in rungs if one.number == row.number and one.value is not None
                },
                constraints={f"constraint {index}": value for index, value in enumerate(row.constraints)},
            )
            self.study._storage.create_new_trial(self.study._study_id, template_trial=trial)

    def follow(self, rows: Sequence[TrialRecord], *, with_stopped: bool) -> None:
        """End the trials whose rows are over, and those whose verdict a killed process had stored.
        One that was stopped with its study ends only ``with_stopped``: until then it may continue."""
        for trial, row in zip(self.trials(), rows, strict=False):
            if trial.state is not TrialState.RUNNING:
                continue
            if VERDICT in trial.user_attrs:
                self.settle(trial)
            elif row.state.is_over and (with_stopped or row.state is not Verdict.STOPPED):
                self.end(row.number, _ruling(row), row.ended_at or 0.0)

    def sample(self) -> None:
        """Add a trial at a point that the sampler draws."""
        trials = list(self._learned_from())
        draft = _Draft(self.study._storage, trials, number=len(self.trials()))
        draft.trial.set_user_attr(OWN, {"study": self._study_id, "origin": "sampled"})
        study = optuna.Study(self._study_id, draft, self._sampler(draft), self.study.pruner)  # type: ignore[arg-type]
        asked, point = Trial(study, draft.trial._trial_id), draft.trial.params
        for dimension in self.spec.space:
            if dimension.applies(point):
                asked._suggest(dimension.name, self._distributions[dimension.name])
        self.study._storage.create_new_trial(self.study._study_id, template_trial=draft.trial)

    def _learned_from(self) -> Iterator[FrozenTrial]:
        """The trials that samplers see. They need the same distribution of a parameter everywhere, so
        trials of other processes have the study's own, and count only with a point of the space."""
        for trial in self.trials():
            if self.own(trial) is not None:
                yield trial
            elif self.spec.has_point(trial.params):
                alike = copy(trial)
                alike.distributions = {name: self._distributions[name] for name in trial.params}
                yield alike

    def _sampler(self, draft: _Draft) -> optuna.samplers.BaseSampler:
        if self.spec.sampler.kind != "cmaes":
            return samplers.sampler(self.spec, draft.trial.number)
        if self._cma_es is None:
            self._cma_es = samplers.cma_es(self.spec, draft.others)
        return self._cma_es

    def move(self, number: int, params: Mapping[str, Scalar]) -> None:
        """Give a population's member the parameters that it trains with from now on."""
        trial = self.trials()[number]
        for name, value in ({} if trial.state.is_finished() else params).items():
            distribution = self._distributions[name]
            self.study._storage.set_trial_param(
                trial._trial_id, name, distribution.to_internal_repr(value), distribution
            )

    def report(self, number: int, rung: int, value: float) -> None:
        """Store the value of a trial at a rung; that of a population's member may be replaced."""
        trial = self.trials()[number]
        is_new = self.spec.pbt is not None or rung not in trial.intermediate_values
        if is_new and not trial.state.is_finished():
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
            self.study._storage.set_trial_user_attr(trial._trial_id, VERDICT, _verdict(ruling, now))
        self.settle(self.trials()[number])

    def settle(self, trial: FrozenTrial) -> None:
        """Give a running trial the state of the verdict that it has."""
        verdict = trial.user_attrs[VERDICT]
        values = verdict["values"]
        state = _state(Verdict(verdict["state"]), values)
        if verdict["state"] == Verdict.INFEASIBLE and not values:
            # What it reported would count for the sampler, and for the pruner of others.
            worst = self.spec.objectives[0].sign * math.inf
            for rung in trial.intermediate_values:
                self.study._storage.set_trial_intermediate_value(trial._trial_id, rung, worst)
        self.study.tell(trial.number, values if state is TrialState.COMPLETE else None, state=state)


class _Draft:
    """A study's storage with one more trial, which is drawn in memory: its point is stored in one line.

    It is what samplers see; ``others`` are the trials beside it."""

    def __init__(self, storage: optuna.storages.BaseStorage, others: list[FrozenTrial], *, number: int) -> None:
        self._storage, self.others = storage, others
        self.trial = create_trial(state=TrialState.RUNNING)
        self.trial.number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return self.trial if trial_id == self.trial._trial_id else self._storage.get_trial(trial_id)

    def get_all_trials(
        self, _: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return [trial for trial in self.others if states is None or trial.state in states]

    def set_trial_param(self, _: int, name: str, value: float, distribution: BaseDistribution) -> None:
        self.trial.params[name] = distribution.to_external_repr(value)
        self.trial.distributions[name] = distribution

    def set_trial_system_attr(self, _: int, key: str, value: Any) -> None:
        self.trial.system_attrs[key] = value


def _state(verdict: Verdict, values: Sequence[float]) -> TrialState:
    """Optuna's state for a verdict."""
    if verdict is Verdict.INFEASIBLE:
        # The worst result, so that a learning sampler avoids such points.
        return TrialState.COMPLETE if values else TrialState.PRUNED
    return _OPTUNA_STATES.get(verdict, TrialState.RUNNING)


def _ruling(row: TrialRecord) -> Ruling:
    """The ruling on a trial that the table has."""
    return Ruling(row.state, row.reason, row.values, row.constraints)


def _verdict(ruling: Ruling, at: float) -> dict[str, Any]:
    return {
        "state": ruling.state,
        "values": list(ruling.values),
        "constraints": list(ruling.constraints),
        "reason": ruling.reason,
        "at": at,
    }


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
    spec, rows = study_spec(study), read_trials(connection, study_id)
    try:
        exported = optuna.storages.RDBStorage(f"sqlite:///{target}")
        with TemporaryDirectory() as temporary:
            # The study's own journal is only read.
            if (folder / JOURNAL_FILE).exists():
                shutil.copyfile(folder / JOURNAL_FILE, Path(temporary) / JOURNAL_FILE)
            journal = StudyJournal(spec, study_id, open_storage(Path(temporary)))
            journal.restore(rows, read_rungs(connection, study_id))
            journal.follow(rows, with_stopped=True)
            trials = journal.study.get_trials()
        into = StudyJournal(spec, study_id, exported).study
        for trial in trials:
            if trial.number < len(rows) and (run_id := rows[trial.number].run_id) is not None:
                trial.set_user_attr(RUN, run_id)
            into.add_trial(trial)
        exported.engine.dispose()
    except SQLAlchemyError as error:
        target.unlink(missing_ok=True)
        raise StudyExportError(f"cannot write {target}: {getattr(error, 'orig', None) or error}") from error
    return len(trials)
