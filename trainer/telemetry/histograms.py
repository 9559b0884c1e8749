"""Histograms of gradients and activations, one per block of the model, and of embeddings, in the steps asked for.

Counted is this rank's own share: of a tensor that is spread over ranks the local part, of activations the first micro
batch. Embeddings are the model's tables of vectors (tokens, positions) before the step; of contrastive learning the
vectors that are compared, of length 1.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Kind = Literal["gradient", "activation", "embedding"]

# The same for all tensors and steps: four bins per decade of the absolute value, for each sign, and one around zero.
# From 1e-10: smaller values make no difference to any optimizer here. To 1e4.
_MAGNITUDES = tuple(float(f"{10 ** (exponent / 4):.6g}") for exponent in range(-40, 17))
EDGES: tuple[float, ...] = (*(-edge for edge in reversed(_MAGNITUDES)), *_MAGNITUDES)
# Elements looked at together: scratch memory stays below 100 MB, however large the tensor.
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Histogram:
    """The values of a tensor, or of all tensors of a part of the model.

    Attributes:
        not_finite: the number of values that are in no bin.
        edges: the ends of the bins, one more than bins; empty bins at both ends are left out.
        counts: `counts[i]` finite values lie in [`edges[i]`, `edges[i + 1]`); those beyond EDGES are in the outermost
            bin.
        mean: of the finite values; as std, min, max and norm, None and not written without any.
        norm: the root of the sum of squares.
        zeros: the number of exact zeros, which are in `counts` too.
    """

    name: str
    kind: Kind
    not_finite: int
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    norm: float | None = None
    zeros: int = 0


@torch.no_grad()
def count(name: str, kind: Kind, tensors: Iterable[Tensor]) -> Histogram:
    """Count the values of all tensors together, of a DTensor those of the local shard; waits for the device."""
    counts = torch.zeros(len(EDGES) - 1, dtype=torch.int64)
    not_finite = 0
    numbers = []
    for tensor in tensors:
        local: Any = tensor
        if hasattr(tensor, "to_local"):
            local = tensor.to_local()
        for chunk in local.detach().reshape(-1).split(_CHUNK):
            values = chunk[chunk.isfinite()].float()
            not_finite += chunk.numel() - values.numel()
            if values.numel():
                inner = torch.tensor(EDGES[1:-1], device=values.device)
                places = torch.bucketize(values, inner, out_int32=True, right=True)
                counts += torch.bincount(places, minlength=len(counts)).cpu()
                norm = torch.linalg.vector_norm(values, dtype=torch.float64)
                figures = [values.sum(dtype=torch.float64), norm.square(), *values.aminmax(), (values == 0).sum()]
                numbers.append(torch.stack([number.double() for number in figures]).tolist())
    if not numbers:
        return Histogram(name, kind, not_finite)
    sums, squares, least, most, zeros = zip(*numbers, strict=True)
    total = int(counts.sum())
    square = math.fsum(squares)
    mean = math.fsum(sums) / total
    first, last = counts.nonzero().flatten()[[0, -1]].tolist()
    return Histogram(
        name=name,
        kind=kind,
        not_finite=not_finite,
        edges=EDGES[first : last + 2],
        counts=tuple(counts[first : last + 1].tolist()),
        mean=mean,
        std=math.sqrt(max(square / total - mean * mean, 0.0)),
        min=min(least),
        max=max(most),
        norm=math.sqrt(square),
        zeros=int(sum(zeros)),
    )


def gradients(by_name: Mapping[str, Tensor]) -> list[Histogram]:
    """One histogram per part of the model, of gradients by parameter name."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for name, gradient in by_name.items():
        parts[part_of(name)].append(gradient)
    return [count(part, "gradient", tensors) for part, tensors in parts.items()]


def embeddings(model: nn.Module, names: Mapping[Tensor, str]) -> list[Histogram]:
    """One histogram per table: weights of nn.Embedding, and parameters that are called so, as the positions of ViT."""
    tables = []
    for parameter, name in names.items():
        module, _, attribute = name.rpartition(".")
        if isinstance(model.get_submodule(module), nn.Embedding) or "embedding" in attribute:
            tables.append(count(name, "embedding", [parameter]))
    return tables


def part_of(parameter: str) -> str:
    """The block of a parameter; outside blocks the first two levels of its name."""
    module = parameter.rpartition(".")[0]
    return _block(module) or ".".join(module.split(".")[:2]) or parameter


@contextlib.contextmanager
def watch_activations(model: nn.Module, *, vectors: bool = False) -> Iterator[list[Histogram]]:
    """Inside, count the first output of every block into the list that is yielded; with `vectors` also the model's.

    Later ones are other micro batches, or backward recomputing the block. A compiled module does not call the hooks.
    """
    histograms: list[Histogram] = []
    blocks = {module: name for name, module in model.named_modules() if name and name == _block(name)}
    names = {module: name for module, name in blocks.items() if list(module.parameters())}

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        name = names.pop(module, None)
        tensor = output[0] if isinstance(output, tuple | list) and output else output
        if name and isinstance(tensor, Tensor) and tensor.is_floating_point():
            histograms.append(count(name, "activation", [tensor]))

    def hook_of_model(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if not any(histogram.kind == "embedding" for histogram in histograms):
            histograms.append(count("embeddings", "embedding", [functional.normalize(output.float(), dim=-1)]))

    hooks = [module.register_forward_hook(hook) for module in names]
    if vectors:
        hooks.append(model.register_forward_hook(hook_of_model))
    try:
        yield histograms
    finally:
        for handle in hooks:
            handle.remove()


def _block(module: str) -> str:
    """The outermost numbered module that a module is in, such as transformer.h.3; empty if there is none."""
    match = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", module)
    if match:
        return match[0]
    return ""
