"""From the death of a worker to the first step of the next attempt: one rank of a real DDP run is killed by SIGKILL.

python -m benchmarks.death [TIMES]
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from contextlib import closing
from importlib.util import find_spec
from typing import Any

from benchmarks.alone import alone
from benchmarks.scene import Scene, wait_until
from gputui.runs.identity import environment_of
from gputui.runs.processes import processes_of
from gputui.store.attempts import Attempt, read_attempts
from gputui.store.database import StoreMissingError, open_reader
from gputui.store.run_states import RunState
from gputui.store.runs import find_run

PROFILE = "digits-ddp"
RANK = "1"
TRAINED_STEPS = 30
"""The run has written checkpoints by then (one each ten steps)."""

START_SECONDS = 90.0
NEXT_SECONDS = 90.0


def measure(times: float = 1, *, seed: int = 1) -> dict[str, Any]:
    """Seconds from SIGKILL to the moment that the next attempt's first metrics line names, and what they were spent
    on; medians over the repetitions. Needs torch where gputui is installed; without it the figures are None."""
    if find_spec("torch") is None or find_spec("sklearn") is None:
        return {"seconds": None, "why_not": "torch or scikit-learn is not installed"}
    randomness = random.Random(seed)
    with Scene() as scene:
        scene.start_agent()
        deaths = [_once(scene, randomness) for _ in range(int(times))]
    return {
        "times": len(deaths),
        **{name: statistics.median(death[name] for death in deaths) for name in deaths[0]},
        "worst_seconds": max(death["seconds"] for death in deaths),
    }


def _once(scene: Scene, randomness: random.Random) -> dict[str, float]:
    run_id = json.loads(scene.call("run", PROFILE, "--set", "steps=5000", "--json"))["id"]
    try:
        wait_until(lambda: (_last_step(scene, run_id) or 0) >= TRAINED_STEPS, START_SECONDS, "training")
        # Not always at the same moment between two checkpoints.
        time.sleep(randomness.random())
        worker = next(
            process.identity.pid
            for process in processes_of(scene.workspace.run_dir(run_id))
            if (variables := environment_of(process.identity.pid) or {}).get("RANK") == RANK
            and "LOCAL_RANK" in variables
        )
        died_at = time.time()
        os.kill(worker, signal.SIGKILL)
        number = _attempts(scene, run_id)[-1].number + 1
        wait_until(lambda: _first_step_at(scene, run_id, number), NEXT_SECONDS, "the next attempt's first step")
        first, second = _attempts(scene, run_id)[-2:]
        first_step_at = _first_step_at(scene, run_id, number)
        assert first.ended_at is not None
        assert second.started_at is not None
        assert first_step_at is not None
        return {
            "seconds": first_step_at - died_at,
            "until_ended_seconds": first.ended_at - died_at,
            "until_started_seconds": second.started_at - first.ended_at,
            "until_first_step_seconds": first_step_at - second.started_at,
        }
    finally:
        scene.call("stop", run_id, "--now")
        wait_until(lambda: _state(scene, run_id).is_over, what="the run's end")


def _attempts(scene: Scene, run_id: str) -> list[Attempt]:
    with closing(open_reader(scene.workspace.database)) as connection:
        return sorted(read_attempts(connection, run_id), key=lambda attempt: attempt.number)


def _state(scene: Scene, run_id: str) -> RunState:
    with closing(open_reader(scene.workspace.database)) as connection:
        return find_run(connection, run_id).state


def _last_step(scene: Scene, run_id: str) -> int | None:
    try:
        return max((attempt.last_step or 0 for attempt in _attempts(scene, run_id)), default=None)
    except StoreMissingError:
        return None


def _first_step_at(scene: Scene, run_id: str, attempt: int) -> float | None:
    """The time that the training script gave its first step of this attempt."""
    with closing(open_reader(scene.workspace.database)) as connection:
        row = connection.execute(
            "SELECT min(at) FROM metrics JOIN metric_sources USING (source_id) "
            "WHERE run_id = ? AND attempt = ? AND json_extract(data, '$.loss') IS NOT NULL",
            (run_id, attempt),
        ).fetchone()[0]
    return None if row is None else float(row)


if __name__ == "__main__":
    alone(measure)
