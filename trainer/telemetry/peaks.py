"""Peak rates of matrix products on GPUs, of which a run reports its share (MFU)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:  # the benchmark asks for peaks where there is torch and nothing else
    from trainer.config import Settings

Arithmetic = Literal["half", "tf32", "fp32"]

# Dense matrix products per second in floating-point operations, without sparsity: NVIDIA's data sheets and architecture
# white papers (fp32 means TF32 where it is used). The first name found in the device's name counts.
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("B200", {"half": 2250e12, "tf32": 1100e12, "fp32": 75e12}),
    ("GH200", {"half": 989e12, "tf32": 494e12, "fp32": 67e12}),
    ("H200", {"half": 989e12, "tf32": 494e12, "fp32": 67e12}),
    ("H100 PCIe", {"half": 756e12, "tf32": 378e12, "fp32": 51e12}),
    ("H100 NVL", {"half": 835e12, "tf32": 417e12, "fp32": 60e12}),
    ("H100", {"half": 989e12, "tf32": 494e12, "fp32": 67e12}),
    ("A100", {"half": 312e12, "tf32": 156e12, "fp32": 19.5e12}),
    ("A6000", {"half": 155e12, "tf32": 77.4e12, "fp32": 38.7e12}),
    ("L40S", {"half": 362e12, "tf32": 183e12, "fp32": 91.6e12}),
    ("RTX 5090", {"half": 209.5e12, "tf32": 104.8e12, "fp32": 104.8e12}),
    ("RTX 4090", {"half": 165.2e12, "tf32": 82.6e12, "fp32": 82.6e12}),
    ("RTX 3090", {"half": 71e12, "tf32": 35.6e12, "fp32": 35.6e12}),
    ("V100", {"half": 125e12, "tf32": 15.7e12, "fp32": 15.7e12}),
)


def peak_flops(device_name: str, arithmetic: Arithmetic) -> float | None:
    """Peak operations per second of a GPU by its name, such as ``NVIDIA H200``; None if it is not in the table."""
    for name, peaks in _PEAKS:
        if name in device_name:
            return peaks[arithmetic]
    return None


def peak_of(settings: Settings, device: torch.device) -> float | None:
    """Peak operations per second of the device in the arithmetic that the settings ask for; None where unknown."""
    if device.type != "cuda":
        return None
    arithmetic: Arithmetic = "half"
    if settings.precision == "fp32":
        arithmetic = "tf32" if settings.tf32 and not settings.deterministic else "fp32"
    return peak_flops(torch.cuda.get_device_name(device), arithmetic)
