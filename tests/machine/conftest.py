"""Samplers for tests: with the fake driver library behind the real binding, or with simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.fakenvml.build import FakeNvml, NoCompilerError, build
from gputui.machine.sampler_client import SamplerClient, SamplerCommand
from tests.machine.nvml_remote import Remote
from tests.machine.watched import Watched

Start = Callable[..., Watched]


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libnvidia-ml.so.1."""
    try:
        return build(tmp_path_factory.mktemp("fakenvml"))
    except NoCompilerError as error:
        pytest.skip(f"the fake driver library cannot be built: {error}")


@pytest.fixture
def fake_nvml(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A driver to order; processes started from now on load it."""
    fake = FakeNvml(fake_library, tmp_path)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def remote(fake_nvml: FakeNvml) -> Iterator[Callable[..., Remote]]:
    """Starts a source of real GPUs, to be asked step by step, with the driver configured by the lines given."""
    started: list[Remote] = []

    def begin(*lines: str) -> Remote:
        fake_nvml.configure(lines)
        started.append(Remote(fake_nvml.environment(eager=True)))
        return started[-1]

    yield begin
    for process in started:
        process.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a sampler and watches it; all are closed at the end."""
    clients: list[SamplerClient] = []

    def begin(
        source: Literal["nvml", "simulated"] = "simulated", interval_seconds: float = 0.1, **options: Any
    ) -> Watched:
        command = SamplerCommand(source, tmp_path, interval_seconds, **options)
        client = SamplerClient(command, tmp_path / "sampler.log")
        clients.append(client)
        client.start()
        return Watched(client)

    yield begin
    for client in clients:
        client.close()
