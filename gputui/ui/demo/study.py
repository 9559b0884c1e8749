"""The study in the demo's history: random points on four pairs of GPUs, pruned by the median.

Points, rungs and decisions are those that a study's process would write for these losses.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.profiles.resolve import GpuChoice, resolve
from gputui.runs.code_version import read_code
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.submission import write_spec
from gputui.store.rows import insert, update
from gputui.store.studies import StudyState, TrialState, get_study, read_trials
from gputui.studies import decide, pbt, rows
from gputui.studies.importances import evaluate_importances
from gputui.studies.rungs import pruning_reason
from gputui.studies.spec import Objective, StudySpec
from gputui.studies.study_file import StudyFile, load_study
from gputui.ui.demo.simulated_trainer import MODELS, VALIDATION_STEPS, SimulatedTraining
from gputui.ui.demo.stories import STUDY

if TYPE_CHECKING:
    from gputui.ui.demo.past import DemoPast

STEP_SECONDS = 1.6  # a trial takes about a minute
ACTOR = "ada"


class _TrialCurve(Struct, frozen=True):
    """A trial's values at its rungs, and why it was pruned.

    Attributes:
        begin: UTC unix seconds.
        values: the losses at its rungs, the first rung's first.
        reason: None if it came to its end.
    """

    begin: float
    values: tuple[float, ...]
    reason: str | None = None

    def at(self, rung: int) -> float:
        """When it reaches a rung, UTC unix seconds."""
        return self.begin + 20.0 + rung * VALIDATION_STEPS * STEP_SECONDS

    def best(self, rung: int) -> float:
        """Its lowest loss up to a rung."""
        return min(self.values[:rung])


class _Slot(NamedTuple):
    """GPUs for one trial after another.

    Attributes:
        free_at: when the next trial can begin, UTC unix seconds.
        gpus: their indices.
    """

    free_at: float
    gpus: tuple[int, ...]


def play_study(past: DemoPast, file: Path) -> Iterator[float]:
    """Write the study with its runs, which begins now; nothing of it is left for later. Raises sqlite3.Error,
    OSError."""
    began_at = past.at
    study_file = load_study(file, past.workspace, file.parent)
    spec = study_file.spec
    study_id = f"{STUDY}-1"
    base = _write_base(past, study_id, study_file)
    with transaction(past.connection):
        rows.begin_study(past.connection, study_id, spec, source=study_file.source, now=began_at, actor=ACTOR)
    slots = [_Slot(began_at + 3.0 + pair, (2 * pair, 2 * pair + 1)) for pair in range(spec.parallel or 1)]
    curves: list[_TrialCurve] = []
    for number in range(spec.budget.trials or 0):
        # The next trial has the GPUs that are free first.
        slot = min(slots)
        slots.remove(slot)
        past.at = slot.free_at
        params = pbt.first_point(spec.space, spec.seed, number)
        trial = decide.trial_spec(base, spec, study_id, number, params)
        curve = _trial_curve(spec, trial.params, slot.free_at, curves)
        curves.append(curve)
        _write_trial(past, study_id, number, params)
        run_id = past.begin_run(trial, f"study {study_id}", name=f"{study_id}-t{number}")
        steps = len(curve.values) * VALIDATION_STEPS
        past.train_trial(
            run_id, slot.gpus, STEP_SECONDS, last_step=steps, pruned=curve.reason, actor=f"study {study_id}"
        )
        _write_result(past, study_id, number, run_id, curve)
        slots.append(_Slot(past.at + 2.0, slot.gpus))
    past.at = max(slot.free_at for slot in slots)
    _finish(past, study_id, spec, len(curves))
    yield from ()


def _write_base(past: DemoPast, study_id: str, study_file: StudyFile) -> RunSpec:
    """Make the study's folder with the specification that its trials begin from, and return that."""
    resolved = resolve(study_file.profile, GpuChoice(inventory=past.gpus), overrides=dict(study_file.spec.params))
    base = replace(resolved, shell=None, code=read_code(Path(resolved.workdir)))
    folder = past.workspace.studies / study_id
    folder.mkdir(mode=PRIVATE_DIR_MODE, parents=True)
    write_spec(folder / rows.SPEC_FILE, base)
    return base


def _write_trial(past: DemoPast, study_id: str, number: int, params: Mapping[str, Any]) -> None:
    with transaction(past.connection):
        insert(
            past.connection, "trials", study_id=study_id, number=number, state=TrialState.RUNNING, origin="sampled",
            params=json.dumps(params), created_at=past.at,
        )  # fmt: skip


def _finish(past: DemoPast, study_id: str, spec: StudySpec, trial_count: int) -> None:
    """Write the end of the study, and the importances of its parameters."""
    connection = past.connection
    with transaction(connection):
        study = get_study(connection, study_id)
        assert study is not None
        cause = f"its {trial_count} trials have ended"
        rows.move_study(connection, study, StudyState.FINISHED, cause=cause, actor=f"study {study_id}", now=past.at)
        rows.set_importances(connection, study_id, evaluate_importances(read_trials(connection, study_id), spec))


def _trial_curve(
    spec: StudySpec, params: Mapping[str, Any], begin: float, earlier: Sequence[_TrialCurve]
) -> _TrialCurve:
    """A trial's values at its rungs, up to where the median of earlier trials prunes it."""
    training = SimulatedTraining(MODELS[spec.profile], int(params["steps"]), params["lr"], params["weight_decay"])
    pruner = spec.pruner
    values = tuple(training.validation_loss(rung * VALIDATION_STEPS) for rung in range(1, pruner.rungs + 1))
    curve = _TrialCurve(begin, values)
    for rung in range(pruner.warmup + 1, pruner.rungs):
        now = curve.at(rung)
        complete = [trial for trial in earlier if trial.reason is None and trial.at(pruner.rungs) <= now]
        bests = [trial.best(rung) for trial in earlier if len(trial.values) >= rung and trial.at(rung) <= now]
        if len(complete) >= pruner.startup and curve.best(rung) > statistics.median(bests):
            reason = pruning_reason(rung, curve.best(rung), bests, Objective("val/loss"))
            return _TrialCurve(begin, values[:rung], reason)
    return curve


def _write_result(past: DemoPast, study_id: str, number: int, run_id: str, curve: _TrialCurve) -> None:
    """Write a value for each rung, and the end of the trial."""
    rungs = len(curve.values)
    state = TrialState.PRUNED
    value = None
    objective_values = None
    if curve.reason is None:
        state = TrialState.COMPLETE
        value = curve.best(rungs)
        objective_values = json.dumps([value])
    with transaction(past.connection):
        for rung in range(1, rungs + 1):
            insert(
                past.connection, "trial_rungs", study_id=study_id, number=number, rung=rung,
                step=rung * VALIDATION_STEPS, value=curve.best(rung), attempt=1, at=curve.at(rung),
            )  # fmt: skip
        update(
            past.connection, "trials", {"study_id": study_id, "number": number}, run_id=run_id, state=state, rung=rungs,
            value=value, objective_values=objective_values, reason=curve.reason, starts=1, ended_at=past.at,
        )  # fmt: skip
