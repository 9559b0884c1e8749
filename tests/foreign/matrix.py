"""Programs in the form of those that others wrote, served by the recipes of docs/recipes.md, and what must hold."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import wait_until
from tests.machines import Machine

PROGRAMS = Path(__file__).parent / "programs"
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


@dataclass(frozen=True)
class Program:
    """A row: a folder of PROGRAMS and the recipe that serves it. ``script`` stands where the recipe says otherwise;
    ``needs`` is a package without which it cannot be tried; ``batch`` the parameter that is its batch size, ``ranks``
    how many processes train, ``early`` the first step at which a checkpoint is there for certain."""

    title: str
    recipe: str
    folder: str
    batch: str = "batch_size"
    ranks: int = 2
    early: int = 45
    needs: str | None = None
    replaced: tuple[tuple[str, str], ...] = ()
    env: dict[str, str] = field(default_factory=dict)


ROWS = {
    "nanogpt": Program("nanoGPT's way", "nanogpt", "nanogpt"),
    "timm": Program("timm's train.py", "timm", "timm_form"),
    "timm-single": Program(
        "timm's train.py, one process", "timm", "timm_form", ranks=1,
        replaced=(("launcher: torchrun", "launcher: python"), ("nproc: 2\n", "")),
    ),
    "hf-real": Program(
        "Hugging Face Trainer itself", "hf", "hf_real", "per_device_train_batch_size", needs="transformers",
        replaced=(("--save_steps {save_steps}",
                   "--save_steps {save_steps} --max_steps 120 --logging_steps 5 --use_cpu true --report_to none"),),
    ),
    "lightning": Program("Lightning's own launcher, its way", "lightning", "lightning_form"),
    "lightning-real": Program("Lightning itself, its own launcher", "lightning", "lightning_real", needs="lightning"),
    "accelerate-real": Program(
        "accelerate launch itself", "accelerate", "accelerate_real", needs="accelerate"),
    "make": Program("make and torchrun", "make", "stages"),
    "stages": Program("two torchruns in a shell script", "stages", "stages"),
    "single": Program("minGPT's way, one process", "single", "mingpt", ranks=1),
}  # fmt: skip


def recipe(name: str) -> str:
    """The profile of a recipe as the page has it."""
    recipe = re.search(rf"```yaml\n# recipe: {name}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert recipe is not None, name
    return recipe[1]


def prepare(machine: Machine, name: str, **env: str) -> str:
    """Lay a row's program and profile into the machine's folder; the profile's path."""
    row = ROWS[name]
    folder = machine.folder / "programs"
    if not folder.exists():
        shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = recipe(row.recipe)
    for old, new in row.replaced:
        assert old in text, (name, old)
        text = text.replace(old, new)
    if "command:" not in text:
        text += f"python: {sys.executable}\n"
    settings = {"PYTHON": sys.executable, **row.env, **env}
    text += "grace: 5\nrecovery: {policy: standard, backoff: {base: 0}}\n"
    text += "env: {" + ", ".join(f"{key}: '{value}'" for key, value in settings.items()) + "}\n"
    path = folder / row.folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)


def can_be_tried(name: str) -> bool:
    needs = ROWS[name].needs
    return needs is None or importlib.util.find_spec(needs) is not None


# --- the parts of a row ---------------------------------------------------------------------------------------------


def steps(machine: Machine, run_id: str, attempt: int) -> list[int]:
    rows = machine.rows(
        "SELECT m.step FROM metrics AS m JOIN metric_sources AS s USING (source_id) WHERE s.run_id = ? "
        "AND m.attempt = ? AND m.step IS NOT NULL ORDER BY m.source_id, m.generation, m.byte_offset",
        run_id,
        attempt,
    )
    return [row[0] for row in rows]


def launch(machine: Machine, name: str, **env: str) -> str:
    machine.gputui("run", prepare(machine, name, **env))
    return str(machine.rows("SELECT run_id FROM runs ORDER BY sequence DESC LIMIT 1")[0][0])


def nothing_left(machine: Machine, run_id: str) -> None:
    wait_until(lambda: not machine.marked(run_id), 30, f"no process of {run_id}")


def has_metrics(machine: Machine, name: str) -> None:
    """It runs to its end, with its metrics by step and time."""
    run_id = launch(machine, name)
    machine.wait_for(run_id, "succeeded", timeout=150)
    points = machine.json("metrics", run_id)
    by_name: dict[str, list[int]] = {}
    for point in points:
        if point["name"] not in ("epoch", "total_steps"):
            by_name.setdefault(point["name"], []).append(point["step"])
    assert max(map(len, by_name.values())) > 5
    assert all(times == sorted(times) for times in by_name.values()), by_name
    times = machine.rows(
        "SELECT count(*) FROM metrics AS m JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ? AND m.at IS NULL",
        run_id,
    )
    assert times == [(0,)]
    nothing_left(machine, run_id)


def stops(machine: Machine, name: str) -> None:
    """A stop ends it, and nothing is left."""
    run_id = launch(machine, name)
    wait_until(lambda: len(steps(machine, run_id, 1)) > 2, 120, "steps")
    machine.gputui("stop", run_id)
    machine.wait_for(run_id, "stopped", timeout=60)
    nothing_left(machine, run_id)


def recovers_from_a_killed_rank(machine: Machine, name: str) -> None:
    """The last rank is killed; the next attempt goes on from a checkpoint, which its first step shows."""
    row = ROWS[name]
    run_id = launch(machine, name)
    wait_until(lambda: any(step >= row.early for step in steps(machine, run_id, 1)), 120, f"step {row.early}")
    os.kill(victim(machine, run_id, row.ranks), signal.SIGKILL)
    machine.wait_for(run_id, "succeeded", timeout=200)
    last = max(steps(machine, run_id, 1))
    first = min(steps(machine, run_id, 2))
    assert 1 < first <= last + 15, (first, last)
    incidents = machine.rows("SELECT kind, rank FROM incidents WHERE run_id = ? ORDER BY incident_id", run_id)
    kind, rank = incidents[0]
    assert kind == "killed", incidents
    assert row.ranks == 1 or rank == row.ranks - 1, incidents
    nothing_left(machine, run_id)


def victim(machine: Machine, run_id: str, ranks: int) -> int:
    """The last rank's process, or that of a single one."""

    def look() -> int | None:
        if ranks > 1:
            return machine.ranks(run_id).get(ranks - 1)
        names = [(process.pid, Path(f"/proc/{process.pid}/cmdline").read_bytes()) for process in machine.marked(run_id)]
        return next((pid for pid, argv in names if b"adder.py" in argv or b"train.py" in argv), None)

    return wait_until(look, 30, "the rank")


def survives_out_of_memory(machine: Machine, name: str) -> None:
    """The batch that it asks for does not fit from some step on; with a smaller one it goes through."""
    row = ROWS[name]
    default = next(int(n) for n in re.findall(rf"{row.batch}: (\d+)", recipe(row.recipe)))
    run_id = launch(machine, name, FAKE_GPU_ROWS=str(default - 1), FAKE_GPU_FROM=str(row.early))
    machine.wait_for(run_id, "succeeded", timeout=200)
    run = machine.json("show", run_id)
    kinds = [attempt["incident"]["kind"] for attempt in run["attempts"] if attempt["incident"]]
    assert kinds == ["cuda_oom"], kinds
    assert run["attempts"][-1]["params"][row.batch] < default
    nothing_left(machine, run_id)


PLAYED: dict[str, Callable[[Machine, str], None]] = {
    "metrics": has_metrics,
    "stop": stops,
    "killed rank": recovers_from_a_killed_rank,
    "out of memory": survives_out_of_memory,
}
