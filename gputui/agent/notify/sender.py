"""The process that sends one message to one recipient.

    python -m gputui.agent.notify.sender RESULT_FD < delivery.json

It outlives the agent that started it, so that a message is neither lost nor sent again when the agent is killed: it
holds a lock on its file until it ends, and writes its `Receipt` there. Only this process imports apprise. The delivery
comes on standard input because an address may contain secrets, which a command line would show.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.redaction import Redactor, secrets_in
from gputui.core.text import clean, clip
from gputui.runs.notices import Message, Recipient, obstacle_to

# Services and mail servers may be slow, and one that is given up too early is sent the message twice.
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0  # services answer in seconds, mail servers that check for spam in tens
COMMAND_SECONDS = 120.0  # twice an answer: a script may send by itself
# The end of a process that hangs.
SEND_SECONDS = 180
PROBLEM_CELLS = 200  # two lines of a terminal
STDERR_BYTES = 1 << 16  # only its last line is shown


class Delivery(Struct, frozen=True):
    """A message and who is to get it."""

    recipient: Recipient
    message: Message


class Receipt(Struct, frozen=True):
    """The outcome of sending a message.

    Attributes:
        problem: redacted; None after a success.
        unsent: the message was surely not sent. One that nobody has answered may have arrived.
    """

    problem: str | None = None
    unsent: bool = False


def main() -> None:
    """Send the message on standard input, and write the receipt to the descriptor of the argument."""
    signal.alarm(SEND_SECONDS)
    delivery = msgspec.json.decode(sys.stdin.buffer.read(), type=Delivery)
    os.pwrite(int(sys.argv[1]), msgspec.json.encode(send(delivery)), 0)


def send(delivery: Delivery) -> Receipt:
    """Send a message."""
    to = delivery.recipient.to
    message = delivery.message
    if isinstance(to, str):
        obstacle = obstacle_to(delivery.recipient)
        if obstacle is not None:
            return Receipt(obstacle, unsent=True)
        receipt = _post(to, message)
        secrets = {to, *secrets_in(os.environ, {}, (to,))}
    else:
        problem = run_command(to, message)
        secrets = secrets_in(os.environ, {}, to)
        receipt = Receipt(problem, unsent=problem is not None)
    if receipt.problem is None:
        return receipt
    return replace(receipt, problem=clip(clean(Redactor(secrets).text(receipt.problem)), PROBLEM_CELLS))


def run_command(command: tuple[str, ...], message: Message, seconds: float = COMMAND_SECONDS) -> str | None:
    """Run a command with the text on standard input and the fields in its environment.

    Background processes that it leaves, as mail programs do, are not waited for. After
    ``seconds``, its process group is killed.

    Returns:
        The problem, or None.
    """
    text = f"{message.title}\n\n{message.body}\n"
    # A file, because a pipe stays open while a background process holds it.
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **environment_of(message.fields)},
                start_new_session=True,
            )
        except OSError as error:
            return f"{command[0]} cannot be started: {error.strerror or error}"
        try:
            process.communicate(text.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            # Not reaped yet, so that its PID cannot be another's.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"the command took longer than {seconds:.0f} s"
        if process.returncode == 0:
            return None
        errors.seek(0)
        printed = errors.read()[-STDERR_BYTES:].decode("utf-8", "replace").strip().splitlines()
    problem = f"the command ended with code {process.returncode}"
    if printed:
        problem += f": {printed[-1]}"
    return problem


def environment_of(fields: Mapping[str, str]) -> dict[str, str]:
    """The variables of a command: ``GPUTUI_TITLE`` for the field ``title``."""
    return {f"GPUTUI_{name.upper()}": value for name, value in fields.items()}


def _post(address: str, message: Message) -> Receipt:
    """Send a message by apprise."""
    import apprise

    apprise.URLBase.socket_connect_timeout = CONNECT_SECONDS
    apprise.URLBase.socket_read_timeout = ANSWER_SECONDS
    service = apprise.Apprise(address)
    # apprise tells of reasons only by its log.
    with apprise.LogCapture(level=logging.DEBUG, fmt="%(levelname)s %(message)s") as captured:  # type: ignore[no-untyped-call]
        is_sent = service.notify(
            body=message.body,
            title=message.title,
            notify_type=_apprise_type(message),
            body_format=apprise.NotifyFormat.TEXT,
        )
        log = captured.getvalue()
    if is_sent:
        return Receipt()
    if "Read timed out" in log:
        return Receipt("it did not answer in time; the message may have arrived, and is not sent again")
    reasons = re.findall(r"^(?:INFO|WARNING|ERROR) (.+?)\.?$", log, re.MULTILINE)
    reason = reasons[-1] if reasons else "the service did not take it"
    return Receipt(reason, unsent=True)


def _apprise_type(message: Message) -> str:
    """The type of a message in apprise, which chooses its colour or sign."""
    if message.event == "run_succeeded":
        return "success"
    return {"info": "info", "warning": "warning", "error": "failure"}[message.severity]


if __name__ == "__main__":
    main()
