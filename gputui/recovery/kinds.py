"""The kinds of incidents, as data."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from msgspec import Struct

from gputui.store.gpu_use import CUDA_OOM

SHARED_OOM = "shared_gpu_oom"


class Tier(IntEnum):
    """The distance of a finding from the cause. A nearer one wins, whatever the log's order."""

    CAUSE = 0
    SYMPTOM = 1  # a process timed out waiting; the one it waited for often looks healthy in the log
    CONSEQUENCE = 2  # a process failed because another one ended


Fault = Literal["memory", "parameters", "training", "setup", "person", "machine"]
"""What a kind is the fault of: too little memory for the run; parameters that the script refuses; a loss that diverges;
an environment in which it cannot start; a person or a program that ended it; anything else of the machine."""


class Kind(Struct, frozen=True):
    """One kind of incident. No field has a default: whoever adds a kind answers each question.

    Attributes:
        name: as in profiles, the database and JSON.
        title: for headings.
        says: a sentence in which ``{who}`` is "rank 1", or the ``subject`` where no rank is known.
        help: the meaning, for the documentation.
        tier: how far its messages are from the cause.
        fault: what causes it. A study's point is at fault unless the machine is.
        retry: whether recovery may start the run again: never where it would fail in the same way, and only after
            a first step where an earlier one suggests a wrong setup.
        subject: who does it where no rank is known: the launcher, the run or a process of it.
        seen_in: whether a message tells it, or only an exit status, beside which the last line of the log is shown.
        may_be_checkpoint: whether a checkpoint may cause it, so that one is doubted if its attempt ends by it before
            the first step.
        may_follow: what it may merely follow from: an error that native code printed, a kill by gputui or a launcher
            (as after the loss of a rank), or the loss of a rank alone.
        missing_memory: how its message says how much memory was missing: in units (``2.00 GiB``) or in bytes; None if
            it does not.
        of_nccl: whether NCCL reports it, for which an alert is raised.
    """

    name: str
    title: str
    says: str
    help: str
    tier: Tier
    fault: Fault
    retry: Literal["always", "after_first_step", "never"]
    subject: Literal["launcher", "run", "process"]
    seen_in: Literal["message", "status"]
    may_be_checkpoint: bool
    may_follow: Literal["nothing", "native_error", "kill", "lost_rank"]
    missing_memory: Literal["units", "bytes"] | None
    of_nccl: bool


_KINDS = (
    # memory
    Kind(
        CUDA_OOM, title="out of GPU memory", says="{who} ran out of GPU memory",
        help="GPU memory could not be allocated.",
        tier=Tier.CAUSE, fault="memory", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory="units", of_nccl=False,
    ),
    Kind(
        SHARED_OOM, title="out of the memory of a shared GPU",
        says="{who} ran out of GPU memory while other runs were on the GPU",
        help="The same in a run that shares its GPU.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory="units", of_nccl=False,
    ),
    Kind(
        "host_oom", title="out of host memory", says="{who} ran out of memory on the host",
        help="The OOM killer struck, or memory could not be allocated.",
        tier=Tier.CAUSE, fault="memory", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory="bytes", of_nccl=False,
    ),
    Kind(
        "memory_leak", title="host memory leak",
        says="{who} held more and more of the host's memory until it was nearly used up",
        help="Memory grew steadily until it was nearly used up.",
        tier=Tier.CAUSE, fault="memory", retry="always",
        subject="run", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "shm_full", title="shared memory full", says="{who} found no room in shared memory (/dev/shm)",
        help="Data loader workers or NCCL got no shared memory.",
        tier=Tier.CAUSE, fault="memory", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # communication
    Kind(
        "nccl_timeout", title="collective timed out",
        says="{who} waited in vain for the other ranks in a collective operation",
        help="NCCL's watchdog or gloo gave up waiting for a rank.",
        tier=Tier.SYMPTOM, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="native_error", missing_memory=None, of_nccl=True,
    ),
    Kind(
        "nccl_error", title="NCCL error", says="{who} met an NCCL error",
        help="NCCL reported an error of no other kind.",
        tier=Tier.SYMPTOM, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="native_error", missing_memory=None, of_nccl=True,
    ),
    Kind(
        "peer_lost", title="lost another rank",
        says="{who} lost the connection to another rank, and nothing says why that one ended",
        help="A connection broke, mostly because another rank ended.",
        tier=Tier.CONSEQUENCE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="native_error", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "rank_left_early", title="a rank ended early",
        says="{who} ended without an error while the other ranks went on",
        help="A rank exited with code 0 while others went on.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "port_in_use", title="port in use", says="{who} found its network port already in use",
        help="A port that ranks need was taken.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "rendezvous", title="ranks did not meet", says="{who} could not join the other ranks at the start",
        help="The ranks did not find each other in time.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="lost_rank", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "hang", title="no progress", says="{who} made no progress any more",
        help="No new step for longer than the run's history explains.",
        tier=Tier.SYMPTOM, fault="machine", retry="always",
        subject="run", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # ends of processes
    Kind(
        "killed", title="killed from outside", says="{who} was killed from outside",
        help="SIGKILL or the like, not from gputui or the OOM killer.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="status", may_be_checkpoint=False,
        may_follow="kill", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "segfault", title="crash in native code", says="{who} crashed in native code",
        help="SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="status", may_be_checkpoint=True,
        may_follow="kill", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "user_exception", title="exception in the script", says="{who} raised an exception",
        help="A Python exception of no other kind.",
        tier=Tier.CAUSE, fault="parameters", retry="after_first_step",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "nonzero_exit", title="ended with an error code", says="{who} ended with an error code",
        help="An exit code other than 0 without a traceback.",
        tier=Tier.CAUSE, fault="parameters", retry="after_first_step",
        subject="launcher", seen_in="status", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "stopped_outside", title="stopped from outside", says="{who} was asked to stop, but not through gputui",
        help="SIGTERM, SIGINT or SIGHUP from outside.",
        tier=Tier.CAUSE, fault="person", retry="always",
        subject="run", seen_in="message", may_be_checkpoint=False,
        may_follow="kill", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "interrupted", title="machine rebooted", says="the machine was rebooted or lost power during the attempt",
        help="The machine rebooted during the attempt.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "shim_lost", title="supervisor process lost",
        says="the process that watched over the attempt vanished, so that how it ended is not known",
        help="The attempt's shim was killed and left no exit record.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="status", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "unkillable", title="process cannot be killed", says="{who} does not react to SIGKILL",
        help="SIGKILL has no effect: it hangs in a driver, or is another user's.",
        tier=Tier.CAUSE, fault="machine", retry="never",
        subject="process", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # a scheduler elsewhere
    Kind(
        "preempted", title="preempted", says="{who} had to give way to another job on its target",
        help="The target's scheduler preempted the job.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="run", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "time_limit", title="time limit reached", says="{who} reached its time limit on its target",
        help="The target's scheduler ended the job at its limit.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="run", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "node_fail", title="node failed", says="the node of {who} failed",
        help="The target's node failed, or its job left no record.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="run", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # the set-up
    Kind(
        "import_error", title="import failed", says="{who} could not import a module",
        help="ImportError or ModuleNotFoundError.",
        tier=Tier.CAUSE, fault="setup", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "config_error", title="wrong set-up", says="{who} rejected its arguments or set-up",
        help="Wrong arguments, a missing script or a syntax error.",
        tier=Tier.CAUSE, fault="parameters", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "launch_failed", title="could not be started", says="the command could not be started",
        help="The program is missing or may not be executed.",
        tier=Tier.CAUSE, fault="setup", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "lease_conflict", title="GPU taken by another home",
        says="a GPU was taken meanwhile by a run of another gputui home",
        help="Another process had locked a GPU when the attempt began.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "incompatible_checkpoint", title="checkpoint does not fit",
        says="{who} could not load the checkpoint into this model",
        help="The checkpoint's names or sizes are not those of the model.",
        tier=Tier.CAUSE, fault="parameters", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "corrupt_checkpoint", title="damaged checkpoint", says="{who} could not read the checkpoint",
        help="The checkpoint that it resumed from is damaged.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # numbers
    Kind(
        "nan_loss", title="loss is not a number", says="{who} saw a loss or gradient that is not finite",
        help="The loss or gradient norm became NaN or infinite.",
        tier=Tier.CAUSE, fault="training", retry="always",
        subject="run", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "loss_spike", title="loss jumped", says="the loss rose far above its recent values and stayed there",
        help="The loss stays far above its recent median.",
        tier=Tier.CAUSE, fault="training", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "straggler", title="slow rank", says="{who} is much slower than the others",
        help="A rank is much slower than the others; only reported.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # hardware and driver
    Kind(
        "illegal_access", title="illegal GPU access", says="{who} crashed in a GPU kernel",
        help="An illegal memory access, a device-side assertion or a failed launch.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="native_error", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "ecc", title="GPU memory error", says="{who} met an uncorrectable error in the GPU's memory",
        help="An uncorrectable error of the GPU's memory.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "nvlink_error", title="NVLink error", says="{who} met an NVLink error",
        help="An uncorrectable error of a link between GPUs.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "gpu_lost", title="GPU lost", says="{who} lost its GPU",
        help="The GPU fell off the bus or does not answer.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "gpu_busy", title="GPU not available", says="{who} found its GPU busy or unavailable",
        help="Another process has the GPU exclusively, or it needs a reset.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "overheating", title="GPU too hot", says="the GPU of {who} became so hot that it lowered its clocks",
        help="Heat lowers the GPU's clocks; only reported.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "driver_mismatch", title="driver does not fit", says="{who} could not use the NVIDIA driver",
        help="The driver was updated without a reboot, or is too old.",
        tier=Tier.CAUSE, fault="machine", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "cuda_init", title="CUDA could not start", says="{who} could not initialise CUDA",
        help="No CUDA device is visible, or the driver does not initialise.",
        tier=Tier.CAUSE, fault="machine", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # data and disks
    Kind(
        "dataloader_killed", title="data loader worker died", says="{who} lost a data loader worker",
        help="A data loader worker died.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="native_error", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "bad_sample", title="data could not be loaded", says="{who} could not load a sample",
        help="An exception in a data loader worker.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "dataloader_stall", title="data loader timed out", says="{who} waited in vain for its data loader",
        help="A data loader gave no batch within its timeout.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "resource_limit", title="limit of files or processes reached",
        says="{who} reached a limit on open files, threads or processes",
        help="Too many open files, threads or processes.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "disk_full", title="disk full", says="{who} found no space left on the disk",
        help="No space or quota was left for a write.",
        tier=Tier.CAUSE, fault="machine", retry="always",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "read_only_fs", title="disk failed", says="{who} met a file system that is read-only or failing",
        help="A file system became read-only or reported I/O errors.",
        tier=Tier.CAUSE, fault="machine", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=False,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    # gputui's own verdicts
    Kind(
        "crash_loop", title="crash loop", says="the same trouble came back again and again without progress",
        help="Several attempts in a row got no further.",
        tier=Tier.CAUSE, fault="machine", retry="never",
        subject="launcher", seen_in="message", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
    Kind(
        "unknown", title="unknown cause", says="the run ended for a reason that its logs do not tell",
        help="Exit status, error files and logs show no cause.",
        tier=Tier.CAUSE, fault="parameters", retry="always",
        subject="launcher", seen_in="status", may_be_checkpoint=True,
        may_follow="nothing", missing_memory=None, of_nccl=False,
    ),
)  # fmt: skip

KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""Every kind by its name, in the order of the documentation."""


def kind_of(name: str) -> Kind:
    """The kind with a name; ``unknown`` for a name that another version stored."""
    return KINDS.get(name, KINDS["unknown"])


def kind_title(name: str) -> str:
    """The words for a kind of incident; those of its name for one that another version stored."""
    if name in KINDS:
        return KINDS[name].title
    return name.replace("_", " ")
