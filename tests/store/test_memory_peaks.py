"""What GPU memory earlier attempts of a profile took."""

from __future__ import annotations

from gputui.store.memory_peaks import past_peaks
from tests.tui.filling import Filler


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
