"""A real Ray head of one node on loopback with two GPUs by name only, in a folder of its own. Ends what it starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from gputui.runs.executors.commands import UnreachableError
from gputui.runs.executors.ray.jobs_api import JobsApi
from tests.conftest import wait_until
from tests.runs.executors.slurm_cluster import free_ports

PROGRAM = Path(os.environ.get("GPUTUI_TEST_RAY") or Path(__file__).parents[3] / ".venv-ray" / "bin" / "ray")
"""Where .ci/run installs Ray, beside and not in the environment of gputui. Read here, since tests see no GPUTUI_…"""


class RayCluster:
    """``address`` and ``token_file`` are what a target of it needs."""

    def __init__(self, program: Path) -> None:
        self.program = program
        # A socket's name has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="gray-"))
        self.token_file = self.folder / "token"
        self.token_file.write_text("0123456789abcdef" * 4)
        self.token_file.chmod(0o600)
        self.ports = free_ports(6)
        self.address = f"http://127.0.0.1:{self.ports[1]}"
        self.head: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port",
                 "dashboard-agent-grpc-port", "metrics-export-port")  # fmt: skip
        environment = {
            **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120",
        }  # fmt: skip
        environment.pop("PYTHONPATH", None)
        with (self.folder / "head.out").open("wb") as output:
            self.head = subprocess.Popen(
                [str(self.program), "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=4",
                 "--num-gpus=2", "--dashboard-host=127.0.0.1", f"--temp-dir={self.folder}/t", "--disable-usage-stats",
                 f"--object-store-memory={100 << 20}",
                 *(f"--{name}={port}" for name, port in zip(names, self.ports, strict=True))],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        wait_until(self.takes_jobs, 120.0, "a head that takes jobs")

    def target(self, **options: object) -> dict[str, object]:
        return {"kind": "ray", "address": self.address, "token_file": str(self.token_file), "poll": 1, **options}

    def api(self) -> JobsApi:
        return JobsApi(self.target())

    def takes_jobs(self) -> bool:
        assert self.head is not None, (self.folder / "head.out").read_text()[-2000:]
        assert self.head.poll() is None, (self.folder / "head.out").read_text()[-2000:]
        try:
            done = self.api().submit({"entrypoint": "true", "submission_id": "first", "entrypoint_num_cpus": 0.0})
        except UnreachableError:
            return False
        return done.status == 200 or "already exists" in done.words

    def names(self) -> list[str]:
        """Every job that was ever submitted."""
        return [str(job["submission_id"]) for job in self.api().call("GET", "/api/jobs/").json(list)]

    def stop(self) -> None:
        if self.head is not None and self.head.poll() is None:
            children = psutil.Process(self.head.pid).children(recursive=True)
            self.head.send_signal(signal.SIGTERM)
            _, alive = psutil.wait_procs([psutil.Process(self.head.pid), *children], timeout=15)
            _kill(alive)
            self.head.wait()
        # Ray's processes leave the process tree; each of them has the cluster's folder on its command line.
        everyone = psutil.process_iter(["cmdline"])
        _kill(
            process for process in everyone if any(str(self.folder) in word for word in process.info["cmdline"] or ())
        )
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill(processes: Iterable[psutil.Process]) -> None:
    """Any of them may end by itself at the same time."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def program() -> Path:
    """The ray of an environment of its own; skips where there is none."""
    if not PROGRAM.is_file():
        pytest.skip('no Ray: python3 -m venv .venv-ray && .venv-ray/bin/pip install "ray[default]"')
    return PROGRAM
