"""Telling somebody: by a command or a webhook, with a deadline."""

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
LAST_WORDS = 200
# What it left in the background may hold its standard error open, so that only looking tells the end of a command.
LOOK_SECONDS = 0.05
PIECE_BYTES = 1 << 16


def run_command(notice: NoticeTarget, message: Mapping[str, Any], seconds: float = COMMAND_SECONDS) -> None:
    """Run the command with the message's text as its last argument and all of it as JSON on its standard input.

    It is over when the command itself has ended; what it left in the background, as mail programs do, is its own. Where
    it takes longer than ``seconds``, it is killed with its process group.

    Raises OSError, and subprocess.SubprocessError where it fails or takes too long.
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
            words = _last_words(process, errors.fileno(), seconds)
        except BaseException:
            # Not reaped yet, so that the number is still its own.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code := process.wait():
        raise subprocess.CalledProcessError(code, command, stderr=words)


def _last_words(process: subprocess.Popen[bytes], errors: int, seconds: float) -> bytes:
    """Wait for a process to end, and keep the end of what it says. Raises subprocess.TimeoutExpired."""
    deadline = time.monotonic() + seconds
    words = b""
    with selectors.DefaultSelector() as selector:
        selector.register(errors, selectors.EVENT_READ)
        while True:
            # Asked first: then all of its output can be read.
            has_ended = process.poll() is not None
            left = deadline - time.monotonic()
            if selector.select(0.0 if has_ended else max(0.0, min(left, LOOK_SECONDS))):
                piece = os.read(errors, PIECE_BYTES)
                words = (words + piece)[-PIECE_BYTES:]
                if not piece:
                    selector.unregister(errors)
            elif has_ended:
                return words
            if left <= 0:
                if has_ended:
                    return words
                raise subprocess.TimeoutExpired(process.args, seconds)


def post(notice: NoticeTarget, message: Mapping[str, Any], seconds: float = WEBHOOK_SECONDS) -> None:
    """Send the message as JSON. Raises OSError, ValueError or http.client.HTTPException.

    The deadline of a socket is one for each piece, and a server may send its answer a byte at a time; so the whole is
    done in a thread that the agent no longer waits for.
    """
    # With its TLS library it takes 6 MB, which few agents ever need.
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
    """What went wrong, without the command or the address, which may hold secrets."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the command took longer than {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        words = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return f"the command ended with code {error.returncode}" + (f": {words[-1][:LAST_WORDS]}" if words else "")
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return f"the command or the webhook cannot be reached: {reason}"
