"""Each benchmark once, as short as it goes: that it measures, not what."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import curves, death, ingest, latency, loop, moments, peers, record, record_sizes, start, tui
from benchmarks.watching import Spans

BRIEF = Spans(warm_seconds=1.5, idle_seconds=3.0, keys_seconds=1.2)
SMALL = ((80, 24),)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"),
]


def test_what_the_record_leaves() -> None:
    """An aim that is missed here is missed anywhere."""
    found = record_sizes.bytes_on_disk(2, 0.5)
    assert found["minute_bytes_per_gpu_day"] < found["raw_bytes_per_gpu_day"] < 70e6 / 8
    assert 0 < found["longest_turn_seconds"] < 1
    assert 0 < record_sizes.year_query(1)["year_query_one_gpu_seconds"] < 0.5


def test_record() -> None:
    found = record.measure(1.2, warm_seconds=0.5)
    assert 0 < found["cpu_percent"] < 100
    assert found["rss_bytes"] > found["rss_bytes_sampler"] > 5 << 20
    assert found["nvml_calls_by_function"]["nvmlDeviceGetUtilizationRates"] >= 5


def test_screen() -> None:
    load = tui.Load(history_runs=6, crowd=24, points=4000, keys=4, stall_seconds=0.5, gpu_counts=(1,), starts=1,
                    openings=1)  # fmt: skip
    all_found = tui.measure(spans=BRIEF, sizes=SMALL, load=load)
    for part in (all_found["80x24"], all_found["gpus_1"], all_found["crowd"]):
        assert 0 < part["key_to_paint"]["p50_seconds"] <= part["key_to_paint"]["p99_seconds"] < 5
    crowd = all_found["crowd"]
    assert 0.02 < crowd["first_frame_seconds"] < 20
    assert 0 < crowd["open_page"]["median_seconds"] < 10
    assert 0 < crowd["stalled"]["caught_up_seconds"] < 10
    assert crowd["live_page"]["idle"]["bytes_per_second"] > 0
    found = all_found["80x24"]
    assert found["idle"]["bytes_per_second"] > 0
    assert 0 < found["idle"]["cpu_percent_screen"] < found["idle"]["cpu_percent"]
    assert found["keys"]["cpu_percent"] > 0
    assert set(found["rss_bytes_by_process"]) == {"screen", "agent", "sampler"}


def test_start() -> None:
    found = start.measure(1, warm_seconds=0.5, sizes=SMALL)["80x24"]
    assert 0.02 < found["best_seconds"] <= found["median_seconds"] <= found["worst_seconds"]


def test_ingest() -> None:
    assert ingest.measure(lines=2000, rounds=1)["lines_per_second"] > 0


def test_curves() -> None:
    found = curves.measure(lines=6000)
    assert 0 < found["open_seconds"] < 30 and 0 < found["zoom_seconds"] < 30
    assert set(found["open_by_axis_seconds"]) == {"step", "time", "trained", "epoch"}
    assert 0 < found["envelope_percent"] < 100


def test_moments() -> None:
    found = moments.measure(lines=3000, seconds=400, rounds=3)
    assert 0 < found["overview_p50_seconds"] <= found["overview_p95_seconds"] < 30
    assert 0 < found["page_p50_seconds"] <= found["page_p95_seconds"] < 30


def test_latency() -> None:
    found = latency.measure(4)
    assert (found["stored_missing"], found["visible_missing"]) == (0, 0)
    assert 0 < found["stored_p50_seconds"] <= found["visible_p99_seconds"]


def test_death() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    found = death.measure(1)
    assert found["seconds"] > 0
    parts = ("until_ended_seconds", "until_started_seconds", "until_first_step_seconds")
    assert found["seconds"] == pytest.approx(sum(found[name] for name in parts))


def test_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvitop"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo nvitop 9.9 && exit\n'
        "echo 'GPU 0  90 %'\n"
        "while read -r key; do :; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("NVITOP", str(program))
    monkeypatch.setenv("NVTOP", str(tmp_path / "nothing"))
    found = peers.measure(spans=BRIEF, sizes=SMALL)
    assert found["nvtop"] is None
    assert found["nvitop"]["version"] == "9.9"
    assert 0 < found["nvitop"]["80x24"]["first_frame_seconds"] < 10
    assert found["nvitop"]["80x24"]["idle"]["nvml_calls_per_second"] == 0


def test_the_loop() -> None:
    found = loop.measure(("ended", "unread", "removed", "migrated"), lines=20_000, seconds=1.5)
    for one in found.values():
        assert 0 < one["start_seconds"] < 60
        assert 0 < one["longest_turn_seconds"] < 10 and one["longest_turn_part"]
        assert 0 < one["processor_percent"] < 200
    assert 0 < found["removed"]["answer_seconds"] <= found["removed"]["lines_gone_seconds"]
