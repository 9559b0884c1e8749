"""The trainer's benchmarks: that they measure, what they compare, and what the table says of it."""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures
from benchmarks.trainer import __main__ as alone
from benchmarks.trainer import comparing, launch, line, models, parts, window
from benchmarks.trainer.comparing import Run, Workload
from benchmarks.trainer.rows import TRAINER_FIGURES
from benchmarks.trainer.window import Window

pytestmark = pytest.mark.timeout(900)

TINY = Workload(parts.TRIVIAL, batch_size=4, ranks=0, warm_steps=3, steps=9)


def run_of(seconds: float, *, loss: float = 2.0, gpu: int | None = None) -> Run:
    return Run(Window(10, seconds, seconds, 0.0, loss, gpu), rss_bytes=300_000_000)


# --- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_trainer_and_bare_loop_do_the_same_and_are_timed() -> None:
    pytest.importorskip("torch")
    began = time.monotonic()
    found = comparing.compare(TINY, pairs=1)  # raises where their losses differ
    elapsed = time.monotonic() - began
    assert found["loss"] == found["bare_loss"]
    assert found["steps"] == 9
    assert 0 < 9 * (found["step_seconds"] + found["bare_step_seconds"]) < elapsed
    assert found["samples_per_s"] == pytest.approx(4 / found["step_seconds"])
    assert found["ratio"] == pytest.approx(found["bare_step_seconds"] / found["step_seconds"])
    assert found["overhead_seconds"] == pytest.approx(found["step_seconds"] - found["bare_step_seconds"])
    assert found["peak_bytes"] > 50e6 and found["bare_peak_bytes"] > 50e6


@pytest.mark.long
def test_two_ranks_of_the_bare_loop_do_what_one_process_does_with_twice_the_batch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    together = comparing.run_bare(dataclasses.replace(TINY, ranks=2, batch_size=2), tmp_path)
    alone = comparing.run_bare(TINY, tmp_path)
    assert together.window.steps == alone.window.steps == 9
    assert together.window.loss == pytest.approx(alone.window.loss, rel=1e-4)


def test_a_checkpoint_is_saved_and_loaded_in_all_ways() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.trainer import checkpointing

    began = time.monotonic()
    found = checkpointing.measure(1_200_000, 2, torch.device("cpu"))
    elapsed = time.monotonic() - began
    assert found["sync"]["bytes"] > found["gzip"]["bytes"] > 600_000
    assert found["sync"]["blocked_seconds"] <= found["sync"]["device_blocked_seconds"]
    assert 0 < found["async"]["blocked_seconds"] + found["sync"]["blocked_seconds"] < elapsed
    assert found["load"]["seconds"] > 0 and found["gzip_load"]["seconds"] > 0


def test_a_loaded_checkpoint_is_in_the_live_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.trainer import checkpointing

    device = torch.device("cpu")
    state = checkpointing.made_state(1_200_000, device)
    checkpointing.saving(state, tmp_path, device, 1, background=True)
    weight, mean = state["model"]["block.7.weight"], state["optimizer"]["block.7.weight"]["exp_avg"]
    before = weight.clone(), mean.clone()
    weight.zero_()
    mean.zero_()
    checkpointing.loading(state, tmp_path, 1)
    assert torch.equal(weight, before[0]) and torch.equal(mean, before[1])


def test_a_metrics_line_is_timed() -> None:
    began = time.monotonic()
    found = line.measure(lines=50, rounds=3)
    low, high = found["spread"]
    assert 0 < low <= found["seconds"] <= high < (time.monotonic() - began) / 50
    assert 200 < found["bytes_per_line"] < 800


@pytest.mark.long
def test_the_telemetry_of_some_steps_is_counted_in_processor_time() -> None:
    pytest.importorskip("torch")
    found = launch.child("benchmarks.trainer.telemetry", "14", *TINY.arguments(), cuda=False)
    assert found["steps"] == 4
    assert found["seconds"] > 0 and found["step_seconds"] > 0
    assert found["percent"] == pytest.approx(100 * found["seconds"] / found["step_seconds"])


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        launch.run([sys.executable, "-c", "raise SystemExit('no such data')"], cuda=False)
    assert "no such data" in failure.value.stderr


def test_the_peak_of_a_command_is_that_of_its_largest_process() -> None:
    # A process begins with the memory of the one that it was forked from.
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 60_000_000
    inner = f"x = bytearray(b'1') * {size}"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    assert size < launch.run([sys.executable, "-c", outer], cuda=False) < size + 50e6


def test_what_a_person_has_set_for_runs_does_not_reach_measured_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER_STEPS", "5")
    monkeypatch.setenv("GPUTUI_RUN_DIR", "/nowhere")
    seen = "import os; raise SystemExit(any(name.startswith(('TRAINER_', 'GPUTUI_')) for name in os.environ))"
    assert launch.run([sys.executable, "-c", seen], cuda=False) > 0, "it raises where the program fails"


def test_ranks_are_started_by_torchrun_and_one_process_without() -> None:
    assert launch.module("trainer", "--steps", "3", ranks=0)[1:] == ["-m", "trainer", "--steps", "3"]
    assert "--nproc-per-node=2" in launch.module("trainer", ranks=2)
    assert "benchmarks.trainer.bound" in launch.module("trainer", ranks=2)
    assert "benchmarks.trainer.bound" not in launch.module("trainer", ranks=2, cuda=True)


@pytest.mark.parametrize("ranks", [1, 1000])
def test_ranks_get_a_core_each_where_there_are_enough(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "cores.py").write_text("import os, sys; print(len(os.sched_getaffinity(0)), *sys.argv[1:])")
    words = [sys.executable, "-m", "benchmarks.trainer.bound", "cores", "--steps"]
    environment = {"PYTHONPATH": f"{launch.ROOT}:{tmp_path}", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(os.sched_getaffinity(0)) if ranks > 1 else 1), "--steps"]


def test_neither_gputui_nor_its_screen_is_needed() -> None:
    script = (
        "import sys\n"
        "for name in ('gputui', 'textual', 'rich', 'pyte', 'psutil', 'pynvml'): sys.modules[name] = None\n"
        "from benchmarks.trainer.__main__ import main\n"
        "sys.exit(main(['line']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=launch.ROOT, timeout=400
    )
    assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stderr
    assert "a metrics line" in done.stdout


# --- what counts of a run ---------------------------------------------------------------------------------------------


def test_the_window_begins_after_the_steps_to_warm_up() -> None:
    times = [(1, 0.0), (2, 50.0), (3, 50.5), (4, 51.0), (5, 51.5), (6, 53.0)]
    found = window.of_times(times, warm_steps=2, loss=1.5)
    assert (found.steps, found.seconds_per_step, found.median_seconds) == (4, 0.75, 0.5)
    assert found.drift == pytest.approx(1.0)
    ends = window.of_times([(2, 50.0), (6, 53.0)], warm_steps=2, loss=1.5)
    assert (ends.steps, ends.seconds_per_step, ends.median_seconds) == (4, 0.75, None)
    with pytest.raises(ValueError, match="after the 6 to warm up"):
        window.of_times(times, warm_steps=6, loss=1.5)


def test_only_lines_of_steps_count_and_the_peak_after_warming_up() -> None:
    lines: list[dict[str, Any]] = [
        {"step": number, "time": float(number), "loss": 3.0 - number, "gpu_mem_peak": 900 - number}
        for number in (1, 2, 3)
    ]
    lines.insert(1, {"step": 1, "time": 9.0, "event": "checkpoint"})
    lines.append({"step": 3, "time": 30.0, "rank": 1, "step_time": 1.0})
    found = window.of_trainer(lines, warm_steps=1)
    assert (found.seconds_per_step, found.loss, found.gpu_peak_bytes) == (1.0, 0.0, 898)


def test_a_checkpoint_s_stall_is_what_the_next_line_comes_later() -> None:
    lines: list[dict[str, Any]] = [
        {"step": number, "time": moment, "loss": 1.0} for number, moment in ((1, 0.0), (2, 1.0), (3, 2.25), (4, 3.25))
    ]
    lines += [{"step": step, "time": 9.0, "event": "checkpoint"} for step in (2, 2, 4)]
    lines.append({"step": 3, "time": 9.0, "event": "checkpoint_skipped"})
    assert window.stalls(lines, usual_seconds=1.0) == [0.25]


def test_pairs_begin_with_one_and_the_other_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def runner(name: str, seconds: float) -> Callable[[Workload, Path], Run]:
        def run(workload: Workload, folder: Path) -> Run:
            assert folder.is_dir()
            order.append(name)
            return run_of(seconds)

        return run

    monkeypatch.setattr(comparing, "run_trainer", runner("trainer", 0.110))
    monkeypatch.setattr(comparing, "run_bare", runner("bare", 0.100))
    found = comparing.compare(TINY, pairs=3)
    assert order == ["trainer", "bare", "bare", "trainer", "trainer", "bare"]
    assert found["ratio"] == pytest.approx(0.1 / 0.11)
    assert found["overhead_seconds"] == pytest.approx(0.010)


def test_the_median_of_ratios_of_pairs_counts_with_its_spread() -> None:
    pairs = [(run_of(ours), run_of(bare)) for ours, bare in ((0.10, 0.10), (0.20, 0.19), (0.30, 0.36))]
    found = comparing.summary(TINY, pairs)
    assert found["ratio"] == pytest.approx(1.0)
    assert found["ratio_spread"] == pytest.approx([0.95, 1.2])
    assert found["samples_per_s"] == pytest.approx(4 / 0.20)


def test_loops_that_did_not_do_the_same_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"did not do the same: losses 2\.0 and 2\.1"):
        comparing.summary(TINY, [(run_of(0.1), run_of(0.1, loss=2.1))])


def test_on_a_gpu_the_memory_of_tensors_counts() -> None:
    on_gpu = Workload((), 4, 0, 1, 1, device="cuda")
    found = comparing.summary(on_gpu, [(run_of(0.1, gpu=7_000, loss=2.01), run_of(0.1, gpu=5_000))])
    assert (found["peak_bytes"], found["bare_peak_bytes"]) == (7_000, 5_000)


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", models.MODELS)
def test_the_settings_of_every_model_are_ones_that_the_trainer_knows(name: str) -> None:
    config = pytest.importorskip("trainer.config")
    settings, _ = config.from_arguments(models.arguments(models.MODELS[name], 8, 30, "cuda"), {})
    assert (settings.batch_size, settings.grad_accum, settings.precision) == (8, 1, "bf16")
    assert (settings.compile, settings.deterministic) == ("default", False)


def test_the_share_of_the_peak_is_that_of_the_whole_window() -> None:
    lines = [
        {"step": number, "time": number * 0.5, "loss": 1.0, "samples_per_s": 80.0, "mfu": 0.5, "gpu_mem_peak": 10**9}
        for number in range(1, 9)
    ]
    found = models.figures(models.MODELS["gpt2"], 32, lines, warm_steps=2)
    assert found["per_second"] == pytest.approx(64 * 1024)
    assert found["mfu"] == pytest.approx(0.4)


def test_batches_shrink_with_the_gpu() -> None:
    model = models.Model((), batches=(64, 32))
    assert models.batches(model, None) == [64, 32]
    assert models.batches(model, launch.Gpus("NVIDIA A100", 1, int(models.FULL_SIZE_BYTES // 2))) == [32, 16]
    assert models.batches(model, launch.Gpus("small", 1, 10**8)) == [1]


# --- parts and table --------------------------------------------------------------------------------------------------


def test_parts_that_need_a_gpu_say_so_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(launch, "gpus", lambda: None)
    on_gpu = [name for name in parts.PARTS if name.startswith("gpu-") or name in models.MODELS]
    results = {"trainer": parts.measure(on_gpu)}
    assert set(results["trainer"]) == set(on_gpu)
    left_out = figures.said(results, "why_not")
    assert left_out == [f"trainer {name}: no CUDA GPU is visible to torch" for name in on_gpu]
    assert figures.asked_for(TRAINER_FIGURES, results) == [
        figure for figure in TRAINER_FIGURES if figure.path[0] not in on_gpu
    ]


def test_a_part_that_fails_leaves_the_others() -> None:
    pytest.importorskip("torch")

    def fails() -> dict[str, Any]:
        raise subprocess.CalledProcessError(1, "trainer", stderr="one\ntwo\nout of memory\n")

    results = parts.measure(("worse", "good"), {"worse": fails, "good": lambda: {"seconds": 1.0}})
    assert results["good"]["seconds"] == 1.0
    assert figures.said({"trainer": results}, "failed") == ["trainer worse: exit status 1: one / two / out of memory"]


def test_every_figure_belongs_to_a_part() -> None:
    assert {figure.path[0] for figure in TRAINER_FIGURES} == set(parts.PARTS)


def test_the_table_has_the_parts_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured = {
        "step": {"ratio": 0.982, "ratio_spread": [0.97, 1.01], "samples_per_s": 81.2, "peak_bytes": 345e6},
        "gpt2": {"why_not": "no CUDA GPU is visible to torch"},
    }
    monkeypatch.setattr(alone, "measure", lambda names: measured)
    monkeypatch.setattr(alone, "end_tidily", lambda: None)
    assert alone.main(["--json", str(tmp_path / "found.json")]) == 0
    shown = capsys.readouterr().out
    first = next(text for text in shown.splitlines() if "speed over a bare loop's" in text)
    assert first.split()[-6:] == ["0.982", "×", "(0.970..1.010)", "≥", "0.99", "NO"]
    assert "missed: small transformer, 2 CPU ranks: speed over a bare loop's" in shown
    assert "left out: trainer gpt2: no CUDA GPU is visible to torch" in shown
    assert "GPT-2" not in shown and "a metrics line" not in shown
    assert '"ratio": 0.982' in (tmp_path / "found.json").read_text()


def test_a_failed_part_is_an_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(alone, "measure", lambda names: {"step": {"failed": "exit status 1: out of memory"}})
    monkeypatch.setattr(alone, "end_tidily", lambda: None)
    assert alone.main([]) == 1
    assert "could not be measured: trainer step: exit status 1: out of memory" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        alone.main(["speed"])
