"""The head of the screen, and the host, as text."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.store.rollups import HostHistory
from gputui.ui.tui.layout.strips import head_line, host_figures
from gputui.ui.views.snapshot import Snapshot
from tests.homes import NOW
from tests.ui.tui.screens import text_of


def test_head_and_host(snapshot: Snapshot) -> None:
    heads = {
        width: text_of([head_line(snapshot, width, "ws-kepler", demo=False, readonly=False)])[0] for width in (80, 120)
    }
    assert heads[80].startswith(" gputui  ws-kepler · 8 × H100 80GB · CUDA 13.0")
    assert "1 queued  2 running  03:12:44" in heads[80]
    assert " · driver 580.95.05 · CUDA 13.0" in heads[120]
    assert "simulated" in text_of([head_line(snapshot, 80, "x", demo=True, readonly=True)])[0]

    def host(snapshot: Snapshot, width: int) -> str:
        return "  ".join("".join(text for text, _ in figure) for figure in host_figures(snapshot, width))

    assert host(snapshot, 80).startswith("cpu 34%  ram 88/256 GiB  disk 71%  shm 4%  read 1.2GB/s")
    assert host(Snapshot(NOW), 80) == "no sample yet"
    busy = HostHistory((None, 0.0, 50.0, 100.0), (None, 0.0, 128.0 * 2**30, 256.0 * 2**30), *[(None,) * 4] * 4)
    assert "cpu 34% ▁▄▆  ram 88/256 GiB ▁▄▆" in host(replace(snapshot, host_history=busy), 160)


def test_models_are_short_and_counted(snapshot: Snapshot) -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "H100 80GB", "NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB", "Tesla V100-PCIE-16GB":
        "V100-PCIE-16GB", "NVIDIA GeForce RTX 4090": "RTX 4090", "NVIDIA H100 80GB HBM3 (simulated)": "H100 80GB",
    }  # fmt: skip
    for name, short in names.items():
        gpus = tuple(replace(gpu, name=name) for gpu in snapshot.gpus[:2])
        [head] = text_of([head_line(replace(snapshot, gpus=gpus), 120, "x", demo=False, readonly=False)])
        assert f" 2 × {short} · " in head
