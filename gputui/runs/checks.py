"""The answer of one check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing looked at before a launch. ``detail`` is what was found, in one sentence; ``remedy`` what to do about
    it, None if nothing is to be done."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
