"""The size of micro batches: steps down, the search for the largest that fits, and what counts as out of memory."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import table
from tests.trainer.ranks import ALONE
from trainer.batch import USABLE, MicroBatches, Probe, find_batch, is_out_of_memory
from trainer.errors import TrainerError

GIB = 2**30


@given(st.integers(1, 3000), st.integers(1, 100))
def test_steps_down_keep_the_product_and_end_at_one(batch: int, accum: int) -> None:
    assert MicroBatches(16, 3).smaller() == (12, 4)
    assert MicroBatches(64, 1).smaller() == (32, 2)
    assert MicroBatches(7, 1).smaller() == (1, 7)
    product = batch * accum
    steps = 0
    batches = MicroBatches(batch, accum)
    while (reduced := batches.smaller()) is not None:
        assert reduced.size * reduced.per_step == product
        assert 1 <= reduced.size <= 0.75 * batches.size
        batches = reduced
        steps = steps + 1
    assert batches == (1, product)
    assert steps <= 30


@given(
    st.integers(0, 90 * GIB), st.integers(2**10, 40 * GIB), st.integers(80, 141), st.integers(1, 4096), st.booleans()
)
def test_the_search_is_within_an_eighth_and_never_runs_out(
    base: int, per_sample: int, gigabytes: int, limit: int, base_known: bool
) -> None:
    """Memory is a straight line; what does not fit runs out."""
    total = gigabytes * GIB
    tried = list[int]()

    def probe(size: int) -> Probe | None:
        tried.append(size)
        peak = base + size * per_sample
        return Probe(peak, total, base if base_known else 0) if peak <= total else None

    batch_size = 0
    with contextlib.suppress(TrainerError):
        batch_size = find_batch(probe, limit, ALONE)
    best = min(limit, int((USABLE * total - base) // per_sample))
    # A forecast needs a trial with one sample and, where the memory without a batch is unknown, one with two.
    blind = 1 if base_known and base else 2
    assert all(size <= max(best, blind) for size in tried)
    assert len(tried) <= 17
    assert len(set(tried)) == len(tried)
    assert max(min(best, 1), best - best / 8) <= batch_size <= max(best, blind)


def test_running_out_halves_the_gap() -> None:
    tried = list[int]()

    def probe(size: int) -> Probe | None:
        tried.append(size)
        # Memory does not grow with the batch, so nothing can be forecast.
        return None if size > 20 else Probe(GIB, 100 * GIB)

    assert find_batch(probe, 64, ALONE) == 20
    assert tried == [1, 2, 4, 8, 16, 32, 24, 20, 22]
    tried.clear()
    assert find_batch(probe, 64, ALONE, first=2) == 20
    assert tried == [2, 4, 8, 16, 32, 24, 20, 22]
    assert find_batch(lambda size: Probe(GIB, GIB * 100) if size == 1 else None, 64, ALONE, first=2) == 1
    with pytest.raises(TrainerError, match=r"^--batch-size auto: not even one sample fits into memory; try "):
        find_batch(lambda size: None, 64, ALONE)


@table(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (MemoryError(), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
