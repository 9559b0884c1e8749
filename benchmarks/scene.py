"""The scene of all measurements: a machine with eight faked GPUs, two processes on each, and a fresh home.

NVML is faked below every program by a libnvidia-ml.so.1 of the same answers (benchmarks/fakenvml), so that gputui,
nvitop and nvtop run as they are and see the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from benchmarks import history
from benchmarks.fakenvml.build import FakeNvml, build
from gputui.core.config import Workspace, locate
from gputui.runs.agent_process import AgentUnreachableError, read_identity, stop_agent
from gputui.store.database import open_reader

GPUS = 8
PROCESSES_EACH = 2
PROCESS_MIB = 36_000
PROCESS_SM_PERCENT = 45
_WARM_SECONDS = 20.0
_LIBRARIES = Path(tempfile.gettempdir()) / f"gputui-benchmarks-{os.getuid()}"


class Scene:
    """Everything that a measurement needs; ``with`` ends whatever was started in it."""

    def __init__(self, gpus: int = GPUS, processes: int = GPUS * PROCESSES_EACH) -> None:
        """``processes`` are shared out among the GPUs."""
        _LIBRARIES.mkdir(mode=0o700, exist_ok=True)
        library = build(_LIBRARIES)
        self.folder = Path(tempfile.mkdtemp(prefix="gputui-bench-"))
        self.workspace: Workspace = locate(self.folder / "home", {})
        self.workspace.create()
        self._workers = [_worker(number) for number in range(processes)]
        self.nvml = FakeNvml(library, self.folder / "nvml")
        self.nvml.configure(
            [
                f"gpus {gpus}",
                *(
                    f"process {number * gpus // processes} {worker.pid} {PROCESS_MIB} C {PROCESS_SM_PERCENT}"
                    for number, worker in enumerate(self._workers)
                ),
            ]
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every program measured; nothing of the caller's own terminal or runs is in it."""
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "VIRTUAL_ENV") if name in os.environ}
        runtime = self.folder / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        return {**environ, **self.nvml.environment(), "XDG_RUNTIME_DIR": str(runtime), "LANG": "C.UTF-8", "TZ": "UTC"}

    def gputui(self, *arguments: str) -> list[str]:
        """The command line of the installed gputui in this scene's home."""
        script = Path(sys.executable).with_name("gputui")
        command = [str(script)] if script.exists() else [sys.executable, "-m", "gputui"]
        return [*command, "--home", str(self.folder / "home"), *arguments]

    def call(self, *arguments: str, timeout_seconds: float = 60.0) -> str:
        """Run a gputui command to its end and return what it printed.

        Raises subprocess.CalledProcessError, subprocess.TimeoutExpired.
        """
        done = subprocess.run(
            self.gputui(*arguments),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=timeout_seconds,
        )
        return done.stdout

    def start_agent(self) -> int:
        """An agent in the background that samples, with a quarter of an hour of history; returns its PID."""
        self.call("agent", "start")
        identity = read_identity(self.workspace)
        assert identity is not None
        wait_until(self._has_samples, what="the first sample")
        history.fill(self.workspace)
        return identity.process.pid

    def nvml_calls(self, pids: list[int]) -> dict[str, int]:
        """Calls so far of these processes, by function."""
        total: dict[str, int] = {}
        for pid in pids:
            for name, count in self.nvml.calls(pid).items():
                total[name] = total.get(name, 0) + count
        return total

    def _has_samples(self) -> bool:
        with closing(open_reader(self.workspace.database)) as connection:
            counts = connection.execute(
                "SELECT (SELECT count(*) FROM gpu_samples), (SELECT count(*) FROM host_samples)"
            )
            return all(counts.fetchone())

    def close(self) -> None:
        with suppress(AgentUnreachableError):
            stop_agent(self.workspace)
        for worker in self._workers:
            worker.kill()
            worker.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _worker(number: int) -> subprocess.Popen[bytes]:
    """A process that only exists, with the kind of command line that training has."""
    script = f"exec -a 'python train.py --rank {number} --config configs/gpt2-124m.yaml' sleep infinity"
    return subprocess.Popen(["bash", "-c", script], start_new_session=True)


def wait_until(look: Callable[[], object], timeout_seconds: float = _WARM_SECONDS, what: str = "it") -> None:
    """Wait until ``look()`` is true.

    Raises TimeoutError.
    """
    deadline = time.monotonic() + timeout_seconds
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_seconds:.0f} s")
        time.sleep(0.02)


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder with a runtime directory; nothing of the caller's homes and runs is in the environment."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    environ = dict(os.environ)
    for name in environ:
        if name.startswith(("GPUTUI_", "TORCHELASTIC_", "XDG_")):
            del os.environ[name]
    (folder / "runtime").mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "runtime")
    try:
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(environ)
        shutil.rmtree(folder, ignore_errors=True)
