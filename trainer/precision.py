"""Numbers and memory: autocast, loss scaling, TF32, determinism, memory order, compilation."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from trainer.config import Settings
from trainer.errors import SettingsError

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Types, loss scale and memory order of one phase; making one sets torch's global switches for it."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        if settings.precision == "fp16" and device.type != "cuda" and settings.device != "cpu":
            raise SettingsError("--precision fp16 needs a CUDA GPU; use bf16 or fp32 here")
        self._device = device
        self._channels_last = settings.channels_last
        self._dtype = HALF.get(settings.precision)
        self.scaler = torch.amp.GradScaler(
            device.type,
            init_scale=settings.loss_scale,
            growth_factor=settings.loss_scale_growth,
            backoff_factor=settings.loss_scale_backoff,
            growth_interval=settings.loss_scale_interval,
            enabled=settings.precision == "fp16",
        )
        switch_backends(settings, device)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Around forward passes and their losses."""
        if self._dtype:
            return torch.autocast(self._device.type, dtype=self._dtype)
        return contextlib.nullcontext()

    def place(self, module: nn.Module) -> nn.Module:
        """The module on the device, the weights of its convolutions in the memory order that was asked for."""
        module = module.to(self._device)
        if self._channels_last:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return module


def switch_backends(settings: Settings, device: torch.device) -> None:
    """Set torch's global switches: determinism, where torch has it, TF32, and the share of the GPU's memory."""
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=True)
    # Else each new tensor is filled before it is written, at the cost of as much memory traffic again.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type != "cuda":
        return
    tf32 = settings.tf32 and not settings.deterministic
    # These two, unlike the switches by operator, leave both of torch's ways to ask for TF32 in agreement.
    matmul_precision = "high" if tf32 else "highest"
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not settings.deterministic
    torch.cuda.set_per_process_memory_fraction(settings.memory_fraction, device)


def snapshot_at_out_of_memory(path: Path) -> None:
    """Let CUDA's allocator write its history, for https://pytorch.org/memory_viz, whenever it runs out of memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    write = torch.cuda.memory._dump_snapshot
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: write(str(path)))  # type: ignore[attr-defined,no-untyped-call]


def release_memory(device: torch.device) -> None:
    """Return memory that was freed to the GPU, or on CPUs to the system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        # glibc keeps freed blocks of up to 32 MiB: after a step, several times a rank's shards.
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def compile_modules(modules: Sequence[nn.Module], settings: Settings) -> None:
    """Compile forward in place, on first use, once per batch shape; before DDP or FSDP wraps the modules."""
    if settings.compile != "off":
        forget_compiled(settings)
        for module in modules:
            module.compile(mode=settings.compile, dynamic=False)


def forget_compiled(settings: Settings) -> None:
    """Drop what was compiled for other batches or phases: beyond eight compilations torch computes uncompiled."""
    if settings.compile != "off":
        torch.compiler.reset()
