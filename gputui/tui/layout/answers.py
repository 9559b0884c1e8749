"""What the agent answered, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputui.charts.safe_text import clean
from gputui.tui.layout.words import RUN_SIGNS, run_sign


def answer_text(words: str, result: Mapping[str, Any]) -> str:
    """``words`` is what was asked for, ``result`` the agent's answer to it."""
    if "text" in result:
        return clean(str(result["text"]))
    if "paused" in result:
        return f"{words}: " + ("nothing new starts; what runs goes on" if result["paused"] else "the queue is open")
    if "position" in result and result["position"] is not None:
        return f"{words}: {clean(str(result.get('id', '')))} is #{result['position']} in the queue"
    if "id" not in result:
        return f"{words}: done"
    state = str(result.get("state"))
    return f"{words}: {clean(str(result['id']))} is {run_sign(state).word if state in RUN_SIGNS else clean(state)}"
