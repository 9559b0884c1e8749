"""A home with one target, and what a person does with a run there: the same for every kind of target."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from gputui.runs.identity import identify
from tests.conftest import wait_until
from tests.machines import Machine

_NUMBERS = itertools.count()


class TargetHome:
    """A home whose target is called ``name``; ``profile`` counts steps. A system behind it may remember the names of
    runs of earlier tests, so each profile has its own."""

    name: ClassVar[str] = "lab"
    wait_seconds: ClassVar[float] = 90.0

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.profile = machine.profile(f"steps{next(_NUMBERS)}")

    def keep_code_in_git(self) -> Path:
        """Move the profile and its script into a git checkout, which has an ignored file too."""
        code = self.machine.folder / "code"
        code.mkdir()
        for name in ("steps.py", Path(self.profile).name):
            shutil.move(self.machine.folder / name, code / name)
        self.profile = str(code / Path(self.profile).name)
        (code / "ignored.bin").write_text("x")
        (code / ".gitignore").write_text("*.bin\n")
        subprocess.run(["git", "init", "-q", str(code)], check=True, timeout=20)
        return code

    def set_target(self, **options: Any) -> None:
        self.machine.workspace.targets.write_text(json.dumps({self.name: options}))

    def launch(self, *changes: str, gpus: int | None = None) -> str:
        words = [word for change in changes for word in ("--set", change)]
        words += [] if gpus is None else ["--gpus", str(gpus)]
        return str(self.machine.json("run", self.profile, "--on", self.name, *words)["id"])

    def shown(self, run_id: str) -> dict[str, Any]:
        found = self.machine.json("show", run_id)
        assert isinstance(found, dict)
        return found

    def placement(self, run_id: str) -> dict[str, Any]:
        return self.shown(run_id)["placement"] or {}

    def wait_for_place(self, run_id: str, *states: str) -> dict[str, Any]:
        """The placement, once its state is one of these. It is stored a second or two after what its metrics show."""

        def look() -> dict[str, Any] | None:
            found = self.placement(run_id)
            return found if found.get("state") in states else None

        return wait_until(look, self.wait_seconds, f"{run_id} {states} there")

    def steps(self, run_id: str) -> list[int]:
        return [step for _, step in self.machine.steps(run_id)]

    def wait_for_step(self, run_id: str, step: int, attempt: int = 1) -> None:
        """Until the newest stored step is at least this one, of at least this attempt."""

        def is_there() -> bool:
            newest = self.machine.steps(run_id)[-1:]
            return bool(newest) and newest[0][0] >= attempt and newest[0][1] >= step

        wait_until(is_there, self.wait_seconds, f"{run_id} at step {step}")

    def courier(self, run_id: str, attempt: int = 1) -> int | None:
        """The PID of the living courier."""
        record = self.machine.workspace.run_dir(run_id) / "attempts" / str(attempt) / "started.json"
        try:
            pid = int(json.loads(record.read_text())["shim_pid"])
        except (OSError, ValueError):
            return None
        return pid if identify(pid) is not None else None

    def stop(self, run_id: str, folder: Path) -> int:
        """Stop a run, which saves in ``folder``; the step of that checkpoint."""
        self.machine.gputui("stop", run_id)
        self.machine.wait_for(run_id, "stopped", timeout=self.wait_seconds)
        step = self.steps(run_id)[-1] + 1
        assert (folder / "checkpoints" / f"step_{step:06d}.pt").is_file()
        assert self.shown(run_id)["attempts"][0]["incident"] is None
        return step

    def finish(self, run_id: str, folder: Path) -> None:
        """Let the script end, which sees its run in ``folder``; every step that it wrote is stored once."""
        (folder / "enough").touch()
        self.machine.wait_for(run_id, "succeeded", timeout=self.wait_seconds)
        assert self.steps(run_id) == list(range((folder / "metrics.jsonl").read_text().count("\n")))
