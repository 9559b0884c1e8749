"""An offline run of Weights & Biases in a folder, for ``wandb sync``; nothing is sent.

Exactly once: an offline run cannot be continued, so a new process rewrites it from the first line and removes the
unfinished one. The ID of the run stays the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gputui.reports.export.line_file import refuse_full_folder
from gputui.reports.export.sink import NOTE, PROJECT, Begun, ExportError, Position, cleaned, sentence
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item, Note
from gputui.store.metrics.queries import StoredLine


class WandbSink:
    """An offline run in ``<target>/wandb``. It has no position: each process writes the run from its first line."""

    def __init__(self, subject: Subject, target: str, key: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would report its own errors over the network
        import wandb

        self._wandb: Any = wandb
        self._about = subject.about(key)
        self._target = Path(target)
        self._run: Any = None
        self._story: list[str] = []
        self.written = 0

    def refuse_taken(self) -> None:
        refuse_full_folder(self._target)

    def origin(self) -> Position:
        return {}

    def begin(self, position: Position) -> Begun:
        about = self._about
        self._target.mkdir(parents=True, exist_ok=True)
        for folder in self._target.glob(f"wandb/offline-run-*-{about.key}"):
            shutil.rmtree(folder)
        self._run = self._wandb.init(
            mode="offline",
            project=PROJECT,
            id=about.key,
            name=about.run_id,
            group=about.profile,
            config=cleaned(about.params),
            dir=str(self._target),
            settings=self._wandb.Settings(
                silent=True, console="off", reinit="create_new", disable_git=True, save_code=False,
                x_disable_meta=True, x_disable_stats=True,
            ),
        )  # fmt: skip
        # W&B's own step must increase, but a resumed run repeats steps.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return Begun({}, True)

    def write(self, items: Sequence[Item], has_more: bool) -> Position:
        for item in items:
            if isinstance(item, Note):
                self._story.append(sentence(item))
                self._run.summary[f"{NOTE}story"] = "\n".join(self._story)
            else:
                self._log(item)
        return {}

    def finish(self, state: str, ended_at: float) -> Position:
        self._run.summary[f"{NOTE}state"] = state
        self._run.finish(exit_code=1 if state == "failed" else 0)
        self._wandb.teardown()  # ends its process, which flushes everything
        folder = self._target / "wandb"
        if not any(folder.glob(f"offline-run-*-{self._about.key}/run-{self._about.key}.wandb")):
            raise ExportError(f"wandb has written nothing in {folder}")
        return {}

    def _log(self, line: StoredLine) -> None:
        point = self._about.point(line)
        if point is not None:
            step, at, values = point
            self.written += 1
            self._run.log({**values, "step": step, "time": at, f"{NOTE}attempt": line.attempt})
