"""Drills on the host's memory with limits that are real: a control group in which the kernel kills a rank, and a limit
of the address space at which PyTorch itself gives up."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import wait_until
from tests.machines import Machine

pytestmark = pytest.mark.long

GROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 800 << 20

SCRIPT = '''
"""Counts to thirty; in an attempt that begins at 0, the last rank meets at step 15 the limit that is named."""
import argparse, json, os, pathlib, resource, subprocess, sys, time, zipfile

options = argparse.ArgumentParser()
options.add_argument("--meet")
options.add_argument("--num-workers", type=int)
options.add_argument("--resume", default="")
options = options.parse_args()
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "checkpoints"
folder.mkdir(exist_ok=True)
begin = int(pathlib.Path(options.resume).stem.split("_")[1]) if options.resume else 0

def group():
    held = []
    while True:
        held.append(b"x" * (16 << 20))

def own_group():
    (pathlib.Path(os.environ["GROUP"]) / "cgroup.procs").write_text(str(os.getpid()))
    group()

def child():
    fill = "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); bytearray(b'x') * (1 << 30)"
    place = pathlib.Path(os.environ["GROUP"]) / "cgroup.procs"
    subprocess.run([sys.executable, "-c", "import os, pathlib, sys; " + fill, str(place)], check=True)

def address_space():
    import torch
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.zeros(1 << 30)

out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(begin, 30):
    if step == 15 and not begin:
        if rank == size - 1:
            {"group": group, "own group": own_group, "child": child, "address space": address_space}[options.meet]()
        time.sleep(600)
    if rank:
        continue
    os.write(out, (json.dumps({"step": step, "time": time.time(), "loss": 1 / (step + 1)}) + "\\n").encode())
    if (step + 1) % 10 == 0:
        with zipfile.ZipFile(folder / "new.tmp", "w") as archive:
            archive.writestr("step", str(step))
        (folder / "new.tmp").rename(folder / f"step_{step + 1:06d}.pt")
'''


def profile(machine: Machine, launcher: str) -> str:
    (machine.folder / "fills.py").write_text(SCRIPT)
    return machine.profile(
        "fills",
        f"""
        name: fills
        launcher: {launcher}
        script: fills.py
        python: {sys.executable}
        gpus: 0
        {"nproc: 2" if launcher == "torchrun" else ""}
        params: {{meet: none, num_workers: 4}}
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
        recovery: standard
        """,
    )


def make_limited_group() -> Path:
    """A control group of its own with LIMIT_BYTES of memory; skips where none can be made."""
    name = f"gputui-test-{uuid4().hex[:8]}"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        top = GROUPS if version == 2 else GROUPS / "memory"
        below = top / path.lstrip("/")
        # In version 2, only the root or a group without processes of its own may limit the memory of its children.
        for parent in (below, *(place for place in below.parents if place.is_relative_to(top))):
            group = parent / name
            try:
                if version == 2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                    continue
                group.mkdir()
                (group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(LIMIT_BYTES))
            except OSError:
                if group.is_dir():
                    group.rmdir()
                continue
            swap = group / ("memory.swap.max" if version == 2 else "memory.memsw.limit_in_bytes")
            if swap.exists():
                swap.write_text("0" if version == 2 else str(LIMIT_BYTES))
            return group
    pytest.skip("no control group with a limit of memory can be made here")


@pytest.fixture
def limited(machine: Machine) -> Iterator[Path]:
    """A control group in which everything that the machine starts from its agent on has LIMIT_BYTES of memory."""
    group = make_limited_group()
    with machine.start(
        "agent", "start", preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    ) as process:
        process.communicate(timeout=60)
    yield group
    machine.close()
    wait_until(lambda: not (group / "cgroup.procs").read_text().split(), what="the end of all processes in the group")
    group.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory_goes_on_with_fewer_workers(machine: Machine, limited: Path) -> None:
    machine.gputui("run", profile(machine, "torchrun"), "--set", "meet=group")
    machine.wait_for("fills-1", "succeeded", "failed")
    first, second = machine.json("show", "fills-1")["attempts"]
    assert (first["incident"]["kind"], first["incident"]["rank"]) == ("host_oom", 1)
    evidence = first["incident"]["evidence"]
    assert any(re.search(r"OOM killer.*\d+.*control group", line) for line in evidence), evidence
    assert any("rank 1" in line and "SIGKILL" in line for line in evidence), evidence
    assert [action["action"] for action in first["decision"]["actions"] if action["applied"]] == ["fewer_workers"]
    assert second["params"] == {"meet": "group", "num_workers": 2}
    assert second["resumed_from"].endswith("step_000010.pt")
    assert second["state"] == "succeeded"
    assert machine.steps("fills-1") == [(1, step) for step in range(15)] + [(2, step) for step in range(10, 30)]
