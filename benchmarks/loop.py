"""The agent's loop at its busiest: its longest turn, the gap between its heartbeats, what it costs
and how long it takes to start, with homes and runs of a size at which that could show.

python -m benchmarks.loop [NAME…] [--lines N] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.alone import end_tidily
from benchmarks.processes import CpuMeter, machine_load
from benchmarks.scene import Scene, wait_until
from gputui.runs import repository
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, stop_agent
from gputui.runs.command import Launch
from gputui.runs.repository import transaction
from gputui.runs.spec import MetricsSpec, RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store import commands, queue
from gputui.store.database import open_commander, open_reader, open_writer, used_space
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

LINES = 6_000_000
QUEUED_RUNS = 1000
LIVE_RUNS = 60
LINES_A_SECOND = 2.0
HISTORY_ENTRIES = 300_000

_TURN = re.compile(r"a turn took (\d+) ms \((\d+) ms of processor time\), (.*) \d+ ms of it")
_SPEC = RunSpec(
    name="long",
    launcher="command",
    program=("sleep", "infinity"),
    workdir="/",
    metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
)


# --- what is measured -------------------------------------------------------------------------------------------------


class AgentWatch:
    """The agent of a scene, watched from outside by its heartbeats."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._over = threading.Event()
        self._gaps: list[float] = []
        began = time.monotonic()
        self.agent = ensure_agent(scene.workspace, timeout_seconds=600.0).process.pid
        self.start_seconds = time.monotonic() - began
        self._meter = CpuMeter({"agent": [self.agent]})
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with closing(open_reader(self._scene.workspace.database)) as connection:
            last = None
            looked_at = time.monotonic()
            while not self._over.wait(0.05):
                at = connection.execute("SELECT heartbeat_at FROM agent").fetchone()[0]
                was_away = time.monotonic() - looked_at > 0.5
                looked_at = time.monotonic()
                # Where this process itself was away, it may have missed one.
                if last is not None and at != last and not was_away:
                    self._gaps.append(at - last)
                last = at

    def end(self) -> dict[str, Any]:
        """The measurements until now. Processor time and turns are of the agent's whole life."""
        percent = self._meter.percent()["agent"]
        threads = len(list(Path(f"/proc/{self.agent}/task").iterdir()))
        self._over.set()
        self._thread.join()
        stop_agent(self._scene.workspace)
        with closing(open_reader(self._scene.workspace.database)) as connection:
            turn = connection.execute("SELECT longest_turn_seconds, longest_turn_part FROM agent").fetchone()
        turns = [tuple(map(float, turn[:2])) for turn in _TURN.findall(self._scene.workspace.agent_log.read_text())]
        return {
            "start_seconds": self.start_seconds,
            "longest_turn_seconds": turn[0],
            "longest_turn_part": turn[1],
            # Of turns above 50 ms, as far as they were logged: what the loop itself did in the longest.
            "its_processor_seconds": max(turns)[1] / 1e3 if turns else None,
            "heartbeat_gap_seconds": max(self._gaps, default=None),
            "processor_percent": percent,
            "threads": threads,
        }


def ended(scene: Scene, lines: int, seconds: float) -> dict[str, Any]:
    """An attempt of so many lines ends while no agent looks."""
    with _store(scene) as connection:
        run_dir = add_run(connection, scene, "long-1")
        add_lines(connection, "long-1", lines)
        begin_attempt(connection, run_dir, "long-1")
    (run_dir / "attempts/1/exit.json").write_text(json.dumps({"code": 0, "signal": None, "ended_at": time.time()}))
    watch = AgentWatch(scene)
    began = time.monotonic()
    with closing(open_reader(scene.workspace.database)) as reader:
        wait_until(lambda: state_of(reader, "long-1") == "succeeded", 600.0, "the end")
    took = time.monotonic() - began
    time.sleep(seconds)
    return {"end_seconds": took, **watch.end()}


def unread(scene: Scene, lines: int, seconds: float) -> dict[str, Any]:
    """The same with a tenth of the lines in the metrics file, read by nobody yet."""
    with _store(scene) as connection:
        run_dir = add_run(connection, scene, "long-1")
        begin_attempt(connection, run_dir, "long-1")
    with (run_dir / "metrics.jsonl").open("w") as file:
        for step in range(lines // 10):
            file.write(f'{{"step": {step}, "time": {1.79e9 + step}, "loss": 0.5, "lr": 0.001}}\n')
    (run_dir / "attempts/1/exit.json").write_text(json.dumps({"code": 0, "signal": None, "ended_at": time.time()}))
    watch = AgentWatch(scene)
    began = time.monotonic()
    with closing(open_reader(scene.workspace.database)) as reader:
        wait_until(lambda: state_of(reader, "long-1") == "succeeded", 1200.0, "the end")
    took = time.monotonic() - began
    time.sleep(seconds)
    return {"end_seconds": took, **watch.end()}


def removed(scene: Scene, lines: int, seconds: float) -> dict[str, Any]:
    """A run of so many lines is removed; measured until its pages are given back."""
    with _store(scene) as connection:
        add_run(connection, scene, "long-1", RunState.STOPPED)
        add_lines(connection, "long-1", lines)
    before = scene.workspace.database.stat().st_size
    watch = AgentWatch(scene)
    began = time.monotonic()
    scene.call("rm", "long-1")
    answered = time.monotonic() - began
    with closing(open_reader(scene.workspace.database)) as reader:

        def is_gone() -> bool:
            return count(reader, "metric_sources") == 0

        wait_until(is_gone, 3600.0, "the end of its lines")
        gone = time.monotonic() - began

        def is_given_back() -> bool:
            file_bytes, used_bytes = used_space(reader)
            return file_bytes - used_bytes < max(8192 * 4096, file_bytes // 9)

        wait_until(is_given_back, 3600.0, "the end of its pages")
        given_back = time.monotonic() - began
    time.sleep(seconds)
    figures = {"answer_seconds": answered, "lines_gone_seconds": gone, "pages_back_seconds": given_back}
    return {"file_bytes_before": before, **figures, **watch.end()}


def queued(scene: Scene, _lines: int, seconds: float) -> dict[str, Any]:
    """A thousand runs wait in a paused queue."""
    with _store(scene) as connection:
        for number in range(QUEUED_RUNS):
            add_run(connection, scene, f"long-{number}")
        queue.set_pause(connection, actor="me", now=time.time())
    watch = AgentWatch(scene)
    time.sleep(seconds)
    return watch.end()


def live(scene: Scene, _lines: int, seconds: float) -> dict[str, Any]:
    """Sixty live runs whose metrics grow by two lines a second each."""
    # As many run at a time as the machine has cores, by their ranks.
    spec = replace(_SPEC, nproc=0)
    with _store(scene) as connection:
        for number in range(LIVE_RUNS):
            add_run(connection, scene, f"long-{number}", spec=spec)
    first = AgentWatch(scene)
    with closing(open_reader(scene.workspace.database)) as reader:
        wait_until(lambda: count(reader, "attempts", "state = 'running'") == LIVE_RUNS, 600.0, "all runs")
    begun = first.end()
    watch = AgentWatch(scene)
    files = [(scene.workspace.run_dir(f"long-{number}") / "metrics.jsonl").open("a") for number in range(LIVE_RUNS)]
    step = 0
    deadline = time.monotonic() + max(20.0, seconds)
    # The start of an agent that adopts them is not what is asked here.
    time.sleep(5.0)
    meter = CpuMeter({"agent": [watch.agent]})
    while time.monotonic() < deadline:
        for place, file in enumerate(files):
            file.write(f'{{"step": {step}, "time": {time.time()}, "loss": 0.5, "lr": 0.001}}\n')
            file.flush()
            time.sleep(1 / LINES_A_SECOND / LIVE_RUNS if place else 0.0)
        step += 1
    percent = meter.percent()["agent"]
    figures = watch.end() | {"processor_percent": percent}
    return {**figures, "turn_while_all_began_seconds": begun["longest_turn_seconds"]}


def history(scene: Scene, _lines: int, seconds: float) -> dict[str, Any]:
    """A Hugging Face history that grows beyond 300 000 entries."""
    spec = RunSpec(
        name="long",
        launcher="command",
        program=("sleep", "infinity"),
        workdir="/",
        metrics=(MetricsSpec("hf", "{run_dir}/checkpoint-*/trainer_state.json"),),
    )
    with _store(scene) as connection:
        run_dir = add_run(connection, scene, "long-1", spec=spec)
    watch = AgentWatch(scene)
    with closing(open_reader(scene.workspace.database)) as reader:
        wait_until(lambda: count(reader, "attempts", "state = 'running'") == 1, 60.0, "the run")
        began = time.monotonic()
        for more in range(3):
            entries = HISTORY_ENTRIES + more
            log = [{"step": step, "epoch": step / 1000, "loss": 0.5, "learning_rate": 1e-4} for step in range(entries)]
            folder = run_dir / f"checkpoint-{entries}"
            folder.mkdir()
            (folder / "new").write_text(json.dumps({"log_history": log, "global_step": entries}))
            (folder / "new").rename(folder / "trainer_state.json")
            wait_until(lambda: count(reader, "metrics") >= entries, 1200.0, "all entries")  # noqa: B023
            if not more:
                took = time.monotonic() - began
    time.sleep(seconds)
    return {"read_seconds": took, **watch.end()}


SCENES: Mapping[str, Callable[[Scene, int, float], dict[str, Any]]] = {
    "ended": ended,
    "unread": unread,
    "removed": removed,
    "queued": queued,
    "live": live,
    "history": history,
}


# --- homes ------------------------------------------------------------------------------------------------------------


@contextmanager
def _store(scene: Scene) -> Iterator[sqlite3.Connection]:
    """The store of a scene, to be filled; all of it is on the disk afterwards, as what was written in a month is."""
    path = scene.workspace.database
    with closing(open_writer(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def add_run(
    connection: sqlite3.Connection,
    scene: Scene,
    run_id: str,
    state: RunState = RunState.QUEUED,
    spec: RunSpec = _SPEC,
) -> Path:
    """A run with its folder and the place of its metrics; the folder."""
    folder = scene.workspace.run_dir(run_id)
    folder.mkdir(mode=0o700)
    write_spec(folder / SPEC_FILE, spec)
    sequence = count(connection, "runs") + 1
    with transaction(connection):
        repository.insert_run(
            connection,
            repository.NewRun(run_id=run_id, sequence=sequence, name="long", spec=spec, params={}),
            now=time.time(),
            actor="me",
        )
        run = get_run(connection, run_id)
        assert run is not None
        if state is not RunState.QUEUED:
            repository.move(connection, run, state, cause="benchmark", now=time.time())
        (metrics,) = spec.metrics
        connection.execute(
            "INSERT INTO metric_sources (run_id, path, format) VALUES (?, ?, ?)",
            (run_id, str(metrics.path).replace("{run_dir}", str(folder)), metrics.kind),
        )
    return folder


def add_lines(connection: sqlite3.Connection, run_id: str, lines: int) -> None:
    """So many stored lines of attempt 1, about 220 bytes each in the database."""
    for first in range(0, lines, 200_000):
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2) "
            "INSERT INTO metrics (source_id, generation, byte_offset, attempt, step, at, data) "
            "SELECT (SELECT source_id FROM metric_sources WHERE run_id = ?3), 0, i * 180, 1, i, 1.79e9 + i, "
            """printf('{"step": %d, "time": %d, "loss": 0.%d, "lr": 0.001, "gradient_norm": 1.%d, "tokens": %d, """
            """"samples_per_second": 812.5, "epoch": 0.5}', i, 1790000000 + i, i, i, i * 4096) FROM n""",
            (first, min(lines, first + 200_000), run_id),
        )


def begin_attempt(connection: sqlite3.Connection, run_dir: Path, run_id: str) -> None:
    """An attempt that an agent began which is no more."""
    folder = run_dir / "attempts/1"
    folder.mkdir(parents=True)
    now = time.time()
    (folder / "started.json").write_text(json.dumps({"at": now}))
    with transaction(connection):
        run = get_run(connection, run_id)
        assert run is not None
        launch = Launch(_SPEC.program, {}, "/", 30.0)
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=launch, now=now)
        repository.move(connection, run, RunState.STARTING, cause="benchmark", now=now)
        connection.execute(
            "INSERT INTO metric_boundaries (source_id, generation, byte_offset, attempt) "
            "SELECT source_id, 0, 0, 1 FROM metric_sources WHERE run_id = ?",
            (run_id,),
        )


def state_of(connection: sqlite3.Connection, run_id: str) -> str:
    return str(connection.execute("SELECT state FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0])


def count(connection: sqlite3.Connection, table: str, condition: str = "1") -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()[0])


@contextmanager
def quiet_scene() -> Iterator[Scene]:
    """A scene whose runs are ended with it."""
    with Scene() as scene:
        try:
            yield scene
        finally:
            if scene.workspace.database.exists():
                _end_runs(scene)


def _end_runs(scene: Scene) -> None:
    with closing(open_reader(scene.workspace.database)) as reader:
        # Those that wait first: they would begin in the place of others.
        states = [str(state) for state in RunState if not state.is_over]
        marks = ", ".join("?" * len(states))
        active = [
            row[0]
            for row in reader.execute(
                f"SELECT run_id FROM runs WHERE state IN ({marks}) ORDER BY state = 'queued' DESC", states
            )
        ]
    if active:
        ensure_agent(scene.workspace)
        with closing(open_commander(scene.workspace.database)) as connection:
            for run_id in active:
                commands.submit(connection, "stop", run_id, {"now": True}, "me", now=time.time())
            wait_until(lambda: not count(connection, "attempts", "ended_at IS NULL"), 300.0, "the end of all runs")


def measure(
    names: tuple[str, ...] = tuple(SCENES), *, lines: int = LINES, seconds: float = 20.0
) -> dict[str, dict[str, Any]]:
    """Each scene in a home of its own; ``seconds`` is how long the agent is watched after what was waited for."""
    results = {}
    for name in names:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        with quiet_scene() as scene:
            results[name] = {**SCENES[name](scene, lines, seconds), "load": machine_load()}
            print(json.dumps({name: results[name]}), file=sys.stderr, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(SCENES)}; else all")
    parser.add_argument("--lines", type=int, default=LINES, help=f"lines of a long run (default {LINES})")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is watched after its end")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in SCENES]:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(SCENES)}")
    end_tidily()
    try:
        results = measure(tuple(args.names or SCENES), lines=args.lines, seconds=args.seconds)
    except (AgentUnreachableError, TimeoutError) as error:
        sys.exit(f"benchmark: {error}")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
