"""A loss that is no number ends the attempt under every usual name, from every source; one under another name once a
person has named it."""

from __future__ import annotations

import sys

from tests.conftest import wait_until
from tests.machines import Machine

# In its first attempt the loss is NaN from step 10 on, and the script then waits.
SCRIPT = """
import json, os, sys, time
name, source, until = sys.argv[1:]
if source == "tensorboard":
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer = EventFileWriter(os.environ["GPUTUI_RUN_DIR"] + "/tb", flush_secs=1)
for step in range(60):
    is_bad = step >= 10 and os.environ["GPUTUI_ATTEMPT"] == "1"
    loss = float("nan") if is_bad else 1 / (step + 1)
    if source == "tensorboard":
        summary = Summary(value=[Summary.Value(tag=name, simple_value=loss)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()
    else:
        with open(os.environ["GPUTUI_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, name: loss, "accuracy": 0.5}) + "\\n")
if os.environ["GPUTUI_ATTEMPT"] == "1":
    time.sleep(float(until))
"""
PROFILE = f"""
name: NAME
script: bad.py
launcher: python
python: {sys.executable}
gpus: 0
params: {{loss: SPELLING, source: SOURCE, until: 600}}
args: "'{{loss}}' {{source}} {{until}}"
metrics: METRICS
recovery: {{backoff: {{base: 0, jitter: 0}}}}
"""
FILE = '{source: jsonl, path: "{run_dir}/metrics.jsonl"}'
EVENTS = '{source: tensorboard, path: "{run_dir}/tb"}'


def start(machine: Machine, name: str, spelling: str, source: str = "jsonl", metrics: str = FILE) -> str:
    (machine.folder / "bad.py").write_text(SCRIPT)
    replacements = {"NAME": name, "SPELLING": spelling, "SOURCE": source, "METRICS": metrics}
    text = PROFILE
    for word, value in replacements.items():
        text = text.replace(word, value)
    machine.gputui("run", machine.profile(name, text))
    return f"{name}-1"


def test_a_nan_loss_is_noticed_under_its_usual_names_and_its_given_one(machine: Machine) -> None:
    metrics = '{source: jsonl, path: "{run_dir}/metrics.jsonl", loss: critic/q}'
    runs = {
        start(machine, "slash", "train/loss"): "train/loss",
        start(machine, "line", "train_loss"): "train_loss",
        start(machine, "board", "Loss/train", "tensorboard", EVENTS): "Loss/train",
        start(machine, "given", "critic/q", metrics=metrics): "critic/q",
    }
    second_run = start(machine, "other", "critic/v")
    for run_id, name in runs.items():
        assert machine.wait_for(run_id, "succeeded", "failed") == "succeeded"
        first, second = machine.json("show", run_id)["attempts"]
        assert first["incident"]["kind"] == "nan_loss"
        assert name in first["incident"]["summary"]
        assert second["state"] == "succeeded"
    rows = {run["id"]: (run["loss_name"], run["loss"]) for run in machine.json("ps")}
    assert {run_id: rows[run_id] for run_id in runs} == {
        run_id: (name, rows[run_id][1]) for run_id, name in runs.items()
    }
    assert all(0 < rows[run_id][1] < 0.1 for run_id in runs)
    # A metric whose name is no loss: reported once. When a person names it, the watch of the living attempt uses it.
    assert rows[second_run] == (None, None)
    events = machine.rows("SELECT message FROM events WHERE run_id = ? AND kind = 'loss_unknown'", second_run)
    assert len(events) == 1
    assert "critic/v, accuracy" in events[0][0]
    machine.gputui("metrics", second_run, "--loss", "critic/v")
    assert machine.wait_for(second_run, "succeeded", "failed") == "succeeded"
    (first, _) = machine.json("show", second_run)["attempts"]
    assert first["incident"]["kind"] == "nan_loss"
    wait_until(lambda: machine.json("show", second_run)["loss_name"] == "critic/v", what="its loss")
