"""The base class of launchers: builds the argument vector of an attempt, and names the files of its output."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.runs.checks import CheckResult

if TYPE_CHECKING:
    from gputui.runs.spec import RunSpec

ANY_PORT = 0
"""The port of a rendezvous on a machine that is not known yet: one that is free there."""

OUTPUT = "output.log"
"""What the launcher itself prints, and all that its ranks print where it keeps no file for each of them."""

RANK_OUTPUT = "ranks/*/attempt_0/0/{stream}.log"
"""Where torchrun keeps the streams of rank 0, below its --log-dir."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of an attempt: its host name or address, what CUDA_VISIBLE_DEVICES is to hold there (empty: no GPU at
    all), and its number of ranks."""

    host: str
    gpus: tuple[str, ...]
    ranks: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt runs. Rank 0 is on the first node, where ``port`` is the free TCP port for the rendezvous,
    or ANY_PORT. ``number`` is that of the node whose command is made. On several nodes the first one's host, the port
    and the number may be placeholders, which each node fills in."""

    nodes: tuple[Node, ...]
    port: int | str
    number: int | str = 0

    @classmethod
    def here(cls, gpus: tuple[str, ...], ranks: int, port: int) -> Placement:
        """On this machine alone; its ranks meet on loopback."""
        return cls((Node("127.0.0.1", gpus, ranks),), port)

    @property
    def ranks(self) -> int:
        """The world size."""
        return sum(node.ranks for node in self.nodes)

    @property
    def endpoint(self) -> str:
        """``host:port`` of the rendezvous."""
        return f"{self.nodes[0].host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a launcher starts for one attempt. ``words`` are the script or ``-m module``, or the whole command, with all
    arguments; ``folder`` is the attempt's on its first node; ``name`` is the attempt's own on this machine."""

    words: tuple[str, ...]
    folder: str
    name: str


@dataclass(frozen=True, slots=True)
class Typed:
    """How a person types a launcher, so that `gputui init` knows it.

    Attributes:
        programs: names of its program, or of its module behind ``python -m``; subcommand: the word behind it.
        count: options for the number of processes; flags: options without a value.
        replaced: the options that gputui sets itself, so that a typed one may be dropped; None: every option.
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
        title: who it is in sentences about an end that is no rank's; None if the program itself is.
        takes_command: its profile has the key ``command``; else ``script`` or ``module``, and an interpreter.
        starts_ranks: it starts the number of processes that ``nproc`` says.
        only_relays: its own end says nothing but that a rank ended, or that the launcher was at fault.
        needs_port: it does not find a free port itself where it is given ANY_PORT.
        spans_nodes: it starts the ranks of one node among several.
        modules: what the interpreter must find for it, with the package to install for each.
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
        """Variables beyond those of every attempt. Any torchrun that the program starts keeps the error files of its
        ranks where they are looked for: PET_LOG_DIR is the default of its --log-dir."""
        return {"PET_LOG_DIR": f"{invocation.folder}/ranks"}

    def rank_output(self, ranks: int) -> str:
        """A glob below a node's folder for what its first rank prints, with ``{stream}`` (stdout or stderr) where
        each has its own file."""
        return OUTPUT

    def log_files(self, folder: Path, ranks: int) -> list[Path]:
        """The files of a node's ``folder`` that hold what its first rank printed, as far as they are there."""
        return sorted(folder.glob(self.rank_output(ranks).replace("{stream}", "std*")))

    def checks(self, spec: RunSpec) -> list[CheckResult]:
        """What must be there before a launch and takes no time to see."""
        if not self.starts_ranks:
            return [CheckResult("port", "skip", f"launcher {self.name} needs none")]
        try:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
        except OSError as error:
            remedy = f"{self.name}'s processes meet on loopback; see whether it is up and ports are left (ss -s)"
            return [CheckResult("port", "fail", f"no free TCP port on 127.0.0.1: {error.strerror}", remedy)]
        return [CheckResult("port", "pass", "a free port on 127.0.0.1 for the processes to meet")]
