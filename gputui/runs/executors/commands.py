"""Commands of a target, each with a deadline: what they answer, and what it means that they do not."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import Struct

CALL_SECONDS = 30.0  # a busy controller answers in tens of seconds

# The variables by which a target's commands find programs, keys and clusters. What Slurm sets in a
# job describes that job, and would change another.
_CLIENT_VARIABLES = re.compile(
    r"HOME|PATH|USER|LOGNAME|SHELL|LANG|TMPDIR|SSH_AUTH_SOCK|RAY_.*|(?i:https?|all|no)_proxy"
    r"|SLURM_(?!JOB|STEP|TASK|NODE|NTASKS|NPROCS|NNODES|CPU|MEM|GPU|TRES).*"
)

# The C library's messages for ENOSPC and EDQUOT, after which a program may print more.
_NO_ROOM = ("No space left on device", "Disk quota exceeded")


class UnreachableError(Exception):
    """The target gave no valid answer: the job's state is unknown, and nothing has failed. The text
    says why."""


class MissingProgramError(UnreachableError):
    """A command of the target does not exist."""


class TargetRefusalError(Exception):
    """The target permanently refuses the job; the text is the target's message."""


class CommandResult(Struct, frozen=True):
    """The result of an external command."""

    code: int
    output: str
    errors: str

    @property
    def words(self) -> str:
        """That the disk is full, or else the last line of its output."""
        text = self.errors or self.output
        if (no_room := next((message for message in _NO_ROOM if message in text), None)) is not None:
            return no_room
        return last_line(text) or f"it ended with code {self.code} and said nothing"


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment with which the commands of targets are run."""
    return {name: value for name, value in environ.items() if _CLIENT_VARIABLES.fullmatch(name)}


class TargetShell:
    """Runs the target's commands on this machine.

    ``environment`` are their variables; None is `client_environment` of this process.
    """

    environment: Mapping[str, str] | None = None

    def call(self, argv: Sequence[str], input_text: str = "", seconds: float = CALL_SECONDS) -> CommandResult:
        """Run a command with ``input_text`` as its input.

        Raises:
            MissingProgramError: it does not exist.
            UnreachableError: it cannot be run, or times out.
        """
        environment = self.environment
        if environment is None:
            environment = client_environment(os.environ)
        try:
            done = subprocess.run(
                list(argv),
                # Names of files may be no UTF-8.
                input=input_text.encode("utf-8", "surrogateescape"),
                capture_output=True,
                timeout=seconds,
                env=environment,
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"{argv[0]} did not answer within {seconds:.0f} s") from None
        except (FileNotFoundError, PermissionError) as error:
            raise MissingProgramError(f"{argv[0]}: {error.strerror or error}") from error
        except OSError as error:
            raise UnreachableError(f"{argv[0]}: {error.strerror or error}") from error
        output, errors = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        return CommandResult(done.returncode, output, errors)


def last_line(text: str) -> str:
    """The last line that is not blank; empty if there is none. Text of a site or of ``setup`` may
    come before."""
    return (text.strip().splitlines() or [""])[-1].strip()[:300]
