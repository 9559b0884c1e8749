"""An offline run of Weights & Biases in a folder, for ``wandb sync``; nothing is sent.

Exactly once: an offline run cannot be continued, so another process rewrites it from the first line
and removes the unfinished one. The ID of the run stays the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gputui.reports.export.files import refuse_full_folder
from gputui.reports.export.sink import ExportError, Position, Sink
from gputui.reports.export.subject import Subject
from gputui.reports.export.texts import NOTE, PROJECT, clean_value, sentence
from gputui.store.metrics.exported import Item, Note


class WandbSink(Sink):
    """An offline run in ``<target>/wandb``. It has no position: `begin` writes the run anew."""

    def __init__(self, subject: Subject, target: str) -> None:
        # It would report its own errors over the network.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._wandb: Any = wandb
        super().__init__(subject, target)
        self._folder = Path(target)
        self._run: Any = None
        self._story: list[str] = []

    def refuse_taken(self) -> None:
        refuse_full_folder(self._folder)

    def begin(self, position: Position) -> bool:
        run = self._subject.run
        key = self._subject.key
        self._folder.mkdir(parents=True, exist_ok=True)
        for folder in self._folder.glob(f"wandb/offline-run-*-{key}"):
            shutil.rmtree(folder)
        self._run = self._wandb.init(
            mode="offline",
            project=PROJECT,
            id=key,
            name=run.run_id,
            group=run.profile,
            config=clean_value(self._subject.params),
            dir=str(self._folder),
            settings=self._wandb.Settings(
                silent=True, console="off", reinit="create_new", disable_git=True, save_code=False,
                x_disable_meta=True, x_disable_stats=True,
            ),
        )  # fmt: skip
        # W&B's own step must increase, but a resumed run repeats steps.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        return True

    def write(self, items: Sequence[Item], has_more: bool) -> None:
        for item in items:
            if isinstance(item, Note):
                self._story.append(sentence(item))
                self._run.summary[f"{NOTE}story"] = "\n".join(self._story)
            elif (point := self._subject.point(item)) is not None:
                step, at, values = point
                self.written += 1
                self._run.log({**values, "step": step, "time": at, f"{NOTE}attempt": item.attempt})

    def position(self) -> Position:
        return {}

    def finish(self, state: str, ended_at: float) -> None:
        self._run.summary[f"{NOTE}state"] = state
        run = self._run
        self._run = None
        code = 1 if state == "failed" else 0
        run.finish(exit_code=code)
        key = self._subject.key
        if not any(self._folder.glob(f"wandb/offline-run-*-{key}/run-{key}.wandb")):
            raise ExportError(f"wandb has written nothing in {self._folder / 'wandb'}")

    def close(self) -> None:
        if self._run is not None:
            with suppress(Exception):  # of any type
                self._run.finish(exit_code=1)
