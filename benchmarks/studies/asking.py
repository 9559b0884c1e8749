"""Cost of a sampler for a study's process: ``python -m benchmarks.studies.asking SAMPLER
[TRIALS]``, as JSON.

A process of its own for each sampler, so that its memory is that of a study's process which uses it. What is measured
is what the process does for a trial beside launching it: Optuna is asked, and the trial stored in the journal and the
table; ten times a value is reported, stored and judged by the pruner; the verdict is stored.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

from benchmarks.percentiles import percentile
from benchmarks.processes import memory
from benchmarks.studies import planted
from benchmarks.studies.simulated import LOSS, PLANTED_SPACE
from gputui.core.config import locate
from gputui.runs.repository import transaction
from gputui.store.database import open_writer
from gputui.store.studies import TrialState
from gputui.studies import __main__ as _process  # noqa: F401 - its imports belong to the memory
from gputui.studies import rows
from gputui.studies.decide import Ruling
from gputui.studies.journal import StudyJournal
from gputui.studies.journal_file import open_storage
from gputui.studies.rows import StudyWriter
from gputui.studies.rungs import PassedRung
from gputui.studies.spec import Objective, PrunerSpec, SamplerKind, SamplerSpec, StudySpec
from gputui.studies.view import TrialView

STUDY = "asking-1"
RUNGS = 10
TRIALS = 64
# Samplers draw at random first; what they cost is what they cost once they learn.
FIRST_COUNTED = 16


def measure(sampler: SamplerKind, trials: int = TRIALS) -> dict[str, Any]:
    """Seconds a trial, median and p95 behind the first sixteen, of them the processor's, and the memory of this process
    in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = locate(Path(folder) / "home", {})
        workspace.create()
        with closing(open_writer(workspace.database)) as connection:
            spec = _spec(sampler)
            with transaction(connection):
                rows.begin_study(connection, STUDY, spec, source="", now=time.time(), actor="benchmark")
            home = workspace.studies / STUDY
            home.mkdir(parents=True)
            journal = StudyJournal(spec, STUDY, open_storage(home))
            view = TrialView(connection, STUDY, time.time)
            writer = StudyWriter(workspace, connection, STUDY, time.time)
            spent = [_trial(journal, view, writer, spec) for _ in range(trials)]
    counted = spent[min(FIRST_COUNTED, trials // 2) :]
    walls = [wall for wall, _ in counted]
    return {
        "median_seconds": statistics.median(walls),
        "p95_seconds": percentile(walls, 95),
        "median_cpu_seconds": statistics.median(cpu for _, cpu in counted),
        "rss_bytes": memory([os.getpid()]).rss_bytes,
    }


def _spec(sampler: SamplerKind) -> StudySpec:
    space = tuple(dimension for dimension in PLANTED_SPACE if sampler != "cmaes" or dimension.kind != "choice")
    several = (LOSS, Objective("latency")) if sampler == "nsga2" else (LOSS,)
    pruner = PrunerSpec("none" if len(several) > 1 else "hyperband", length=float(RUNGS), rungs=RUNGS)
    return StudySpec("asking", "planted", space, several, SamplerSpec(sampler), pruner)


def _trial(journal: StudyJournal, view: TrialView, writer: StudyWriter, spec: StudySpec) -> tuple[float, float]:
    """Wall and processor seconds that one trial took."""
    began = time.perf_counter()
    cpu_began = time.process_time()
    journal.sample()
    trial = view.update(journal)[-1]
    with transaction(writer.connection):
        writer.set_trial(trial, state=TrialState.RUNNING)
    curve = planted.loss_curve(trial.params["lr"], trial.params["dropout"], trial.params.get("width", 256))
    is_pruned = False
    # Where nothing can be cut short, as with several objectives, no rung is stored either.
    for rung in range(1, RUNGS + 1) if spec.pruner.kind != "none" else ():
        value = min(curve[: rung * planted.STEPS // RUNGS])
        view.update(journal)
        journal.report(trial.number, rung, value)
        # A trial that would be cut short goes on all the same: each is to have ten rungs.
        is_pruned |= rung < RUNGS and journal.should_prune(trial.number)
        with transaction(writer.connection):
            writer.set_rungs(trial.number, [PassedRung(rung, rung, value, 1)])
            writer.set_trial(trial, rung=rung)
    values = (min(curve), float(trial.params.get("width", 256)))[: len(spec.objectives)]
    ruling = Ruling(TrialState.PRUNED) if is_pruned else Ruling(TrialState.COMPLETE, reason=None, values=values)
    journal.end(trial.number, ruling, time.time())
    view.update(journal)
    return time.perf_counter() - began, time.process_time() - cpu_began


def main() -> int:
    name = sys.argv[1]
    sampler: SamplerKind | None = next((kind for kind in get_args(SamplerKind) if kind == name), None)
    if sampler is None:
        sys.exit(f"no sampler is named {name}")
    trials = int(sys.argv[2]) if len(sys.argv) > 2 else TRIALS
    print(json.dumps(measure(sampler, trials)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
