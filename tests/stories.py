"""What happened in a home, as screens and queries show it: a bad night, a search, a curve of a run that goes well."""

from __future__ import annotations

import json
import math
import random
from typing import Any

from gputui.store.studies import read_trials
from gputui.studies.importances import evaluate_importances
from gputui.studies.rows import set_importances
from gputui.studies.spec import Budget, Dimension, Objective, PrunerSpec, StudySpec
from tests.homes import GIB, Home, uuid


def many_gpus(home: Home, count: int) -> None:
    """So many busy GPUs, the first half of them one run's."""
    home.agent()
    home.gpus(count)
    history(home)
    home.host()
    half = tuple(range(max(1, count // 2)))
    home.run("llama-1", name="llama", gpus=half)
    home.attempt("llama-1", 1, gpus=half)
    curve(home, "llama-1", 1, 0, 3000, ranks=len(half), total_steps=9000)
    for index in range(count):
        home.sample(
            index, utilization=90 + index % 7, memory_gib=60 + index % 9, temperature=60 + index % 5,
            power=600 + index,
        )  # fmt: skip
        if index in half:
            rank_process(home, index, "llama-1", index)
    home.event("started", subject="llama-1", seconds_ago=9000)


def bad_night(home: Home) -> None:
    """Alerts of the overnight story: five that last, of which one is seen and one silenced, and three that are
    over."""
    home.alert("disk", "State disk 96 % full (limit 95 %)", seconds_ago=1500, value=96.0, threshold=95.0)
    home.alert(
        "xid_hardware",
        "GPU 7 reported XID 79: the GPU has fallen off the bus (power, cooling or PCIe); a reboot is needed",
        seconds_ago=633, subject="GPU 7", subject_id=uuid(7), run_id="vit-b16-1", acknowledged_by="me",
    )  # fmt: skip
    home.alert(
        "data_wait", "gpt2-124m-1: data wait 120 ms a step (limit 50 ms), 40 % of a step", seconds_ago=412,
        subject="gpt2-124m-1", subject_id="gpt2-124m-1", run_id="gpt2-124m-1",
    )  # fmt: skip
    home.alert(
        "gpu_hot", "GPU 3 at 88 °C (limit 82 °C); throttles at 87 °C", seconds_ago=95, subject="GPU 3",
        subject_id=uuid(3), run_id="gpt2-124m-1", value=88.0, threshold=82.0,
    )  # fmt: skip
    home.alert(
        "gpu_parked", "GPU 5 has 22.1 GiB held by alice · python sweep.py and computes nothing", seconds_ago=5400,
        subject="GPU 5", subject_id=uuid(5), silenced_for=3500, value=22.1, threshold=1.0,
    )  # fmt: skip
    home.alert("shm", "/dev/shm 93 % full (limit 90 %)", seconds_ago=9000, cleared_ago=8000, value=93.0, threshold=90.0)
    home.alert(
        "slow_steps", "vit-b16-1: step time 750 ms (limit 600 ms); it was about 300 ms before",
        seconds_ago=7000, cleared_ago=6500, subject="vit-b16-1", subject_id="vit-b16-1", run_id="vit-b16-1",
    )  # fmt: skip
    home.alert(
        "gradient_norm", "vit-b16-1: gradient norm 14 (limit 10)", seconds_ago=90_000,
        cleared_ago=89_000, subject="vit-b16-1", subject_id="vit-b16-1", run_id="vit-b16-1",
    )  # fmt: skip


def curve(
    home: Home,
    run_id: str,
    attempt: int,
    first: int,
    last: int,
    *,
    every: int = 10,
    ranks: int = 1,
    slow_rank: int | None = None,
    seconds_per_step: float = 0.3,
    total_steps: int | None = None,
    end: float | None = None,
) -> None:
    """A training that goes well: loss falls, each rank tells its step time."""
    finish = home.now if end is None else end
    lines: list[dict[str, Any]] = []
    begin = finish - (last - first) * seconds_per_step
    start: dict[str, Any] = {"step": first, "time": begin, "rank": 0, "event": "start"}
    if total_steps is not None:
        start["total_steps"] = total_steps
    lines.append(start)
    for step in range(first, last + 1, every):
        at = finish - (last - step) * seconds_per_step
        noise = home.random.uniform(-0.05, 0.05)
        for rank in range(ranks):
            slow = rank == slow_rank
            line: dict[str, Any] = {
                "step": step, "time": at, "rank": rank, "step_time": seconds_per_step * (1.5 if slow else 1.0),
                "data_time": seconds_per_step * (0.4 if slow else 0.02),
                "samples_per_s": 3021.0 + 20 * noise - (900 if slow else 0),
            }  # fmt: skip
            if rank == 0:
                loss = 1.9 + 6.0 * math.exp(-step / 900) + noise
                line |= {"loss": loss, "lr": 0.001 * min(1.0, step / 500 + 0.01), "grad_norm": 1.2 + noise * 4}
            lines.append(line)
    home.metrics(run_id, attempt, lines)


def search(
    home: Home,
    study_id: str = "lr-search-1",
    *,
    trials: int = 14,
    state: str = "running",
    reason: str | None = None,
    objectives: tuple[Objective, ...] = (Objective("val_loss"),),
    began_ago: float = 7200.0,
) -> None:
    """A search over three parameters with a pruner: the last two of its trials run, the others are over."""
    space = (
        Dimension("lr", "float", 1e-4, 0.1, log=True),
        Dimension("batch_size", "choice", choices=(64, 128, 256)),
        Dimension("optimizer", "choice", choices=("adamw", "muon")),
    )
    spec = StudySpec(
        name=study_id.rpartition("-")[0], profile="vit", space=space, objectives=objectives,
        pruner=PrunerSpec("hyperband", length=9000.0), budget=Budget(trials=40), gpus_per_trial=1,
    )  # fmt: skip
    home.sequence += 1
    began = home.now - began_ago
    home.connection.execute(
        "INSERT INTO studies (study_id, sequence, name, profile, state, reason, spec, source, created_at, "
        "ended_at) VALUES (?, ?, ?, 'vit', ?, ?, ?, '', ?, ?)",
        (
            study_id, home.sequence, spec.name, state, reason, json.dumps(spec.to_json()), began,
            home.now if state in ("finished", "failed", "stopped") else None,
        ),
    )  # fmt: skip
    ended = [] if state == "running" else [(study_id, home.now, "running", state, reason or "")]
    home.connection.executemany(
        "INSERT INTO study_moves (study_id, at, from_state, to_state, cause, actor) VALUES (?, ?, ?, ?, ?, 'me')",
        [(study_id, began, None, "running", "begun"), *ended],
    )
    draw = random.Random(5)
    for number in range(trials):
        params = {
            "lr": float(f"{10 ** draw.uniform(-4, -1):.3g}"),
            "batch_size": draw.choice((64, 128, 256)),
            "optimizer": draw.choice(("adamw", "muon")),
        }
        loss = 0.4 + (math.log10(params["lr"]) + 2.5) ** 2 / 2 + 0.1 * (params["optimizer"] == "adamw")
        verdict = "running" if number >= trials - 2 else "pruned" if loss > 0.9 else "complete"
        run_id = f"{study_id}-t{number}"
        began_at = began + number * 400.0
        took = 900.0
        is_over = verdict != "running"
        ended_ago = home.now - began_at - took if is_over else None
        home.run(
            run_id, {"running": "running", "pruned": "stopped", "complete": "succeeded"}[verdict], name="vit",
            launched=params, started_ago=home.now - began_at,
            ended_ago=ended_ago,
        )  # fmt: skip
        home.connection.execute(
            "UPDATE runs SET name = ?, study_id = ?, trial = ? WHERE run_id = ?",
            (run_id.rpartition("-")[0], study_id, number, run_id),
        )
        if is_over:
            ago = home.now - began_at
            home.attempt(run_id, 1, "succeeded", started_ago=ago, ended_ago=ago - took, code=0)
        else:
            home.attempt(run_id, 1, started_ago=home.now - began_at)
        rungs = {"running": 3, "pruned": 5, "complete": 27}[verdict]
        values = [loss, 3.0 + number / 10][: len(objectives)] if verdict == "complete" else [loss * 1.3]
        home.connection.execute(
            "INSERT INTO trials (study_id, number, run_id, state, origin, params, rung, value, objective_values, "
            "reason, starts, created_at, ended_at) VALUES (?, ?, ?, ?, 'sampled', ?, ?, ?, ?, ?, 1, ?, ?)",
            (
                study_id, number, run_id, verdict, json.dumps(params), rungs, values[0] if is_over else None,
                json.dumps(values) if is_over and len(objectives) > 1 else None,
                "pruned at rung 5: 7th of 9" if verdict == "pruned" else None, began_at,
                began_at + took if is_over else None,
            ),
        )  # fmt: skip
        home.connection.executemany(
            "INSERT INTO trial_rungs (study_id, number, rung, step, value, attempt, at) VALUES (?, ?, ?, ?, ?, 1, ?)",
            [
                (study_id, number, rung, rung * 333, loss + 2 * math.exp(-rung / 3), began_at + rung * 30)
                for rung in range(1, rungs + 1)
            ],
        )
    set_importances(home.connection, study_id, evaluate_importances(read_trials(home.connection, study_id), spec))


def history(home: Home, seconds: int = 600, every: int = 5) -> None:
    count = home.connection.execute("SELECT count(*) FROM gpus").fetchone()[0]
    home.connection.execute("BEGIN")
    for ago in range(seconds, 0, -every):
        for index in range(count):
            wave = 50 + 45 * math.sin(ago / 37 + index)
            home.sample(index, at=home.now - ago, utilization=round(wave), memory_gib=40.0, temperature=60.0)
        home.host(home.now - ago)
    home.connection.execute("COMMIT")


def overnight(home: Home) -> None:
    """Eight GPUs, two runs that train, one that waits, one that failed, a lost GPU, a stranger."""
    home.agent()
    home.gpus(8)
    history(home)
    home.host()
    home.run("gpt2-124m-1", name="gpt2-124m", gpus=(0, 1, 2, 3), params={"batch_size": 64, "lr": 0.0006})
    home.attempt("gpt2-124m-1", 1, gpus=(0, 1, 2, 3), last_step=4120)
    curve(home, "gpt2-124m-1", 1, 0, 4120, ranks=4, slow_rank=2, total_steps=6000)
    recovered_run(home)
    waiting = "waits for 2 GPUs, first in line"
    home.run("lr-sweep-3", "queued", name="lr-sweep", started_ago=None, waiting_for=waiting)
    home.run(
        "resnet50-2", "failed", name="resnet50", ended_ago=4000.0, started_ago=9000.0,
        reason="a Python exception on rank 0, three times at step 12: KeyError 'labels'",
    )  # fmt: skip
    home.attempt("resnet50-2", 1, "failed", started_ago=9000.0, ended_ago=4000.0, code=1, last_step=12)
    readings = [
        (97, 71.2, 64, 612), (96, 71.2, 66, 608), (12, 71.2, 58, 310), (95, 70.8, 88, 655),
        (0, 0.4, 34, 71), (0, 22.1, 36, 72), (88, 40.0, 61, 540), (0, 0.0, 40, 80),
    ]  # fmt: skip
    for index, (utilization, memory, temperature, power) in enumerate(readings):
        throttle = ("hardware thermal slowdown",) if index == 3 else ()
        at = home.now - 633 if index == 7 else None
        home.sample(
            index, at=at, utilization=utilization, memory_gib=memory, temperature=temperature, power=power,
            throttle=throttle,
        )  # fmt: skip
    for index in range(4):
        rank_process(home, index, "gpt2-124m-1", index)
    rank_process(home, 6, "vit-b16-1", 0)
    home.processes(
        5, {"pid": 777, "user": "alice", "command": "python sweep.py", "memory_bytes": 22 * GIB, "kind": "C"}
    )
    home.event("GPU 7 fell off the bus: left out, resumed at step 8000", subject="vit-b16-1", seconds_ago=633,
               severity="error")  # fmt: skip
    home.event("training again after 47 s, 110 steps redone", subject="vit-b16-1", seconds_ago=586)
    home.event("queued behind 1 run", subject="lr-sweep-3", seconds_ago=30)
    home.lose(7)


def recovered_run(home: Home) -> None:
    home.run(
        "vit-b16-1", name="vit-b16", gpus=(6,), attempt=3, started_ago=11_000.0,
        launched={"batch_size": 512, "grad_accum": 1, "lr": 0.001, "gradient_checkpointing": False},
        params={"batch_size": 384, "grad_accum": 2, "lr": 0.001, "gradient_checkpointing": False},
    )  # fmt: skip
    now = home.now
    home.attempt("vit-b16-1", 1, "failed", gpus=(6, 7), started_ago=11_000.0, ended_ago=5500.0, code=1, last_step=4310)
    curve(home, "vit-b16-1", 1, 0, 4310, every=30, ranks=2, total_steps=90_000, end=now - 5500)
    home.incident(
        "vit-b16-1", 1, "cuda_oom", "CUDA ran out of memory on rank 1 at step 4310", seconds_ago=5500, rank=1,
        step=4310, evidence=("error.json: torch.OutOfMemoryError: tried to allocate 2.00 GiB",),
        actions=("batch_size 512 → 384", "grad_accum 1 → 2"), params={"batch_size": 384, "grad_accum": 2},
        reason="batch_size 512 → 384 and grad_accum 1 → 2, the effective batch stays within 2 %",
    )  # fmt: skip
    home.attempt(
        "vit-b16-1", 2, "failed", gpus=(6, 7), started_ago=5450.0, ended_ago=633.0, signal=9, resumed_step=4000,
        last_step=8110,
    )  # fmt: skip
    curve(home, "vit-b16-1", 2, 4000, 8110, every=30, ranks=2, total_steps=90_000, end=now - 633)
    home.incident(
        "vit-b16-1", 2, "gpu_lost", "GPU 7 was lost (XID 79) at step 8110", seconds_ago=633, step=8110,
        evidence=("XID 79: GPU has fallen off the bus",), actions=("leave GPU 7 out", "2 → 1 ranks"),
        reason="left GPU 7 out and went on with one rank, for the other GPU is healthy",
    )  # fmt: skip
    home.attempt("vit-b16-1", 3, gpus=(6,), started_ago=586.0, resumed_step=8000, last_step=9440)
    curve(home, "vit-b16-1", 3, 8000, 9440, every=30, total_steps=90_000)


def rank_process(home: Home, index: int, run_id: str, rank: int) -> None:
    home.processes(
        index,
        {
            "pid": 1000 + index, "user": "me", "command": "python train.py", "memory_bytes": 40 * GIB, "kind": "C",
            "run_id": run_id, "rank": rank, "start_ticks": 5,
        },
    )  # fmt: skip


def tick(home: Home, seconds: float = 1.0) -> None:
    """One second of a busy machine later."""
    home.now += seconds
    connection = home.connection
    connection.execute("BEGIN")
    connection.execute("UPDATE agent SET heartbeat_at = ?", (home.now,))
    connection.execute("UPDATE gpus SET last_seen_at = ? WHERE present = 1", (home.now,))
    for index in (0, 1, 2, 3, 6):
        home.sample(
            index, utilization=home.random.randint(90, 99), memory_gib=71.2,
            temperature=60 + index + home.random.randint(0, 1), power=600 + home.random.randint(0, 20),
        )  # fmt: skip
    for index in (4, 5):
        memory_gib = 0.4 if index == 4 else 22.1
        home.sample(index, memory_gib=memory_gib)
    home.host()
    connection.execute("COMMIT")
