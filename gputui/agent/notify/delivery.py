"""Delivery of a notification by a command or a webhook, with a deadline."""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from gputui.recovery.policies import NoticeTarget

COMMAND_SECONDS = 30.0
WEBHOOK_SECONDS = 10.0
STDERR_CHARACTERS = 200
# Poll interval for the end of a command: stderr does not end with it if background processes hold it open.
POLL_SECONDS = 0.05
PIECE_BYTES = 1 << 16


def run_command(notice: NoticeTarget, message: Mapping[str, Any], seconds: float = COMMAND_SECONDS) -> None:
    """Run the command with the message's text as its last argument and the message as JSON on stdin.

    Background processes that it leaves, as mail programs do, are not waited for. After ``seconds``, its process group
    is killed.

    Raises OSError, or subprocess.SubprocessError if it fails or takes too long.
    """
    command = [*notice.command, str(message["text"])]
    with os.fdopen(os.memfd_create("message"), "w+b") as text:
        text.write(json.dumps(message).encode())
        text.seek(0)
        process = subprocess.Popen(
            command, stdin=text, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    assert process.stderr is not None
    with process.stderr as errors:
        try:
            tail = _wait(process, errors.fileno(), seconds)
        except BaseException:
            # Not reaped yet, so that its PID cannot be another's.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code := process.wait():
        raise subprocess.CalledProcessError(code, command, stderr=tail)


def _wait(process: subprocess.Popen[bytes], errors: int, seconds: float) -> bytes:
    """Wait for the end of a process; return the end of its stderr. Raises subprocess.TimeoutExpired."""
    deadline = time.monotonic() + seconds
    tail = b""
    with selectors.DefaultSelector() as selector:
        selector.register(errors, selectors.EVENT_READ)
        while True:
            # Checked before the read, so that no output is missed.
            has_ended = process.poll() is not None
            seconds_left = deadline - time.monotonic()
            if selector.select(0.0 if has_ended else max(0.0, min(seconds_left, POLL_SECONDS))):
                piece = os.read(errors, PIECE_BYTES)
                tail = (tail + piece)[-PIECE_BYTES:]
                if not piece:
                    selector.unregister(errors)
            elif has_ended:
                return tail
            if seconds_left <= 0:
                if has_ended:
                    return tail
                raise subprocess.TimeoutExpired(process.args, seconds)


def post(notice: NoticeTarget, message: Mapping[str, Any], seconds: float = WEBHOOK_SECONDS) -> None:
    """Send the message as JSON. Raises OSError, ValueError or http.client.HTTPException.

    A thread sends it, and is abandoned at the deadline: a socket's timeout counts anew for each byte of the answer.
    """
    # Imported here because it takes 6 MB with TLS, which few agents need.
    import urllib.request

    request = urllib.request.Request(  # noqa: S310 - the policy allows http and https only
        str(notice.webhook), json.dumps(message).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    raised: list[Exception] = []

    def send() -> None:
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
                answer.read(1)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=send, name="webhook", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if thread.is_alive():
        raise TimeoutError(errno.ETIMEDOUT, f"no whole answer within {seconds:.0f} s")


def describe(error: Exception) -> str:
    """Message for an error of delivery, without the command or the address, which may contain secrets."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the command took longer than {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        words = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return f"the command ended with code {error.returncode}" + (
            f": {words[-1][:STDERR_CHARACTERS]}" if words else ""
        )
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return f"the command or the webhook cannot be reached: {reason}"
