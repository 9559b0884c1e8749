"""What ``gputui gpus --json`` says beyond the samples: the pace of the rank, XIDs, quarantine, links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.core.config import locate
from gputui.store.hardware import quarantined, read_gpus
from gputui.ui.cli.gpus import shapes
from tests.ui.tui.filling import NOW, Filler


@pytest.fixture
def filler(tmp_path: Path) -> Filler:
    return Filler(locate(tmp_path))


def test_gpus_tell_how_their_rank_does(filler: Filler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.ui.cli.gpus.time.time", lambda: NOW)
    filler.overnight()
    filler.quarantine(4, "XID 48: double bit ECC error")
    filler.xid(4, 48, "double bit ECC error")
    connection = filler.connection
    found = shapes(connection, read_gpus(connection, NOW), quarantined(connection))
    filler.close()
    slow = found[2]
    assert slow["rank"] == 2 and slow["run_name"] == "gpt2-124m"
    assert slow["step_seconds"] == pytest.approx(0.45) and slow["data_wait_fraction"] == pytest.approx(0.12 / 0.45)
    assert (slow["pcie_generation"], slow["pcie_width"], slow["memory_utilization_percent"]) == (5, 16, 6.0)
    free = found[4]
    assert free["step_seconds"] is None and free["xids_last_day"] == 1 and free["quarantine"]["attempt"] == 2
    assert free["last_event"] == {"at": "2026-11-21T03:11:04.000Z", "code": 48, "text": "double bit ECC error"}
    json.dumps(found, allow_nan=False)
