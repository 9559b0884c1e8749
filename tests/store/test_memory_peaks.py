"""What GPU memory earlier attempts of a profile took."""

from __future__ import annotations

import json

from gputui.store.gpu_use import past_peaks, study_peaks
from tests.ui.tui.filling import GIB, NOW, Filler


def test_the_largest_peak_of_each_attempt_and_where_memory_ran_out(filler: Filler) -> None:
    filler.run("gpt-1", "succeeded", name="gpt", attempt=2)
    filler.attempt("gpt-1", 1, "failed", gpus=(0, 1), params={"batch_size": 64})
    filler.attempt("gpt-1", 2, "succeeded", gpus=(0, 1), params={"batch_size": 48})
    filler.incident("gpt-1", 1, "cuda_oom", "out of memory")
    filler.metrics("gpt-1", 2, [{"step": 1, "rank": rank, "gpu_mem_peak": 1000 + rank} for rank in range(2)])
    filler.run("gpt-2", name="gpt")
    filler.attempt("gpt-2", 1, gpus=())
    filler.metrics("gpt-2", 1, [{"step": 1, "gpu_mem_peak": 5}])
    filler.run("vit-1", name="vit")
    filler.attempt("vit-1", 1, gpus=(2,))
    filler.metrics("vit-1", 1, [{"step": 1, "gpu_mem_peak": 7}])
    found = past_peaks(filler.connection, "gpt")
    assert [(each.attempt, each.peak_bytes, each.ran_out, each.gpu_count) for each in found] == [
        (2, 1001, False, 2), (1, None, True, 2),
    ]  # fmt: skip
    assert found[0].params == {"batch_size": 48}


def test_what_is_no_number_of_bytes_is_unknown(filler: Filler) -> None:
    filler.run("gpt-1", name="gpt")
    filler.attempt("gpt-1", 1, gpus=(0,))
    filler.metrics("gpt-1", 1, [{"step": 1, "gpu_mem_peak": float("nan")}])
    assert past_peaks(filler.connection, "gpt") == []
    filler.metrics("gpt-1", 1, [{"step": 1, "rank": 1, "gpu_mem_peak": 7}])
    assert [each.peak_bytes for each in past_peaks(filler.connection, "gpt")] == [7]


def trial(filler: Filler, run_id: str, study: str, state: str = "running", gpus: tuple[int, ...] = (0,)) -> None:
    filler.run(run_id, state)
    filler.attempt(run_id, 1, state, gpus=gpus, ended_ago=None if state == "running" else 5.0)
    filler.connection.execute("UPDATE runs SET study_id = ? WHERE run_id = ?", (study, run_id))


def listed(filler: Filler, seconds_ago: float, gpu: int, **held: int) -> None:
    """The driver's list of a GPU's processes, by their runs."""
    processes = [{"pid": 1, "run_id": run_id.replace("_", "-"), "memory_bytes": size} for run_id, size in held.items()]
    filler.connection.execute(
        "INSERT INTO gpu_process_sets (at, gpu_id, processes) VALUES (?, ?, ?)",
        (NOW - seconds_ago, gpu + 1, json.dumps(processes)),
    )


def peaks(filler: Filler, study: str = "s") -> list[int]:
    return list(study_peaks(filler.connection, study).values())


def test_the_peak_of_a_study_is_that_of_the_largest_trial_by_whoever_says_more(filler: Filler) -> None:
    filler.gpus(2)
    trial(filler, "a-1", "s")
    assert peaks(filler) == [], "it has reported nothing yet"
    listed(filler, 50, 0, a_1=GIB)
    assert peaks(filler) == [], "what it holds before its first step is no peak"
    filler.metrics("a-1", 1, [{"step": 1, "rank": rank, "gpu_mem_peak": 3 * GIB} for rank in range(2)])
    assert peaks(filler) == [6 * GIB], "both ranks are on the one GPU"
    listed(filler, 40, 0, a_1=8 * GIB, other_1=40 * GIB)
    trial(filler, "b-1", "s", "succeeded")
    listed(filler, 30, 0, b_1=9 * GIB, a_1=2 * GIB)
    assert peaks(filler) == [8 * GIB], "one that made no step was not measured"
    filler.connection.execute("UPDATE attempts SET last_step = 3 WHERE run_id = 'b-1'")
    assert peaks(filler) == [9 * GIB]
    assert peaks(filler, "t") == []
