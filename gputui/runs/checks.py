"""The result of a check before a launch."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

Status = Literal["pass", "warn", "fail", "skip"]


class CheckResult(Struct, frozen=True):
    """The result of one check: the finding in one sentence, and a ``remedy`` if there is one."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None

    @property
    def line(self) -> str:
        """``✗ gpus: 1 of 2 can be used; choose others``: with the remedy unless it passed."""
        mark = {"pass": "✓", "warn": "▲", "fail": "✗", "skip": "–"}[self.status]
        remedy = f"; {self.remedy}" if self.remedy and self.status in ("warn", "fail") else ""
        return f"{mark} {self.name}: {self.detail}{remedy}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def graded(
    name: str, detail: str, remedy: str | None = None, *, fails: bool = False, warns: bool = False
) -> CheckResult:
    """A result that fails, else warns, with the remedy, or passes without one."""
    if not fails and not warns:
        return CheckResult(name, "pass", detail)
    status: Status = "fail" if fails else "warn"
    return CheckResult(name, status, detail, remedy)
