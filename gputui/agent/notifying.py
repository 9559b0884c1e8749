"""Telling somebody: by a command or a webhook, with a deadline."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from typing import Any

from gputui.recovery.policies import Notice

COMMAND_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0
LAST_WORDS = 200


def run_command(notice: Notice, message: Mapping[str, Any]) -> None:
    """Run the command with the message's text as its last argument and all of it as JSON on its standard input.

    Raises OSError, and subprocess.SubprocessError where it fails or takes too long.
    """
    subprocess.run(
        [*notice.command, str(message["text"])],
        input=json.dumps(message).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=COMMAND_SECONDS,
        check=True,
        start_new_session=True,
    )


def post(notice: Notice, message: Mapping[str, Any]) -> None:
    """Send the message as JSON. Raises OSError, ValueError or http.client.HTTPException."""
    request = urllib.request.Request(  # noqa: S310 - the policy allows http and https only
        str(notice.webhook), json.dumps(message).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS) as answer:  # noqa: S310
        answer.read(1)


def describe(error: Exception) -> str:
    """What went wrong, without the command or the address, which may hold secrets."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the command took longer than {COMMAND_SECONDS:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        words = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return f"the command ended with code {error.returncode}" + (f": {words[-1][:LAST_WORDS]}" if words else "")
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return f"the command or the webhook cannot be reached: {reason}"
