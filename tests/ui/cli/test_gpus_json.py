"""What ``gputui gpus --json`` says beyond the samples (the pace of the rank, XIDs, quarantine, links), and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.core.config import locate
from gputui.store.agent import read_agent
from gputui.store.hardware import quarantined, read_gpus
from gputui.ui.cli.gpus import has_samples, shapes
from tests.tables import table
from tests.ui.tui.filling import NOW, Filler


@pytest.fixture
def filler(tmp_path: Path) -> Iterator[Filler]:
    filler = Filler(locate(tmp_path))
    filler.overnight()
    yield filler
    filler.close()


def test_gpus_tell_how_their_rank_does(filler: Filler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.ui.cli.gpus.time.time", lambda: NOW)
    filler.quarantine(4, "XID 48: double bit ECC error")
    filler.xid(4, 48, "double bit ECC error")
    connection = filler.connection
    found = shapes(connection, read_gpus(connection, NOW), quarantined(connection))
    slow = found[2]
    assert slow["rank"] == 2 and slow["run_name"] == "gpt2-124m"
    assert slow["step_seconds"] == pytest.approx(0.45) and slow["data_wait_fraction"] == pytest.approx(0.12 / 0.45)
    assert (slow["pcie_generation"], slow["pcie_width"], slow["memory_utilization_percent"]) == (5, 16, 6.0)
    free = found[4]
    assert free["step_seconds"] is None and free["xids_last_day"] == 1 and free["quarantine"]["attempt"] == 2
    assert free["last_event"] == {"at": "2026-11-21T03:11:04.000Z", "code": 48, "text": "double bit ECC error"}
    json.dumps(found, allow_nan=False)


@table(
    ("state", "source", "started_before", "expected"),
    [
        ("ok", "nvml", 0.0, True),
        ("ok", "nvml", 3600.0, True),
        ("ok", "nvml", -3600.0, False),  # its samples are those of the agent before
        ("starting", "nvml", -3600.0, False),
        ("dead", "nvml", -3600.0, True),  # there will be none
        ("starting", None, 3600.0, False),
    ],
)
def test_samples_of_an_earlier_agent_do_not_count(
    filler: Filler, state: str, source: str | None, started_before: float, expected: bool
) -> None:
    connection = filler.connection
    gpus = read_gpus(connection, NOW)
    newest = max(gpu.at for gpu in gpus if gpu.at is not None)
    connection.execute(
        "UPDATE agent SET sampler_state = ?, source = ?, started_at = ?", (state, source, newest - started_before)
    )
    assert has_samples(read_agent(connection), gpus) is expected
