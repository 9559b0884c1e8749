"""The loop that a person would write around one of the models, on one device; torch is all it needs.

    python -m benchmarks.gpu.bare '{"model": "gpt2", …}'

Samples are random and lie on the device before the first step. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu import models


def train(
    model: str, *, device: str, batch: int, size: int, compiled: bool, warm_steps: int, steps: int, **options: int
) -> dict[str, Any]:
    """Speed and memory of `steps` steps after `warm_steps`. `size` is the context, or the side of an image.

    Loss in bf16 under autocast, weights in fp32, gradients clipped to a norm of 1: what the trainer is asked to do.
    """
    place = torch.device(device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if model == "gpt2":
        network = models.gpt2(50257, size, **options).to(place)
        inputs = torch.randint(50257, (batch, size + 1), device=place)
        fields = inputs[:, :-1].contiguous(), inputs[:, 1:].contiguous()
    else:
        torch.backends.cudnn.benchmark = True
        network = models.resnet50((3, size, size), 1000).to(place).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        pixels = torch.randint(256, (batch, 3, size, size), dtype=torch.uint8, device=place)
        fields = pixels, torch.randint(1000, (batch,), device=place)
    objective = _Objective(network, images=model != "gpt2")
    if compiled:
        objective.compile(dynamic=False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=6e-4, weight_decay=0.1, fused=place.type == "cuda")
    began = 0.0
    for step in range(warm_steps + steps):
        if step == warm_steps:
            _wait(place)
            began = time.perf_counter()
            if place.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
        with torch.autocast(place.type, dtype=torch.bfloat16):
            loss = objective(*fields)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    _wait(place)
    seconds = (time.perf_counter() - began) / steps
    return {
        "batch_size": batch,
        "step_seconds": seconds,
        "per_second": batch * (size if model == "gpt2" else 1) / seconds,
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "peak_bytes": torch.cuda.max_memory_allocated() if place.type == "cuda" else None,
        "loss": loss.item(),
    }


class _Objective(nn.Module):
    def __init__(self, network: nn.Module, *, images: bool) -> None:
        super().__init__()
        self.network = network
        self.images = images

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.images:
            inputs = inputs.contiguous(memory_format=torch.channels_last) / 128 - 1
        logits = self.network(inputs).flatten(0, -2).float()
        return functional.cross_entropy(logits, targets.flatten())


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))))
