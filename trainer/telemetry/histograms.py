"""Histograms of gradients and activations, one per block of the model, taken only in the steps that are asked for.

The bins are the same for all tensors and steps, so that histograms can be laid side by side: four per decade of the
absolute value, for each sign, and one around zero. What is taken is this rank's own share: of a tensor that is spread
over ranks the local part, of the activations its first micro batch.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Kind = Literal["gradient", "activation"]

# Smaller values make no difference to any optimizer here; larger ones fall into the outermost bins.
SMALLEST_EXPONENT, LARGEST_EXPONENT, BINS_PER_DECADE = -10, 4, 4
# As many blocks and other parts are looked at, evenly spread; a person reads no more, and trackers slow down.
MAX_PARTS = 64
# Elements looked at together: scratch memory stays below 100 MB, however large the tensor.
_CHUNK = 1 << 22

_MAGNITUDES = tuple(
    float(f"{10 ** (SMALLEST_EXPONENT + index / BINS_PER_DECADE):.6g}")
    for index in range((LARGEST_EXPONENT - SMALLEST_EXPONENT) * BINS_PER_DECADE + 1)
)
EDGES: tuple[float, ...] = (*(-edge for edge in reversed(_MAGNITUDES)), *_MAGNITUDES)


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` finite values lie in [`edges[i]`, `edges[i + 1]`); empty bins at both ends are left out.

    Values beyond the first or last of EDGES are in the outermost bin. `zeros` are exact zeros, which are in `counts`
    too; `not_finite` are in none. `norm` is the root of the sum of squares. The numbers are of the finite values and
    None if there are none.
    """

    name: str
    kind: Kind
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    zeros: int
    not_finite: int

    @property
    def total(self) -> int:
        return sum(self.counts)


class ValueCounts:
    """Count values of any number of tensors into one histogram."""

    def __init__(self) -> None:
        self._counts = [0] * (len(EDGES) - 1)
        self._sum = self._squares = 0.0
        self._min, self._max = math.inf, -math.inf
        self._zeros = self._not_finite = 0

    @torch.no_grad()
    def add(self, tensor: Tensor) -> None:
        """Count the tensor's values, of a DTensor those of the local shard; waits for the device."""
        local = getattr(tensor, "to_local", None)
        values = (local() if local else tensor).detach()
        # In the order of memory, such as that of channels_last, no copy is made.
        values = values.permute(sorted(range(values.dim()), key=values.stride, reverse=True)).reshape(-1)
        for chunk in values.split(_CHUNK):
            self._add_chunk(chunk if chunk.dtype == torch.float64 else chunk.float())

    def _add_chunk(self, chunk: Tensor) -> None:
        values = chunk[chunk.isfinite()]
        self._not_finite += chunk.numel() - values.numel()
        if not values.numel():
            return
        inner = torch.tensor(EDGES[1:-1], dtype=values.dtype, device=values.device)
        places = torch.bucketize(values, inner, out_int32=True, right=True)
        counts = torch.bincount(places, minlength=len(self._counts))
        low, high = values.aminmax()
        norm = torch.linalg.vector_norm(values, dtype=torch.float64)
        numbers = torch.stack(
            [values.sum(dtype=torch.float64), norm.square(), low.double(), high.double(), (values == 0).sum().double()]
        )
        total, squares, least, most, zeros = numbers.tolist()
        self._counts = [before + new for before, new in zip(self._counts, counts.tolist(), strict=True)]
        self._sum += total
        self._squares += squares
        self._min, self._max = min(self._min, least), max(self._max, most)
        self._zeros += int(zeros)

    def histogram(self, name: str, kind: Kind) -> Histogram:
        """What has been counted so far."""
        filled = [index for index, count in enumerate(self._counts) if count]
        counted = sum(self._counts)
        if not counted:
            return Histogram(name, kind, (), (), None, None, None, None, None, 0, self._not_finite)
        first, last = filled[0], filled[-1]
        mean = self._sum / counted
        return Histogram(
            name=name,
            kind=kind,
            edges=EDGES[first : last + 2],
            counts=tuple(self._counts[first : last + 1]),
            mean=mean,
            std=math.sqrt(max(self._squares / counted - mean * mean, 0.0)),
            min=self._min,
            max=self._max,
            norm=math.sqrt(self._squares),
            zeros=self._zeros,
            not_finite=self._not_finite,
        )


def gradients(found: Mapping[str, Tensor], blocks: Iterable[str]) -> list[Histogram]:
    """One histogram per block and per part outside the blocks, of gradients by parameter name."""
    histograms = []
    for name, members in parts(found, blocks).items():
        tally = ValueCounts()
        for member in members:
            tally.add(found[member])
        histograms.append(tally.histogram(name, "gradient"))
    return histograms


@contextlib.contextmanager
def watch_activations(model: nn.Module) -> Iterator[list[Histogram]]:
    """Inside, count the first output of every repeated block into the list that is yielded.

    Forward hooks exist only inside. A module that torch.compile has already compiled does not call them.
    """
    histograms: list[Histogram] = []
    hooks = []
    chosen = set(_evenly(blocks_of(model)))
    for name, module in model.named_modules():
        if name in chosen:
            hooks.append(module.register_forward_hook(_FirstOutput(name, histograms)))
    try:
        yield histograms
    finally:
        for hook in hooks:
            hook.remove()


class _FirstOutput:
    """A forward hook that counts one output: later calls are other micro batches, or backward recomputing the block."""

    def __init__(self, name: str, histograms: list[Histogram]) -> None:
        self._name = name
        self._histograms = histograms
        self._done = False

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple | list) and output else output
        if self._done or not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return
        self._done = True
        tally = ValueCounts()
        tally.add(tensor)
        self._histograms.append(tally.histogram(self._name, "activation"))


def blocks_of(model: nn.Module) -> list[str]:
    """Names of the repeated blocks: the members of each outermost list or sequence of two or more alike modules."""
    found: list[str] = []
    for name, module in model.named_modules():
        if any(name == block or name.startswith(f"{block}.") for block in found):
            continue
        children = list(module.named_children()) if isinstance(module, nn.ModuleList | nn.Sequential) else []
        alike = len(children) > 1 and len({type(child) for _, child in children}) == 1
        if alike and any(True for _ in children[0][1].parameters()):
            found += [f"{name}.{child}" if name else child for child, _ in children]
    return found


def parts(names: Iterable[str], blocks: Iterable[str]) -> dict[str, list[str]]:
    """Parameter names by block, and outside blocks by the first two levels of the module they are in."""
    block_names = set(blocks)
    grouped: dict[str, list[str]] = {}
    for name in names:
        path = name.split(".")[:-1]
        prefixes = itertools.accumulate(path, lambda upper, level: f"{upper}.{level}")
        block = next((prefix for prefix in prefixes if prefix in block_names), None)
        grouped.setdefault(block or ".".join(path[:2]) or name, []).append(name)
    return {name: grouped[name] for name in _evenly(list(grouped))}


def _evenly(names: Sequence[str]) -> list[str]:
    """MAX_PARTS of the names, evenly spread, the first and last among them; all if there are no more."""
    if len(names) <= MAX_PARTS:
        return list(names)
    return [names[round(index * (len(names) - 1) / (MAX_PARTS - 1))] for index in range(MAX_PARTS)]
