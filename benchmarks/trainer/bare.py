"""The loop that a person would write: next-token training under DistributedDataParallel, and nothing around it.

    torchrun … -m benchmarks.trainer.bare RESULT WARM_STEPS SETTINGS…

Settings are spelled as for the trainer, and both take the same samples and end with the same loss. No checkpoints, no
metrics, no signals; the loss is read when it is printed. Rank 0 writes to RESULT when steps were over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Settings, from_arguments
from trainer.data import load_data
from trainer.data.order import Order
from trainer.models import build_model

LOG_EVERY = 10


class NextToken(nn.Module):
    """Tokens [batch, context + 1] to the mean cross-entropy of each token's successor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.model(tokens[:, :-1].contiguous())
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def train(settings: Settings, result: Path, warm_steps: int) -> None:
    under_torchrun = "RANK" in os.environ
    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = settings.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    if under_torchrun:
        dist.init_process_group("nccl" if cuda else "gloo")

    data = load_data(settings)
    batch = settings.batch_size
    assert isinstance(batch, int)
    # The samples of all steps are known before the first: here, looking one up costs nothing.
    order = Order(data.train, settings.seed).indices(0, settings.steps * ranks * batch)
    torch.manual_seed(settings.seed)
    module: nn.Module = NextToken(build_model(settings, data)).to(device)
    parameters = list(module.parameters())
    if settings.compile != "off":
        module.compile(mode=settings.compile, dynamic=False)
    if ranks > 1:
        device_ids = [device] if cuda else None
        module = DistributedDataParallel(module, device_ids=device_ids, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [parameter for parameter in parameters if parameter.dim() >= 2],
                "weight_decay": settings.weight_decay,
            },
            {"params": [parameter for parameter in parameters if parameter.dim() < 2], "weight_decay": 0.0},
        ],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        fused=True,
    )

    times = []
    for step in range(1, settings.steps + 1):
        start = ((step - 1) * ranks + rank) * batch
        tokens = data.train.read(order[start : start + batch])["tokens"]
        if cuda:
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.precision == "bf16"):
            loss = module(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, settings.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        if step % LOG_EVERY == 0 and rank == 0:
            print(f"step {step}/{settings.steps}  loss {loss.item():.4f}", flush=True)
        if cuda and step in (warm_steps, settings.steps):
            torch.cuda.synchronize()
            if step == warm_steps:
                torch.cuda.reset_peak_memory_stats()
        if not cuda or step in (warm_steps, settings.steps):
            times.append((step, time.time()))

    mean = loss.detach().double() / ranks
    if under_torchrun:
        dist.all_reduce(mean)
    if rank == 0:
        peak = torch.cuda.max_memory_allocated() if cuda else None
        result.write_text(json.dumps({"times": times, "loss": mean.item(), "gpu_peak_bytes": peak}))
    if under_torchrun:
        dist.destroy_process_group()


if __name__ == "__main__":
    train(from_arguments(sys.argv[3:], {})[0], Path(sys.argv[1]), int(sys.argv[2]))
