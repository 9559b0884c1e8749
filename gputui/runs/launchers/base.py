"""The base class of launchers: builds an attempt's command, and names its output's files."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gputui.runs.checks import CheckResult

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec

ANY_PORT = 0
"""Stands for any free port, for a rendezvous on a machine that is not chosen yet."""

OUTPUT = "output.log"
"""The output of the launcher, and of its ranks if they have no files of their own."""

RANK_OUTPUT = "ranks/*/attempt_0/0/{stream}.log"
"""torchrun's files of rank 0's streams, below a node's folder."""


class Node(Struct, frozen=True):
    """One machine of an attempt, with the GPUs of its CUDA_VISIBLE_DEVICES and its number of ranks."""

    host: str
    gpus: tuple[str, ...]
    ranks: int


class Placement(Struct, frozen=True):
    """The nodes of an attempt.

    With several, the first host, the port and the number may be placeholders that each node fills in.

    Attributes:
        nodes: rank 0 is on the first one.
        port: the free TCP port of the rendezvous on the first node, or ANY_PORT.
        number: the node whose command is built.
    """

    nodes: tuple[Node, ...]
    port: int | str
    number: int | str = 0

    @classmethod
    def here(cls, gpus: tuple[str, ...], ranks: int, port: int) -> Placement:
        """This machine as the only node; its ranks meet on loopback."""
        return cls((Node("127.0.0.1", gpus, ranks),), port)

    @property
    def ranks(self) -> int:
        """The world size."""
        return sum(node.ranks for node in self.nodes)

    @property
    def endpoint(self) -> str:
        """``host:port`` of the rendezvous."""
        return f"{self.nodes[0].host}:{self.port}"


class Invocation(Struct, frozen=True):
    """The program of one attempt.

    Attributes:
        argv: the script or ``-m module``, or the whole command, with all arguments.
        folder: that of the attempt's first node.
        name: unique to the attempt on this machine.
    """

    argv: tuple[str, ...]
    folder: str
    name: str


class Typed(Struct, frozen=True):
    """The command line of a launcher as a person types it, for `gputui init`.

    Attributes:
        programs: names of its program, or of its module after ``python -m``.
        subcommand: the word after it.
        count: options for the number of processes.
        flags: options without a value.
        replaced: options that gputui sets itself and drops from a typed line; None for all.
    """

    programs: tuple[str, ...]
    subcommand: str | None = None
    count: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    replaced: tuple[str, ...] | None = None


class Launcher:
    """The base class: one process, started directly.

    Attributes:
        name: the value of a profile's key ``launcher``.
        title: its name in sentences about an end that is no rank's; None if it is the program
            itself.
        takes_command: its profile has the key ``command``; else ``script`` or ``module``, and an
            interpreter.
        starts_ranks: it starts ``nproc`` processes.
        only_relays: its exit code only says that a rank ended or that the launcher failed.
        needs_port: it cannot find a free port itself for ANY_PORT.
        spans_nodes: it can start the ranks of one node among several.
        modules: the modules that the interpreter must find, each with the package to install.
    """

    name: str
    title: str | None = None
    takes_command = False
    starts_ranks = False
    only_relays = False
    needs_port = False
    spans_nodes = False
    modules: tuple[tuple[str, str], ...] = ()
    typed: Typed | None = None

    def argv(self, spec: RunSpec, placement: Placement, invocation: Invocation) -> tuple[str, ...]:
        """The argument vector of one attempt."""
        raise NotImplementedError

    def environment(self, placement: Placement, invocation: Invocation) -> dict[str, str]:
        """Variables besides those of every attempt.

        PET_LOG_DIR is torchrun's default of --log-dir, so that the error files are found of any torchrun that the
        program starts.
        """
        return {"PET_LOG_DIR": f"{invocation.folder}/ranks"}

    def rank_output(self, ranks: int) -> str:
        """A glob below a node's folder of its first rank's output, with ``{stream}`` if apart."""
        return OUTPUT

    def log_files(self, folder: Path, ranks: int) -> list[Path]:
        """The existing files with the output of a node's first rank."""
        return sorted(folder.glob(self.rank_output(ranks).replace("{stream}", "std*")))

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        """The quick checks of what a launch needs."""
        if not self.starts_ranks:
            return [CheckResult("port", "skip", f"launcher {self.name} needs none")]
        try:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
        except OSError as error:
            remedy = f"{self.name}'s processes meet on loopback; see whether it is up and ports are left (ss -s)"
            return [CheckResult("port", "fail", f"no free TCP port on 127.0.0.1: {error.strerror}", remedy)]
        return [CheckResult("port", "pass", "a free port on 127.0.0.1 for the processes to meet")]
