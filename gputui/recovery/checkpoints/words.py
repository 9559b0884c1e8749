"""The ledger of checkpoints as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gputui.core.text import clean
from gputui.core.units import count
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.ledger import AttemptSpan
from gputui.runs.checkpoint_names import is_step_named, step_words
from gputui.store.checkpoints import CheckpointRow
from gputui.store.json_shapes import iso

MOST_SHOWN = 5


def checkpoints_sentence(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> str:
    """Text on the checkpoint that the run could be resumed from, and on those passed over. ``rows`` are not empty."""
    usable = ledger.candidates(rows, attempts)
    if not usable:
        parts = ["Checkpoints: none of this training can be resumed from."]
    else:
        newest = usable[0]
        step = "" if newest.step is None else f" ({step_words(newest.name, newest.step)}, attempt {newest.attempt})"
        many = "1 of this training," if len(usable) == 1 else f"{count(len(usable))} of this training, the newest"
        parts = [f"Checkpoints: {many} {newest.name}{step}."]
    refused = ledger.refused(rows, attempts)
    if refused:
        shown = [f"{row.name} {why}" for row, why in refused[:MOST_SHOWN]]
        more = [f"and {count(len(refused) - len(shown))} more"] if len(refused) > len(shown) else []
        parts.append(f"Passed over: {'; '.join([*shown, *more])}.")
    return clean(" ".join(parts))


def checkpoints_shape(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[dict[str, Any]]:
    """One item per checkpoint for ``gputui show --json``, newest first; ``refused`` is why it would not be resumed
    from, or null."""
    refused = {row.path: why for row, why in ledger.refused(rows, attempts)}
    return [
        {
            "path": row.path,
            "step": row.step,
            "step_is_estimated": row.step is not None and not is_step_named(row.name),
            "attempt": row.attempt if row.is_written else None,
            "origin": row.origin,
            "size_bytes": row.size_bytes,
            "seen_at": iso(row.seen_at),
            "modified_at": iso(row.modified_at),
            "verdict": row.verdict,
            "refused": refused.get(row.path),
        }
        for row in ledger.newest_first(rows)
    ]
