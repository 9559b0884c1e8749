"""The kinds of incidents, as data."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

SHARED_OOM = "shared_gpu_oom"


class Tier(IntEnum):
    """The distance of a finding from the cause. A nearer one wins, whatever the log's order."""

    CAUSE = 0
    SYMPTOM = 1  # a process timed out waiting; the one it waited for often looks healthy in the log
    CONSEQUENCE = 2  # a process failed because another one ended


class Kind(Struct, frozen=True):
    """One kind of incident, named as in profiles, the database and JSON.

    ``title`` is for headings, ``says`` a sentence in which ``{who}`` is "rank 1" or "the run",
    ``help`` one for the documentation. ``deterministic``: never retried, because it would fail in
    the same way. ``needs_step``: never retried before the first step, as it then suggests a wrong
    setup.
    """

    name: str
    title: str
    says: str
    help: str
    tier: Tier = Tier.CAUSE
    deterministic: bool = False
    needs_step: bool = False


_KINDS = (
    # memory
    Kind("cuda_oom", "out of GPU memory", "{who} ran out of GPU memory",
         "GPU memory could not be allocated."),
    Kind(SHARED_OOM, "out of the memory of a shared GPU",
         "{who} ran out of GPU memory while other runs were on the GPU",
         "The same in a run that shares its GPU."),
    Kind("host_oom", "out of host memory", "{who} ran out of memory on the host",
         "The OOM killer struck, or memory could not be allocated."),
    Kind("memory_leak", "host memory leak",
         "{who} held more and more of the host's memory until it was nearly used up",
         "Memory grew steadily until it was nearly used up."),
    Kind("shm_full", "shared memory full", "{who} found no room in shared memory (/dev/shm)",
         "Data loader workers or NCCL got no shared memory."),
    # communication
    Kind("nccl_timeout", "collective timed out",
         "{who} waited in vain for the other ranks in a collective operation",
         "NCCL's watchdog or gloo gave up waiting for a rank.", tier=Tier.SYMPTOM),
    Kind("nccl_error", "NCCL error", "{who} met an NCCL error",
         "NCCL reported an error of no other kind.", tier=Tier.SYMPTOM),
    Kind("peer_lost", "lost another rank",
         "{who} lost the connection to another rank, and nothing says why that one ended",
         "A connection broke, mostly because another rank ended.", tier=Tier.CONSEQUENCE),
    Kind("rank_left_early", "a rank ended early",
         "{who} ended without an error while the other ranks went on",
         "A rank exited with code 0 while others went on."),
    Kind("port_in_use", "port in use", "{who} found its network port already in use",
         "A port that ranks need was taken."),
    Kind("rendezvous", "ranks did not meet", "{who} could not join the other ranks at the start",
         "The ranks did not find each other in time."),
    Kind("hang", "no progress", "{who} made no progress any more",
         "No new step for longer than the run's history explains.", tier=Tier.SYMPTOM),
    # ends of processes
    Kind("killed", "killed from outside", "{who} was killed from outside",
         "SIGKILL or the like, not from gputui or the OOM killer."),
    Kind("segfault", "crash in native code", "{who} crashed in native code",
         "SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT."),
    Kind("user_exception", "exception in the script", "{who} raised an exception",
         "A Python exception of no other kind.", needs_step=True),
    Kind("nonzero_exit", "ended with an error code", "{who} ended with an error code",
         "An exit code other than 0 without a traceback.", needs_step=True),
    Kind("stopped_outside", "stopped from outside",
         "{who} was asked to stop, but not through gputui",
         "SIGTERM, SIGINT or SIGHUP from outside."),
    Kind("interrupted", "machine rebooted",
         "the machine was rebooted or lost power during the attempt",
         "The machine rebooted during the attempt."),
    Kind("shim_lost", "supervisor process lost",
         "the process that watched over the attempt vanished, so that how it ended is not known",
         "The attempt's shim was killed and left no exit record."),
    Kind("unkillable", "process cannot be killed", "{who} does not react to SIGKILL",
         "SIGKILL has no effect: it hangs in a driver, or is another user's.", deterministic=True),
    # a scheduler elsewhere
    Kind("preempted", "preempted", "{who} had to give way to another job on its target",
         "The target's scheduler preempted the job."),
    Kind("time_limit", "time limit reached", "{who} reached its time limit on its target",
         "The target's scheduler ended the job at its limit."),
    Kind("node_fail", "node failed", "the node of {who} failed",
         "The target's node failed, or its job left no record."),
    # the set-up
    Kind("import_error", "import failed", "{who} could not import a module",
         "ImportError or ModuleNotFoundError.",
         deterministic=True),
    Kind("config_error", "wrong set-up", "{who} rejected its arguments or set-up",
         "Wrong arguments, a missing script or a syntax error.", deterministic=True),
    Kind("launch_failed", "could not be started", "the command could not be started",
         "The program is missing or may not be executed.", deterministic=True),
    Kind("lease_conflict", "GPU taken by another home",
         "a GPU was taken meanwhile by a run of another gputui home",
         "Another process had locked a GPU when the attempt began."),
    Kind("incompatible_checkpoint", "checkpoint does not fit",
         "{who} could not load the checkpoint into this model",
         "The checkpoint's names or sizes are not those of the model.", deterministic=True),
    Kind("corrupt_checkpoint", "damaged checkpoint", "{who} could not read the checkpoint",
         "The checkpoint that it resumed from is damaged."),
    # numbers
    Kind("nan_loss", "loss is not a number", "{who} saw a loss or gradient that is not finite",
         "The loss or gradient norm became NaN or infinite."),
    Kind("loss_spike", "loss jumped", "the loss rose far above its recent values and stayed there",
         "The loss stays far above its recent median."),
    Kind("straggler", "slow rank", "{who} is much slower than the others",
         "A rank is much slower than the others; only reported."),
    # hardware and driver
    Kind("illegal_access", "illegal GPU access", "{who} crashed in a GPU kernel",
         "An illegal memory access, a device-side assertion or a failed launch."),
    Kind("ecc", "GPU memory error", "{who} met an uncorrectable error in the GPU's memory",
         "An uncorrectable error of the GPU's memory."),
    Kind("nvlink_error", "NVLink error", "{who} met an NVLink error",
         "An uncorrectable error of a link between GPUs."),
    Kind("gpu_lost", "GPU lost", "{who} lost its GPU",
         "The GPU fell off the bus or does not answer."),
    Kind("gpu_busy", "GPU not available", "{who} found its GPU busy or unavailable",
         "Another process has the GPU exclusively, or it needs a reset."),
    Kind("overheating", "GPU too hot", "the GPU of {who} became so hot that it lowered its clocks",
         "Heat lowers the GPU's clocks; only reported."),
    Kind("driver_mismatch", "driver does not fit", "{who} could not use the NVIDIA driver",
         "The driver was updated without a reboot, or is too old.",
         deterministic=True),
    Kind("cuda_init", "CUDA could not start", "{who} could not initialise CUDA",
         "No CUDA device is visible, or the driver does not initialise.", deterministic=True),
    # data and disks
    Kind("dataloader_killed", "data loader worker died", "{who} lost a data loader worker",
         "A data loader worker died."),
    Kind("bad_sample", "data could not be loaded", "{who} could not load a sample",
         "An exception in a data loader worker."),
    Kind("dataloader_stall", "data loader timed out", "{who} waited in vain for its data loader",
         "A data loader gave no batch within its timeout."),
    Kind("resource_limit", "limit of files or processes reached",
         "{who} reached a limit on open files, threads or processes",
         "Too many open files, threads or processes."),
    Kind("disk_full", "disk full", "{who} found no space left on the disk",
         "No space or quota was left for a write."),
    Kind("read_only_fs", "disk failed", "{who} met a file system that is read-only or failing",
         "A file system became read-only or reported I/O errors.", deterministic=True),
    # gputui's own verdicts
    Kind("crash_loop", "crash loop", "the same trouble came back again and again without progress",
         "Several attempts in a row got no further.", deterministic=True),
    Kind("unknown", "unknown cause", "the run ended for a reason that its logs do not tell",
         "Exit status, error files and logs show no cause."),
)  # fmt: skip

KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""Every kind by its name, in the order of the documentation."""


def kind_title(name: str) -> str:
    """The words for a kind of incident; those of its name for one that another version stored."""
    if name in KINDS:
        return KINDS[name].title
    return name.replace("_", " ")
