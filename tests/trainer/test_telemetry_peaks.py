"""The peak rates that utilisation is measured against."""

from __future__ import annotations

from trainer.telemetry.peaks import peak_flops


def test_the_more_exact_name_counts() -> None:
    assert peak_flops("NVIDIA H200", "half") == 989e12
    assert peak_flops("NVIDIA H100 80GB HBM3", "tf32") == 494e12
    assert peak_flops("NVIDIA H100 PCIe", "half") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12


def test_an_unknown_gpu_has_no_peak() -> None:
    assert peak_flops("NVIDIA T1000", "half") is None
