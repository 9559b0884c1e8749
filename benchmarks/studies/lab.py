"""A home of its own with simulated GPUs, in which studies of planted trainings are run by the real command line."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.scene import own_folder, wait_until
from benchmarks.studies import moving, planted
from gputui.runs import identity
from gputui.runs.identity import ProcessIdentity, is_alive
from gputui.studies.rows import LOCK_FILE
from tests.machines import Machine

PLANTED = f"""
name: planted
launcher: python
script: {planted.__file__}
python: {sys.executable}
gpus: 1
params: {{lr: 0.01, dropout: 0.1, width: 128, seconds: 0.1}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
recovery: {{policy: aggressive, max_attempts: 50, backoff: {{base: 0.1, max: 0.5}}}}
"""
PLANTED_SPACE = f"""
space:
  lr: {{type: float, min: {planted.LR[0]}, max: {planted.LR[1]}, log: true}}
  dropout: {{type: float, min: {planted.DROPOUT[0]}, max: {planted.DROPOUT[1]}}}
  width: {list(planted.WIDTHS)}
"""
MOVING = f"""
name: moving
launcher: python
script: {moving.__file__}
python: {sys.executable}
gpus: 1
params: {{lr: 0.01, steps: 400, seconds: 0.05}}
env: {{MOVING_GATE: "%s"}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
"""


class Lab(Machine):
    """A machine whose folder has the planted profiles."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "planted.yaml").write_text(PLANTED)
        self.gate = folder / "gate"
        (folder / "moving.yaml").write_text(MOVING % self.gate)

    def gpus(self, count: int) -> None:
        """Set the number of simulated GPUs. Their names are this home's own: leases count across
        all homes."""
        text = f"gpus: {count}\nmemory: 80GiB\nseed: {random.SystemRandom().randrange(1 << 31)}\n"
        self.workspace.scenario.write_text(text)

    def begin(self, text: str, name: str = "study") -> str:
        """Begin a study; its id."""
        (self.folder / f"{name}.yaml").write_text(text)
        return str(self.json("study", "run", f"{name}.yaml")["id"])

    def allow_steps(self, count: int | None) -> None:
        """Set the number of steps that members on the moving optimum may make; None: all."""
        if count is None:
            self.gate.unlink()
            return
        # No member reads half of it.
        self.gate.with_suffix(".new").write_text(str(count))
        self.gate.with_suffix(".new").rename(self.gate)

    def study_state(self, study: str) -> str:
        return str(self.rows("SELECT state FROM studies WHERE study_id = ?", study)[0][0])

    def finish_study(self, study: str, timeout_seconds: float) -> None:
        """Wait for a study's end. Raises TimeoutError, AssertionError where it did not end well."""
        wait_until(lambda: self.study_state(study) != "running", timeout_seconds, f"the end of {study}")
        ((state, reason),) = self.rows("SELECT state, reason FROM studies WHERE study_id = ?", study)
        assert state == "finished", f"{study} is {state}: {reason}"

    def study_process(self, study: str) -> ProcessIdentity | None:
        """The process of a study, None where it has none."""
        holder = identity.holder(self.workspace.studies / study / LOCK_FILE)
        return None if holder is None or not is_alive(holder.identity) else holder.identity

    def trials(self, study: str) -> list[dict[str, Any]]:
        return list(self.json("study", "show", study)["trials"])


@contextmanager
def lab(gpus: int | None = 4) -> Iterator[Lab]:
    """A lab with so many GPUs and an agent, or with neither; nothing of the caller's environment is in it, and nothing
    of it is left."""
    with own_folder("gputui-studies-") as folder, closing(Lab(folder)) as lab:
        if gpus is not None:
            lab.gpus(gpus)
            lab.gputui("agent", "start")
            wait_until(lambda: lab.rows("SELECT count(*) FROM gpus") == [(gpus,)], what="the GPUs")
        yield lab
