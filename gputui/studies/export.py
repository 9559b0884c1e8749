"""The files that a study is exported to: an Optuna storage in SQLite, and a population's member as a
profile with phases."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import optuna
import yaml

from gputui.core.errors import ExplainedError
from gputui.core.files import write_new
from gputui.core.yaml_forms.file import parse_file
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.params import RUN_DIR
from gputui.profiles.schema import is_literal
from gputui.runs.checkpoint_names import explicit_step
from gputui.runs.spec import Phase, RunSpec, Scalar, SpecError
from gputui.runs.submission import read_spec
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.studies import OUTSIDE, StudyRecord, TrialRecord, read_rungs, read_trials
from gputui.studies.analysis import best_trial
from gputui.studies.journal import StudyJournal
from gputui.studies.journal_file import open_storage
from gputui.studies.population import segments_of
from gputui.studies.rows import JOURNAL_FILE, SPEC_FILE
from gputui.studies.spec import study_spec

RUN = "gputui:run"
"""The attribute of an exported trial with its run."""


class StudyExportError(ExplainedError):
    """The study cannot be exported; the text says why in one line. No part of the target is left."""

    is_refusal = True


def export_storage(connection: sqlite3.Connection, folder: Path, study: StudyRecord, target: Path) -> int:
    """Copy a study to a new Optuna storage in SQLite; returns the number of trials. ``folder`` is
    the study's. Raises StudyExportError."""
    _create(target, "")
    study_id = study.study_id
    spec = study_spec(study)
    rows = read_trials(connection, study_id)
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
    except Exception as error:
        # Optuna checks nothing: what other processes wrote to the journal may raise any error.
        target.unlink(missing_ok=True)
        raise StudyExportError(f"cannot export to {target}: {getattr(error, 'orig', None) or error}") from error
    return len(trials)


def export_lineage(
    connection: sqlite3.Connection, folder: Path, study: StudyRecord, target: Path, number: int | None
) -> tuple[int, int]:
    """Write the training of a population's member, by default the best one, as a profile with
    phases; returns its trial's number and the number of phases. Raises StudyExportError."""
    study_id = study.study_id
    spec = study_spec(study)
    trials = read_trials(connection, study_id)
    if spec.pbt is None:
        raise StudyExportError(f"{study_id} trains no population; gputui study report names the command")
    if number is None:
        best = best_trial([trial for trial in trials if trial.origin != OUTSIDE], spec.objectives)
        if best is None:
            raise StudyExportError(f"{study_id}: no member is complete yet; choose one with --trial")
        number = best.number
    if number >= len(trials):
        raise StudyExportError(f"{study_id}: has no trial {number}")
    try:
        phases = lineage_phases(connection, trials, number)
        base = read_spec(folder / SPEC_FILE)
        source = Path(base.profile_path or "").read_text("utf-8")
    except (LineageError, SpecError, OSError) as error:
        raise StudyExportError(str(error)) from error
    _create(target, phased_profile(base, source, f"{study_id}-t{number}", spec.params, phases))
    return number, len(phases)


def _create(target: Path, text: str) -> None:
    try:
        write_new(target, text)
    except FileExistsError as error:
        raise StudyExportError(f"{target} exists; choose another name") from error
    except OSError as error:
        raise StudyExportError(f"cannot write {target}: {error.strerror or error}") from error


def phased_profile(base: RunSpec, source: str, name: str, fixed: Mapping[str, Scalar], phases: Sequence[Phase]) -> str:
    """The text of a profile, ``source``, with the new ``name``, the study's ``fixed`` values and
    ``phases``, to be read from any folder. ``base`` is the specification that the study made of the
    profile. Raises StudyExportError if the file is no profile any more."""
    try:
        # As a profile is read, which keeps 1.10 and yes in env as they are written.
        data = parse_file(source, Path(base.profile_path or ""), is_literal).data
    except ProfileError:
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("params") or {}, dict):
        raise StudyExportError(f"{base.profile_path} has changed and is no profile; gputui check names the line")
    data["name"] = name
    if "script" in data:
        data["script"] = base.program[0]
    if base.workdir != RUN_DIR:
        data["workdir"] = base.workdir
    if "python" in data:
        data["python"] = base.python
    params = data["params"] = dict(data.get("params") or {})
    for key, value in fixed.items():
        if isinstance(params.get(key), dict):
            params[key] = {**params[key], "default": value}
        else:
            params[key] = value
    data["phases"] = [_phase_form(phase) for phase in phases]
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=150)


def _phase_form(phase: Phase) -> dict[str, Any]:
    """A phase as in a profile."""
    form: dict[str, Any] = {"params": dict(phase.params)}
    if phase.until is not None:
        form = {"until": phase.until, **form}
    return form


class LineageError(Exception):
    """The training of a member is unknown. The text says why."""


class _LineagePart(NamedTuple):
    """The newest part of a member's training among some of its attempts.

    Attributes:
        number: the member's trial.
        last_attempt: the last attempt that counts.
        end_step: the step at which the part ended; None for the end of the training.
    """

    number: int
    last_attempt: float = math.inf
    end_step: int | None = None


def lineage_phases(connection: sqlite3.Connection, trials: Sequence[TrialRecord], number: int) -> list[Phase]:
    """The phases of the training of member ``trials[number]``, those in its donors' runs included.

    Raises LineageError if a run was removed, a checkpoint has no step or the stored parts are
    inconsistent; sqlite3.Error.
    """
    phases: list[Phase] = []
    part: _LineagePart | None = _LineagePart(number)
    while part is not None:
        phase, part = _phase_and_origin(connection, trials, part)
        phases.insert(0, phase)
    return phases


def _phase_and_origin(
    connection: sqlite3.Connection, trials: Sequence[TrialRecord], part: _LineagePart
) -> tuple[Phase, _LineagePart | None]:
    """The phase of a part, and the part whose checkpoint it began from; None for a first step."""
    number, last_attempt, end_step = part
    if number >= len(trials):
        raise LineageError(f"trial {number}, which is of this lineage, is not known")
    trial = trials[number]
    segment = next((segment for segment in reversed(segments_of(trial)) if segment.attempt <= last_attempt), None)
    first_attempt = 1 if segment is None else segment.attempt
    first = _attempt(connection, trial, first_attempt)
    phase = Phase(end_step, {name: first.params[name] for name in trial.params if name in first.params})
    if segment is None:
        return phase, None
    if segment.donor is None:
        origin = _LineagePart(number, segment.attempt - 1, _resumed_step(first))
    else:
        origin = _LineagePart(segment.donor, segment.donor_attempt, segment.step)
    if origin.end_step is None:
        raise LineageError(f"the checkpoint that trial {number} went on from has no step in its name")
    if end_step is not None and origin.end_step >= end_step:
        raise LineageError(f"trial {number} went back behind a checkpoint that it had gone on from")
    return phase, origin


def _attempt(connection: sqlite3.Connection, trial: TrialRecord, number: int) -> Attempt:
    attempts = []
    if trial.run_id is not None:
        attempts = read_attempts(connection, trial.run_id)
    if not attempts:
        raise LineageError(f"the run of trial {trial.number}, which is of this lineage, was removed")
    attempt = next((attempt for attempt in attempts if attempt.number == number), None)
    if attempt is None:
        raise LineageError(f"attempt {number} of {trial.run_id} is not known")
    return attempt


def _resumed_step(attempt: Attempt) -> int | None:
    """The step of the checkpoint that an attempt resumed from."""
    named_step = None if attempt.resumed_from is None else explicit_step(PurePath(attempt.resumed_from).name)
    if named_step is None:
        return attempt.resumed_step
    return named_step
