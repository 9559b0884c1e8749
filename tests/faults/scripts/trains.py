"""Trains as plan.json of its run says, attempt by attempt: a step of nothing each, and a folder every ten. No PyTorch.

A plan has ``to``, the last step; ``end``: fail, kill; ``cut``: the checkpoint that is cut short; ``nan_from``: the step
from which the loss is no number; ``until``: it goes on until it is ended; ``slots``: the newest checkpoint is
checkpoint-0, and the others move up by one before each save; ``rotate``: the step at which they do and it is killed;
``seconds`` per step.
"""

import json
import os
import pathlib
import shutil
import signal
import sys
import time
import zipfile

folder = pathlib.Path(sys.argv[1])
base = sys.argv[2] if len(sys.argv) > 2 else ""
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
number = int(os.environ["GPUTUI_ATTEMPT"])
plans = json.loads((pathlib.Path(__file__).parent / f"{run_dir.name}.json").read_text())
plan = plans[min(number, len(plans)) - 1]
state = json.loads((pathlib.Path(base) / "trainer_state.json").read_text()) if base else {"step": 0, "attempts": []}
attempts = [*state["attempts"], number]
if base:
    (run_dir / "loaded").touch()
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def rotate() -> None:
    for slot in (1, 0):
        if (source := folder / f"checkpoint-{slot}").exists():
            shutil.rmtree(folder / f"checkpoint-{slot + 1}", ignore_errors=True)
            source.rename(folder / f"checkpoint-{slot + 1}")


def save(step: int) -> None:
    target = folder / f"checkpoint-{step}"
    if "slots" in plan:
        target = folder / "checkpoint-0"
        rotate()
        if step == plan.get("rotate"):
            os.kill(os.getpid(), signal.SIGKILL)
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target / "model.pt", "w") as archive:
        archive.writestr("weights", "w" * 1000)
    if step != plan.get("cut"):
        (target / "trainer_state.json").write_text(json.dumps({"step": step, "attempts": attempts}))


for step in range(state["step"] + 1, plan["to"] + 1):
    time.sleep(plan.get("seconds", 0.02))
    loss = float("nan") if step >= plan.get("nan_from", 1 << 60) else 1 / step
    os.write(out, (json.dumps({"step": step, "time": time.time(), "loss": loss}) + "\n").encode())
    if step % 10 == 0:
        save(step)
(run_dir / "result.json").write_text(json.dumps(attempts))
if plan.get("end") == "fail":
    raise RuntimeError("the dog ate the gradients")
if plan.get("end") == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
