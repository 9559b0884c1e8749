"""From a line in a metrics file to its value in the store and on the run's page, while that page is open.

python -m benchmarks.latency [LINES]
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any

from benchmarks.alone import alone
from benchmarks.liverun import LiveRun
from benchmarks.percentiles import percentile
from benchmarks.processes import CpuMeter, family
from benchmarks.scene import Scene
from benchmarks.terminal import Terminal
from gputui.store.database import open_reader

COLUMNS = 200
ROWS = 50
MEAN_PAUSE_SECONDS = 0.3
LONGEST_PAUSE_SECONDS = 1.5
LOOK_SECONDS = 0.004
EARLIER_LINES = 30
ENTER = b"\r"


def measure(lines: float = 150, *, seed: int = 1) -> dict[str, Any]:
    """Lines come at random moments, independent of each other (exponential pauses). A line counts as visible when the
    page shows its loss or that of a later line."""
    count = int(lines)
    randomness = random.Random(seed)
    losses = randomness.sample(range(1001, 9999), count + EARLIER_LINES)
    with Scene() as scene:
        agent = scene.start_agent()
        with (
            LiveRun(scene) as run,
            Terminal(scene.gputui(), columns=COLUMNS, rows=ROWS, environment=scene.environment) as terminal,
        ):
            run.write([_values(loss) for loss in losses[count:]])
            terminal.wait(lambda screen: any(run.run_id in line for line in screen), 10)
            terminal.press(ENTER)
            terminal.wait(lambda screen: _shown_loss(screen) is not None, 10)
            time.sleep(3)
            store = _StoreWatcher(scene, run.run_id)
            meter = CpuMeter({"screen": family([terminal.pid]), "agent and sampler": family([agent])})
            bytes_before = terminal.bytes_written
            began_at = time.monotonic()
            written: dict[str, tuple[int, float]] = {}
            for loss in losses[:count]:
                time.sleep(min(LONGEST_PAUSE_SECONDS, randomness.expovariate(1 / MEAN_PAUSE_SECONDS)))
                at = run.write([_values(loss)])
                written[_text(loss)] = (run.step, at)
            elapsed = time.monotonic() - began_at
            shares = meter.percent()
            bytes_per_second = (terminal.bytes_written - bytes_before) / elapsed
            time.sleep(1.0)
            stored = store.end()
            visible = _appearances(terminal, {text: step for text, (step, _) in written.items()})
    moments = dict(written.values())
    return {
        "lines": count,
        "lines_per_second": count / elapsed,
        **_latencies("visible", moments, visible),
        **_latencies("stored", moments, stored),
        "page_cpu_percent": shares["sum"],
        "page_cpu_percent_screen": shares["screen"],
        "page_bytes_per_second": bytes_per_second,
    }


class _StoreWatcher:
    """A reader that looks every few milliseconds for the newest step of a run."""

    def __init__(self, scene: Scene, run_id: str) -> None:
        self._path = scene.workspace.database
        self._run_id = run_id
        self._seen: list[tuple[float, int]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="store watcher", daemon=True)
        self._thread.start()

    def end(self) -> list[tuple[float, int]]:
        """(monotonic time, newest step) whenever there was a newer one."""
        self._end.set()
        self._thread.join()
        return self._seen

    def _watch(self) -> None:
        version = -1
        newest = -1
        with closing(open_reader(self._path)) as connection:
            while not self._end.wait(LOOK_SECONDS):
                newest_version = connection.execute("PRAGMA data_version").fetchone()[0]
                if newest_version == version:
                    continue
                version = newest_version
                step = self._newest(connection)
                if step is not None and step > newest:
                    newest = step
                    self._seen.append((time.monotonic(), step))

    def _newest(self, connection: sqlite3.Connection) -> int | None:
        row = connection.execute(
            "SELECT max(step) FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ?", (self._run_id,)
        ).fetchone()[0]
        return None if row is None else int(row)


def _values(loss: int) -> dict[str, float]:
    return {"loss": loss / 1000, "lr": 1e-3, "grad_norm": loss / 5000, "samples_per_s": 400.0 + loss / 100}


def _text(loss: int) -> str:
    """The loss as the page shows it, with four digits."""
    return f"{loss / 1000:.3f}"


def _shown_loss(lines: list[str]) -> str | None:
    """The newest loss, as the head of the page tells it."""
    fields = lines[0].split() if lines else []
    return fields[fields.index("loss") + 1] if "loss" in fields[:-1] else None


def _appearances(terminal: Terminal, steps: dict[str, int]) -> list[tuple[float, int]]:
    """(monotonic time, step) whenever the page began to show a later line."""
    appearances: list[tuple[float, int]] = []
    newest = -1

    def is_later(lines: list[str]) -> bool:
        return steps.get(_shown_loss(lines) or "", -1) > newest

    while (at := terminal.when(is_later)) is not None:
        newest = steps[_shown_loss(terminal.shown) or ""]
        appearances.append((at, newest))
    return appearances


def _latencies(name: str, written: dict[int, float], appearances: list[tuple[float, int]]) -> dict[str, float | int]:
    """Percentiles over the lines; ``missing`` counts those that never came."""
    latencies = []
    missing = 0
    place = 0
    for step, at in sorted(written.items()):
        while place < len(appearances) and appearances[place][1] < step:
            place += 1
        if place == len(appearances):
            missing += 1
        else:
            latencies.append(appearances[place][0] - at)
    return {
        f"{name}_p50_seconds": percentile(latencies, 50),
        f"{name}_p99_seconds": percentile(latencies, 99),
        f"{name}_worst_seconds": max(latencies),
        f"{name}_missing": missing,
    }


if __name__ == "__main__":
    alone(measure)
