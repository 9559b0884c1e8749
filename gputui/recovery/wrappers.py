"""Reports of programs that started another one and name how it ended: make, a shell, subprocess,
DeepSpeed. They are no cause themselves. Pure."""

from __future__ import annotations

import re
import signal
from pathlib import PurePath

from gputui.recovery.tracebacks import Chain
from gputui.runs.logs import lines_of

_TYPES = frozenset({"ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException"})
_COMMAND_ENDED = re.compile(
    r"Command (?P<command>.*) (?:returned non-zero exit status (?P<code>\d+)"
    r"|died with (?:<Signals\.\w+: (?P<signal>\d+)>|unknown signal (?P<unknown>\d+)))\.",
    re.DOTALL,
)
_MAKE = re.compile(
    r"^make(?:\[\d+\])?: \*\*\* \[.*\] "
    r"(?:Error (?P<code>\d+)|(?P<signal>[A-Z][\w ]*?)(?: \(core dumped\))?)$"
)
# DeepSpeed's launcher always names the command that it started last, which is no rank's.
_DEEPSPEED = re.compile(r"\] exits with return code = (?P<code>-?\d+)$")
# GNU make and shells name a signal as strsignal(3) does.
_SIGNALS = {signal.strsignal(number.value): number.value for number in signal.Signals}
_LINE = re.compile(
    r"^(?:make(?:\[\d+\])?: (?:\*\*\* \[|Leaving directory|Entering directory)"
    r"|\S+: line \d+: +\d+ "
    r"(?:Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction)\b"
    r"|(?:\w+\.)*(?:ChildFailedError|CalledProcessError|ProcessExitedException): )"
)


def is_wrapper(chain: Chain) -> bool:
    """Return whether an exception only reports the end of a child process. In a rank it counts."""
    return not chain.ranked and chain.raised[-1].type.rsplit(".", 1)[-1] in _TYPES


def is_wrapper_line(line: str) -> bool:
    return _LINE.match(line) is not None


def wrapped_code(text: str) -> int | None:
    """The exit code of the innermost process that a wrapper reports; negative for a signal."""
    for line in lines_of(text):
        if (match := _MAKE.match(line)) is not None:
            if match["code"] is not None:
                return shell_code(int(match["code"]))
            if match["signal"] in _SIGNALS:
                return -_SIGNALS[match["signal"]]
        elif (match := _DEEPSPEED.search(line)) is not None:
            return shell_code(int(match["code"]))
        elif is_wrapper_line(line) and (match := _COMMAND_ENDED.search(line)) is not None:
            number = match["signal"] or match["unknown"]
            if number:
                return -int(number)
            return shell_code(int(match["code"]))
    return None


def without_commands(text: str) -> str:
    """The message with a command line replaced by the program's name."""
    match = _COMMAND_ENDED.search(text)
    if match is None:
        return text
    arguments = re.findall(r"[^\s\[\]',\"]+", match["command"])
    name = PurePath(arguments[0]).name if arguments else "command"
    number = match["signal"] or match["unknown"]
    how = f"ended with code {match['code']}"
    if number:
        how = f"ended by signal {number}"
    return f"{text[: match.start()]}{name} {how}{text[match.end() :]}"


def shell_code(code: int) -> int:
    """The exit code behind a shell's, which is 128 + N if signal N killed its last command."""
    if 128 < code < 128 + signal.NSIG:
        return 128 - code
    return code
