"""The fake driver library, for the checks of GPUs."""

from __future__ import annotations

from tests.machine.conftest import fake_library, fake_nvml

__all__ = ["fake_library", "fake_nvml"]
