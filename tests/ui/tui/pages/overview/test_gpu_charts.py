"""The charts of GPUs, as text."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from gputui.ui.tui.layout.strips import gpu_totals
from gputui.ui.tui.pages.overview.charts import GpuCharts
from gputui.ui.tui.pages.overview.gpus import gpu_panel
from gputui.ui.views.snapshot import Snapshot
from tests.ui.tui.screens import styles_of, text_of, widths


def test_each_gpu_has_a_chart_with_its_values_in_the_colours_of_its_curves(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    lines = charts.lines(snapshot, 200, 10)
    heading = text_of(lines)[0]
    assert widths(lines) == {200}
    assert len(lines) == 10
    assert heading.count("╭") == 9
    assert text_of(lines)[-1].count(" 10 min ") == 9
    gpu = snapshot.gpus[0]
    assert f"0 {gpu.utilization_percent:.0f}% 71G {gpu.temperature_celsius:.0f}° " in heading
    plot = [span for line in lines[1:-1] for span in line if "│" not in span[0]]
    assert styles_of(lines[0], "71G") <= {style for text, style in plot if text.strip()}
    assert "10 min" not in text_of(charts.lines(snapshot, 120, 7))[-1], "no room beside the frame"
    assert "°" not in text_of(charts.lines(snapshot, 140, 7))[0], "all charts or none"


def test_charts_are_in_rows_of_equally_many_and_those_without_room_are_left_out(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    two_rows = text_of(charts.lines(snapshot, 80, 8))
    assert [line.count("╭") for line in two_rows] == [4, 0, 0, 0, 4, 0, 0, 0]
    low = charts.lines(snapshot, 30, 4)
    assert widths(low) == {30}
    assert len(low) == 4
    assert "╭" not in "".join(text_of(low))
    assert [line.split()[0] for line in text_of(low)[::2]] == ["0", "2"]


def test_the_first_chart_is_of_all_gpus_where_it_takes_no_room_from_the_others(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    total = gpu_totals(snapshot.gpus)
    assert total.memory_used_bytes is not None
    heading = text_of(charts.lines(snapshot, 200, 10))[0]
    gigabytes = total.memory_used_bytes / 2**30
    assert f" all {total.utilization_percent:.0f}% {gigabytes:.0f}G {total.hottest_celsius:.0f}° " in heading
    assert " all " not in text_of(charts.lines(snapshot, 160, 10))[0], "the headings would be shorter"
    assert " all " not in text_of(charts.lines(snapshot, 140, 7))[0], "its heading has no room"
    assert " all " not in text_of(charts.lines(snapshot, 120, 7))[0]
    assert " all " not in text_of(charts.lines(replace(snapshot, gpus=snapshot.gpus[:1]), 200, 10))[0]


@pytest.mark.parametrize(("gigabytes", "style"), [(76, "memory.2"), (78, "warn")])
def test_full_memory_has_one_colour_in_table_and_chart(snapshot: Snapshot, gigabytes: int, style: str) -> None:
    used = gigabytes * 2**30
    gpus = tuple(replace(gpu, memory_used_bytes=used, memory_total_bytes=80 * 2**30) for gpu in snapshot.gpus)
    full = replace(snapshot, gpus=gpus)
    assert styles_of(gpu_panel(full, 120, 11)[2], f"{gigabytes}") == {style}
    assert styles_of(GpuCharts().lines(full, 120, 7)[0], f" {gigabytes}G") == {style}


def test_every_chart_has_a_heading_with_its_name(snapshot: Snapshot) -> None:
    gpu = snapshot.gpus[0]
    busy = replace(gpu, utilization_percent=100.0, memory_used_bytes=140.6 * 2**30, memory_total_bytes=141.0 * 2**30)
    for width, number, memory in itertools.product(range(100, 201), range(1, 17), (0.4, 140.6)):
        used = replace(busy, memory_used_bytes=memory * 2**30)
        gpus = tuple(replace(used, uuid=f"GPU-{index}", index=index) for index in range(number))
        lines = GpuCharts().lines(replace(snapshot, gpus=gpus, gpu_history={}), width, 14)
        assert widths(lines) == {width}
        headings = [part for line in text_of(lines) if "╭" in line for part in line.split("╭")[1:]]
        names = [heading.split()[0] for heading in headings]
        assert [name for name in names if name != "all"] == [str(index) for index in range(number)], (width, number)
        counts = {len(heading.rstrip("╮ ─").split()) for heading in headings}
        assert len(counts) == 1, "all have the same figures"


def test_curves_are_drawn_again_only_when_a_point_was_added(snapshot: Snapshot) -> None:
    charts = GpuCharts()
    now_idle = tuple(replace(gpu, utilization_percent=3.0) for gpu in snapshot.gpus)
    first = charts.lines(snapshot, 120, 7)
    later = charts.lines(replace(snapshot, gpus=now_idle), 120, 7)
    assert first[1:] == later[1:]
    assert " 3% " in text_of(later)[0]
    history = {
        uuid: replace(gpu_history, utilization_percent=(5.0,) * 60)
        for uuid, gpu_history in snapshot.gpu_history.items()
    }
    assert charts.lines(replace(snapshot, gpu_history=history), 120, 7)[1:] != first[1:]
