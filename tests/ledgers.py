"""Rows of the ledger of checkpoints."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gputui.store.checkpoints import CheckpointRow


def ledger_row(name: str, moment: int = 1, attempt: int = 1, step: int | None = None, **more: Any) -> CheckpointRow:
    """A checkpoint in /c, by default one that an attempt wrote and that has a content of its own."""
    times = {"unseen_at": moment - 1.0, "seen_at": float(moment), "modified_at": float(moment)}
    path = name if name.startswith("/") else f"/c/{name}"
    row = CheckpointRow(
        path,
        moment,
        f"{path} {moment}",
        stamp="",
        attempt=attempt,
        origin="run",
        **times,
        saved_at=None,
        step=step,
        size_bytes=1,
    )
    return replace(row, is_settled=True, **more)
