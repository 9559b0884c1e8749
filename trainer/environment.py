"""What must be in the process's environment before torch touches a GPU. Imports no torch."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

from trainer.config import Settings

# torch reads the first; newer ones call it by the second name as well.
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def prepare_environment(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets what CUDA's allocator and cuBLAS read when they start; whatever else is there stays."""
    if settings.expandable_segments:
        for name in [name for name in _ALLOCATOR if name in environment] or _ALLOCATOR[:1]:
            environment[name] = _with_expandable_segments(environment.get(name, ""))
    if settings.deterministic and settings.device != "cpu":
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _with_expandable_segments(options: str) -> str:
    rest = re.sub(r"\s*expandable_segments\s*:\s*\w+\s*,?", "", options).strip().rstrip(",")
    return f"{rest},expandable_segments:True" if rest else "expandable_segments:True"
