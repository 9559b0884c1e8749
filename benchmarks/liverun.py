"""A run that trains nothing: its metrics lines are written by the measurement, at moments that it knows."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType

from benchmarks.scene import Scene, wait_until
from gputui.store.database import StoreMissingError, open_reader
from gputui.store.run_states import RunState
from gputui.store.runs import RunLookupError, find_run

# Says that it is there, then waits for the end.
_SCRIPT = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print("waiting", flush=True)
while True:
    signal.pause()
"""


class LiveRun:
    """A run of one process in a scene, and the file that its metrics are read from."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        folder = scene.folder
        (folder / "wait.py").write_text(_SCRIPT)
        profile = folder / "waiting.yaml"
        profile.write_text(
            textwrap.dedent(f"""
            name: waiting
            launcher: python
            script: wait.py
            python: {sys.executable}
            gpus: 0
            metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
            """)
        )
        self.run_id: str = json.loads(scene.call("run", str(profile), "--json"))["id"]
        run_dir: Path = scene.workspace.run_dir(self.run_id)
        self._metrics = os.open(run_dir / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._step = 0
        # A run counts as running once its first step was seen.
        self.write([{"loss": 1.0}])
        wait_until(lambda: self._state() == "running", what="the run")

    def write(self, lines: Sequence[dict[str, float]]) -> float:
        """Append lines, each the next step of rank 0, in one write; when that was (monotonic)."""
        text = ""
        for values in lines:
            self._step += 1
            text += json.dumps({"step": self._step, "time": time.time(), "rank": 0, **values}) + "\n"
        at = time.monotonic()
        os.write(self._metrics, text.encode())
        return at

    @contextmanager
    def going_on(self, seconds_per_line: float) -> Iterator[None]:
        """A line every so often from a thread, as long as the context lasts."""
        end = threading.Event()

        def tell() -> None:
            while not end.wait(seconds_per_line):
                self.write([{"loss": 2.0 + 0.2 * math.sin(self._step * 12.9898)}])

        thread = threading.Thread(target=tell, name="metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    @property
    def step(self) -> int:
        """The newest step written."""
        return self._step

    def _state(self) -> RunState | None:
        try:
            with closing(open_reader(self._scene.workspace.database)) as connection:
                return find_run(connection, self.run_id).state
        except (StoreMissingError, RunLookupError):
            return None

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._metrics)
        self._scene.call("stop", self.run_id, "--now")
        wait_until(lambda: (state := self._state()) is not None and state.is_over, what="the run's end")
