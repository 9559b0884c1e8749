from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.trainer.instructions import CHATS, CONTEXT, write_tokenizer
from tests.trainer.ranks import Ranks
from trainer.preparing import PreparationPlan, prepare

HERE = Path(__file__).parent
# The project's limit is shorter than ranks may take to start on a crowded machine. Ranks that hang end earlier.
TIMEOUT_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, on the CPU, without a launcher's environment; torch's global switches come back."""
    for name in (
        "RANK",
        "WORLD_SIZE",
        "TORCHELASTIC_ERROR_FILE",
        "GPUTUI_RUN_DIR",
        "GPUTUI_METRICS",
        "GPUTUI_CHECKPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty directory."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two gloo ranks, shared by all tests of the session."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four gloo ranks, shared by all tests of the session."""
    with Ranks(4) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's conversations as token files."""
    place = tmp_path_factory.mktemp("chats")
    prepare(PreparationPlan((CHATS,), write_tokenizer(place / "in"), CONTEXT), place / "out", processes=1)
    return place / "out"
