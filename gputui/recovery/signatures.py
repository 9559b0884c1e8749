"""Signatures: the texts by which incidents are recognised, as data.

The texts are those of PyTorch 2 (c10, torch.distributed, torch.utils.data, the caching allocator),
NCCL 2, gloo, CUDA's error strings and CPython, and how other libraries (Triton, XLA, TensorFlow,
CuPy, RMM, ONNX Runtime, Ray, HIP) say that memory ran out. Two sorts:

- EXCEPTIONS match an exception that ended a process: its ``Type: message``.
- LINES match whole lines of a log, from their start: what native code prints before it ends.

A lack of GPU memory is known by its place, not by its sentence: the type of the exception, or a
message that names a GPU and a phrase of running out, where a program states it and does not quote
it. Lines that only give advice are removed before anything is compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.evidence import AttemptGpus
from gputui.recovery.kinds import KINDS, Tier
from gputui.recovery.tracebacks import Chain, Raised, bare, structured
from gputui.runs.logs import lines_of

# Longer messages are searched at their begin and end only, since some patterns take quadratic time.
MATCHED_CHARACTERS = 3000


class Signature(Struct, frozen=True):
    """A pattern and the kind that it indicates. The first match of a table wins.

    Attributes:
        pattern: searched in ``Type: message`` (EXCEPTIONS) or matched from a line's start (LINES).
        within: a function that the exception must have passed through; None for any.
        weak: any other exception of the same chain wins, because this one often only reports it.
        tier: overrides the kind's tier.
        states: does not count where the type is one that quotes texts.
        gpu: what must be known of the attempt's GPUs: "not roomy", for texts that mostly mean a full
            GPU; "present", for texts that name no GPU.
    """

    kind: str
    pattern: re.Pattern[str]
    within: re.Pattern[str] | None = None
    weak: bool = False
    tier: Tier | None = None
    states: bool = False
    gpu: Literal["not roomy", "present"] | None = None

    @property
    def rank(self) -> Tier:
        if self.tier is None:
            return KINDS[self.kind].tier
        return self.tier

    def matches(self, raised: Raised, text: str, gpus: AttemptGpus) -> bool:
        """Return whether an exception has this signature; ``text`` is its text without advice."""
        if self.states and _QUOTING.fullmatch(raised.type):
            return False
        if self.within is not None and not any(map(self.within.search, raised.path)):
            return False
        if self.gpu is not None and (gpus.is_roomy or (self.gpu == "present" and gpus.count == 0)):
            return False
        return self.pattern.search(text) is not None


def _raises(
    kind: str, *patterns: str, within: str | None = None, weak: bool = False, tier: Tier | None = None
) -> Signature:
    text = "|".join(f"(?:{pattern})" for pattern in patterns)
    place = re.compile(within) if within else None
    return Signature(kind, re.compile(text, re.MULTILINE), place, weak, tier)


def _states(kind: str, *patterns: str, gpu: Literal["not roomy", "present"] | None = None) -> Signature:
    return replace(_raises(kind, *patterns), states=True, gpu=gpu)


def _prints(kind: str, pattern: str) -> Signature:
    return Signature(kind, re.compile(pattern))


# Recommendations in messages, which are no evidence.
ADVICE = re.compile(
    r"If reserved but unallocated memory is large.*"
    r"|See documentation for Memory Management.*"
    r"|CUDA kernel errors might be asynchronously reported.*"
    r"|For debugging consider passing CUDA_LAUNCH_BLOCKING.*"
    r"|Compile with `TORCH_USE_CUDA_DSA`.*"
    r"|Device-side assertions were explicitly omitted.*"
    r"|Search for `cuda\w+' in https?://\S+ for more information.*"
    r"|To enable traceback see:.*"
    r"|Please try to raise your shared memory limit\."
    r"|This is typically caused by a remote worker.*"
    r"|Check the logs of the remote worker.*"
    r"|In PyTorch 2\.6, we changed the default value.*"
)

# Types by which Python programs reject a value or quote a text. Every other one, and each exception of
# C++, states what happened.
_QUOTING = re.compile(
    r"(?:\w+\.)*\w*(?:Warning|(?:Assertion|Value|Type|Key|Index|Lookup|Attribute|Name|NotImplemented|Argument|Usage"
    r"|Import|ModuleNotFound|FileNotFound|FileExists|Permission|Syntax|Parse\w*|Validation|Config\w*|Option\w*"
    r"|Setting\w*)Error)"
)
_UNQUOTED = r"(?<!['\"`\w])"
_CANNOT = r"(?:fail(?:ed|ure|s)?|unable|can(?:no|')t|could ?n[o']t)(?: to)?"
# The names of GPUs, of their interfaces, and of libraries that only use GPUs.
_GPU = (
    r"(?:(?i:\b(?:CUDA|HIP|ROCm|[GXN]PU|GPUassert|MPS|MUSA|VRAM|Triton|cuDNN|RMM|device memory)(?:\b|_))"
    r"|\b(?:cuda|cu|hip)[A-Z]\w*|\b(?:CU|HIP|ROC)[A-Z]+_(?=STATUS_|ALLOC)|\bRESOURCE_EXHAUSTED: |\[ONNXRuntimeError\])"
)
# The phrases of running out, without those of the host's memory.
_FULL = (
    r"(?:(?<!not )(?<!not an )(?i:out[ _]of[ _](?:\w+[ _])?memory)|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|\bOOM\b|\bbad_alloc\b|smaller than requested bytes"
    r"|(?i:(?<!host[ _])(?<![a-z])alloc(?:ation)?[ _](?:error|fail(?:ed|ure)?))"
    rf"|(?i:\b{_CANNOT} (?:\w+ ){{0,2}}(?:m|c)?alloc(?:ate|ating)?\b.*"
    r"(?:\d ?(?:[KMGT]i?)?B(?:ytes)?\b|memory|buffer|tensor|workspace|storage|request))"
    r"|(?i:\b(?:insufficient|not enough|no (?:more|free|available)|exhausted) (?:\w+ )?memory))"
)
_GPU_FULL = rf"(?:{_UNQUOTED}(?={_GPU}).*{_FULL}|^(?=.*{_UNQUOTED}{_GPU}).*{_UNQUOTED}{_FULL})"
_HOST = (
    r"(?i:\b(?:cuda)?(?:host|pinned)[ _]?(?:m?alloc|memory|buffer|register)|\bcudaMallocHost|\bdevice:CPU:"
    r"|\bCPU memory\b)"
)
# PyTorch's type, also without its module, and one that names a GPU.
_OF_GPU_MEMORY = r"^(?:(?:torch\.(?:\w+\.)*)?|(?:\w+\.)*\w*(?:Gpu|GPU|Cuda|CUDA|Hip|HIP)\w*)OutOfMemoryError\b"
_OF_MEMORY = (
    r"^(?:\w+\.)*(?:\w*OutOfMemory(?:Error)?|ResourceExhaustedError)(?:: (?!.*(?:No space|quota|open files))|$)"
)
_LIBRARY = r"\b(?i:cublas\w*|cudnn|cusolver|cusparse|curand|cufft|hip\w+|nccl|DNN)\b"
# A program that goes on after an error, or speaks of it, is not ended by it.
_ENDED = r"(?!.*(?i:recover|fall(?:ing|s)? ?back|retry|would|skip|ignor|continu))"

_NO_SPACE = r"(?:No space left|\[Errno 28\]|\((?:os error )?28\)|Disk quota exceeded|\b(?:is|was) full\b)"
_SHARED = r"(?:/dev/shm\b|(?i:shared memory)|[<'\"]/(?:torch|psm)_|\bshm\.h:)"
_NO_SHARED = (
    r"^(?!.*(?i:cuda|kernel|block|hardware)).*(?i:insufficient|out of|not enough|no (?:more|free)) shared memory"
    r"|/dev/shm\b.*\btoo small\b"
)
_NO_THREAD = (
    rf"(?i:\b{_CANNOT} (?:start|create|spawn|launch)\b.{{0,20}}\bthreads?\b|\bthread creation fail"
    r"|\bpthread_create(?:\(\))? fail|thread.*\bResource temporarily unavailable)"
)

_NOT_FINITE = r"(?i:\b(?:nan|inf|infinite|infinity|non-?finite|not finite)\b)"
_OF_TRAINING = r"(?:loss(?:es)?|gradients?|grads?|logits|total norm|grad norm)"
_SAME_CLAUSE = r"(?:[^.;,/'\"]|(?<=\d)\.(?=\d))"
# A message about what may be given says nothing about a training.
_NO_RULE = r"^(?!.*\b(?:must|may|should|one of|expected|allowed)\b).*"

EXCEPTIONS: tuple[Signature, ...] = (
    # Memory first: the texts of other layers quote it.
    _raises("host_oom", r"killed due to the node running low on memory", r"\bjava\.lang\.OutOfMemoryError\b",
            rf"^(?:\w+\.)*ResourceExhaustedError: .*{_HOST}"),
    _states("host_oom", rf"^(?=.*{_HOST}).*{_UNQUOTED}{_FULL}"),
    _raises("cuda_oom", _OF_GPU_MEMORY, r"^(?:\w+\.)*InternalError: .*Dst tensor is not initialized"),
    _states("cuda_oom", _GPU_FULL),
    # Libraries that use no GPU have such types as well.
    _states("cuda_oom", _OF_MEMORY, gpu="present"),
    _states("cuda_oom",
            rf"^(?=.*(?i:cudnn|conv|computation|worked)).*\b(?i:{_CANNOT}|no)\b.{{0,40}}"
            r"\b(?i:algorithm|engine|execution plan)s?\b",
            r"\b(?:CU|HIP|ROC)[A-Z]+_STATUS_(?:NOT_INITIALIZED|INSUFFICIENT_RESOURCES|INTERNAL_ERROR)\b",
            r"when calling `?(?:cu|hip|roc)\w*Create|\binsufficient resources when calling `?(?:cu|hip|roc)",
            rf"\b(?i:{_CANNOT} (?:create|initiali[sz]e)\b).{{0,30}}{_LIBRARY}",
            rf"{_LIBRARY}.{{0,20}}(?i:failed to initiali[sz]e|initiali[sz]ation failed)", gpu="not roomy"),
    _raises("resource_limit", r"unable to \w+ .*: Too many open files \(24\)"),
    _raises("shm_full", r"Error while creating shared memory segment",
            r"is killed by signal: Bus error",
            r"unable to (?:allocate|resize|mmap|write to)(?: \d+ bytes from)? (?:shared memory|file </torch_)",
            r"unable to open shared memory object .*\(12\)", rf"^(?=.*{_SHARED}).*{_NO_SPACE}", _NO_SHARED),
    _raises("host_oom", r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
            r"^(?:\w+\.)*\w*(?<!OutOf)MemoryError\b", r"\Abad_alloc: std::bad_alloc\Z",
            r"\[Errno 12\] Cannot allocate memory",
            r"unable to mmap .*: Cannot allocate memory \(12\)"),
    _states("cuda_oom", rf"{_UNQUOTED}{_FULL}", gpu="present"),
    # Disks
    _raises("disk_full", r"(?:\[Errno |\(os error )(?:28|122)[\])]",
            r"\[enforce fail at inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
            r"PytorchStreamWriter failed writing file", r"\bNo space left on device", r"\bDisk quota exceeded",
            r"(?i:\bnot enough (?:free )?(?:disk )?space\b)"),
    _raises("read_only_fs", r"(?:\[Errno |\(os error )(?:5|30|116)[\])]", r"(?i:\bstale (?:NFS )?file handle)",
            r"\bESTALE\b", r"\bRead-only file system", r"\bInput/output error"),
    _raises("resource_limit", r"\[Errno 24\]", r"received 0 items of ancdata",
            _NO_THREAD, r"(?:\[Errno 11\]|\Asystem_error:) .*Resource temporarily unavailable",
            r"\Asystem_error: Resource temporarily unavailable"),
    # GPUs and driver
    _raises("ecc", r"uncorrectable ECC error encountered"),
    _raises("nvlink_error", r"uncorrectable NVLink error detected", r"Invalid access of peer GPU memory over nvlink"),
    _raises("gpu_lost", r"\bGPU is lost\b", r"NVMLError_GpuIsLost", r"[Ff]allen off the bus"),
    _raises("gpu_busy", r"CUDA-capable device\(s\) is/are busy or unavailable"),
    _raises("driver_mismatch", r"Driver/library version mismatch",
            r"driver version is insufficient for CUDA runtime version",
            r"NVIDIA driver on your system is too old"),
    _raises("illegal_access",
            r"(?:CUDA|HIP) error: (?:an illegal memory access|an illegal instruction|misaligned address|"
            r"device-side assert triggered|unspecified launch failure|invalid program counter|"
            r"operation not supported on global/shared address space|the launch timed out)",
            r"Cuda failure (?:\d+ )?'(?:an illegal memory access|unspecified launch failure)"),
    _raises("cuda_init", r"no CUDA-capable device is detected",
            r"CUDA error: (?:initialization error|system not yet initialized|invalid device ordinal|unknown error)",
            r"CUDA driver initialization failed", r"Unexpected error from cudaGetDeviceCount",
            r"Found no NVIDIA driver on your system", r"No CUDA GPUs are available"),
    # The start: before "lost another rank", whose texts appear in these as well.
    _raises("port_in_use", r"\bEADDRINUSE\b", r"\[Errno 98\]", r"server socket has failed to (?:listen|bind)"),
    _raises("rendezvous", r"^(?:\w+\.)*Rendezvous\w*Error\b", r"Gloo connectFullMesh failed",
            r"Timed out after \d+ seconds waiting for clients",
            r"client socket has (?:timed out|failed to connect)"),
    # Communication
    _raises("config_error", r"\bncclInvalidUsage\b"),
    _raises("peer_lost", r"\bncclRemoteError\b",
            r"gloo/\S+\] .*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed)",
            r"Application timeout caused pair closure",
            r"\b(?:recvValue|recvVector|sendBytes|recvBytes) failed\b",
            r"failed to recv, got 0 bytes", r"NCCL communicator was aborted on rank"),
    _raises("nccl_timeout", r"Watchdog caught collective operation timeout",
            r"watchdog got stuck for \d+ seconds",
            r"gloo/\S+\] Timed out waiting \d+ms for (?:recv|send) operation",
            r"failed to pass monitoredBarrier in \d+ ms",
            r"^(?:\w+\.)*DistStoreError: .*(?:wait timeout|[Tt]imed out)"),
    _raises("nccl_error", r"\bnccl(?:UnhandledCuda|System|Internal)Error\b",
            r"^(?:\w+\.)*DistBackendError: NCCL error in:"),
    # Data
    _raises("dataloader_stall", r"\ARuntimeError: DataLoader timed out after"),
    _raises("dataloader_killed", r"\ARuntimeError: DataLoader worker \(pid \d+\) is killed by signal"),
    _raises("dataloader_killed",
            r"\ARuntimeError: DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly", weak=True),
    # Checkpoints
    _raises("incompatible_checkpoint", r"Error\(s\) in loading state_dict for",
            r"loaded state dict (?:has a different number of|contains a) parameter group",
            r"CheckpointError: checkpoint .* was made with "),
    _raises("corrupt_checkpoint", r"PytorchStreamReader failed",
            r"invalid header or archive is corrupted", r"^(?:\w+\.)*UnpicklingError: ",
            r"^EOFError: Ran out of input", r"^(?:\w+\.)*SafetensorError: (?!Error while serializing)",
            r"^(?:\w+\.)*BadZipFile: ", r"files saved in the legacy \.tar format",
            r"CheckpointError: checkpoint .* (?:is corrupt|cannot be (?:used|read|loaded))"),
    _raises("corrupt_checkpoint",
            r"\A(?:OSError|EOFError|KeyError|(?:\w+\.)*RuntimeError|ValueError)\b(?!: Attempting to deserialize)",
            within=r"torch/serialization\.py in _?(?:legacy_)?load\Z"),
    # Numbers
    _raises("nan_loss", rf"^FloatingPointError: (?=.*{_NOT_FINITE})",
            r"Function '\w+' returned nan values in its \d+th output",
            rf"\bprobability tensor contains .*{_NOT_FINITE}",
            r"\b(?:the constraint|the support) [\s\S]*\bfound invalid values:[\s\S]*\bnan\b",
            r"(?i:\bminimum loss scale\b|\bloss scale\b.*\bminimum\b)"),
    _raises("nan_loss", rf"{_NO_RULE}{_UNQUOTED}(?i:\b{_OF_TRAINING}\b{_SAME_CLAUSE}{{0,60}}{_NOT_FINITE})",
            rf"{_NO_RULE}{_UNQUOTED}(?i:{_NOT_FINITE}{_SAME_CLAUSE}{{0,20}}\b{_OF_TRAINING}\b)"),
    # The set-up
    _raises("config_error", r"\A(?:SyntaxError|IndentationError|TabError): ",
            r"Cannot re-initialize CUDA in forked subprocess",
            r"Torch not compiled with CUDA enabled",
            r"Attempting to deserialize object on a CUDA device but", r"\ASettingsError: ",
            r"does not support (?:activation|gradient) checkpointing"),
    _raises("import_error", r"\A(?:ModuleNotFoundError|ImportError): ", weak=True),
    _raises("bad_sample", r"\A\S+: Caught \w+ in DataLoader worker process", weak=True),
    # Ends on request
    _raises("stopped_outside", r"^(?:\w+\.)*SignalException: Process \d+ got signal:", tier=Tier.CONSEQUENCE),
    _raises("stopped_outside", r"^KeyboardInterrupt\b", tier=Tier.CONSEQUENCE),
)  # fmt: skip

_NCCL_LOG = r"(?:\[\S+ \S+\] )?\S+:\d+:\d+ \[\d+\] (?:\S+ )?(?:\S+:\d+ )?NCCL WARN .*"
_TORCH_LOG = r"\[[EF](?:\d{3,4} [\d:.]+)? (?:\d+ )?ProcessGroupNCCL\.cpp:\d+\] .*"

LINES: tuple[Signature, ...] = (
    _prints("nccl_timeout",
            _TORCH_LOG + r"(?:Watchdog caught collective operation timeout|watchdog got stuck for \d+ seconds)"),
    _prints("shm_full", _NCCL_LOG + r"Error while creating shared memory segment"),
    _prints("shm_full", rf"(?=.*{_SHARED}){_NCCL_LOG}{_NO_SPACE}"),
    _prints("shm_full", r"ERROR: Unexpected bus error encountered in worker\."),
    _prints("cuda_oom", rf"(?!.*{_HOST}){_NCCL_LOG}(?:{_UNQUOTED}{_FULL}|Cuda failure (?:\d+ )?'out of memory')"),
    # Native code that names its source file, and exits.
    _prints("cuda_oom", rf"{_ENDED}(?=.*\.(?:c|cc|cpp|cu|cuh|h|hpp|hip)\W+\d)\[?(?={_GPU}).*{_FULL}"),
    _prints("cuda_oom", r"Error out of memory at line \d+ in file "),
    _prints("cuda_oom", rf"{_ENDED}\w+: .*\bcudaMalloc failed: out of memory"),
    _prints("host_oom", r"\(raylet\b.*\bkilled due to (?:memory pressure|the node running low on memory)"),
    _prints("host_oom", r"(?:slurmstepd|srun): error: .*(?i:\boom[-_ ]kill|out of memory|exceeded .*memory limit)"),
    _prints("resource_limit", rf"{_ENDED}(?!.*['\"]\w)[\w .:/\[\]-]*{_NO_THREAD}"),
    _prints("resource_limit", r"OMP: (?:Error #34|System error #11): |\S+: fork: .*Resource temporarily unavailable"),
    _prints("driver_mismatch", r"Failed to initialize NVML: Driver/library version mismatch"),
    _prints("nan_loss", r"Loss is (?:nan|inf), stopping training"),
    _prints("nan_loss", rf"\S+\.cuh?:\d+: .*\bAssertion .*{_NOT_FINITE}.*\bfailed"),
    _prints("config_error", r"\S*python[\d.]*: can't (?:open file|find '__main__' module)"),
    _prints("import_error", r"\S*python[\d.]*: (?:No module named \S+|Error while finding module specification for )"),
)  # fmt: skip

# A last line that calls itself an error: its level, before which stands no quotation, and its message.
_FATAL = re.compile(
    rf"^{_ENDED}(?!.*(?i:\b(?:info|debug|trace|warn(?:ing)?)\b))"
    r"[^'\"{}=]*?(?i:\b(?:error|err|fatal|critical|panicked)\b)\W+(?P<message>.*)"
)
_TERMINATE = re.compile(
    r"^(?:terminate called after throwing an instance of '|libc\+\+abi: terminating (?:due to|with) uncaught exception "
    r"of type )(?P<type>(?:[^':]|::)+)(?:'|: (?P<message>.*)|$)"
)
# The message up to the frames of a C++ stack, or to what the interpreter prints.
_WHAT = re.compile(r"\s+what\(\):\s+(?P<message>(?:(?!frame #|Fatal Python error|Aborted).*\n?)*)")
_WHAT_LINES = 5  # stack frames or warnings may stand between


def without_advice(text: str) -> str:
    """The message without recommendations."""
    return ADVICE.sub("", text).strip()


def match_exception(raised: Raised, gpus: AttemptGpus) -> Signature | None:
    """The first signature that an exception matches, or None."""
    text = without_advice(raised.text)
    if len(text) > 2 * MATCHED_CHARACTERS:
        text = f"{text[:MATCHED_CHARACTERS]}\n{text[-MATCHED_CHARACTERS:]}"
    return next((signature for signature in EXCEPTIONS if signature.matches(raised, text, gpus)), None)


def match_chain(chain: Chain, gpus: AttemptGpus) -> tuple[Raised, Signature | None]:
    """The most informative exception of a chain, and its signature; None if it matches none.

    A known cause counts anywhere in the chain, because other exceptions may follow from it. A weak
    one counts only at the end: programs try an import and continue without it."""
    matched = [(raised, match_exception(raised, gpus)) for raised in reversed(chain.raised)]
    last, signature = matched[0]
    strong = [(raised, match) for raised, match in matched if match is not None and not match.weak]
    for raised, match in strong:
        if match.rank is Tier.CAUSE:
            return raised, match
    if signature is not None and signature.rank is not Tier.CONSEQUENCE:
        return last, signature
    for raised, match in strong:
        if match.rank is Tier.SYMPTOM:
            return raised, match
    unknown = [raised for raised, match in matched if match is None]
    if signature is not None:
        # The connection broke while another error was being handled.
        if unknown:
            return (unknown[0], None)
        return (last, signature)
    if strong:
        return strong[0]
    return (last, None)


def match_lines(text: str) -> list[tuple[Signature, str]]:
    """Lines of native code that indicate an incident, with their signatures, in the order of the
    log."""
    matches = []
    for line in lines_of(text):
        line = bare(line)
        for signature in LINES:
            if signature.pattern.match(line):
                matches.append((signature, line))
                break
    return matches


def match_last_lines(lines: Sequence[str], gpus: AttemptGpus) -> list[tuple[Signature, str]]:
    """The last lines of a program that handles its exceptions itself and reports them as errors, with
    the signatures of their messages."""
    matches = []
    for line in map(structured, map(bare, lines)):
        message = _FATAL.match(line)
        signature = None if message is None else match_exception(Raised("Error", message["message"]), gpus)
        if signature is not None:
            matches.append((signature, line))
    return matches


def terminate_message(text: str) -> Raised | None:
    """The C++ exception that ended a process, as the C++ runtime prints it: GNU's with the message on
    the lines after it, LLVM's in one line."""
    raised = None
    lines = [bare(line) for line in lines_of(text)]
    for at, line in enumerate(lines):
        if match := _TERMINATE.match(line):
            what = _WHAT.match("\n".join(lines[at + 1 : at + 1 + _WHAT_LINES]))
            message = match["message"] or ""
            if not message and what is not None:
                message = what["message"]
            raised = Raised(match["type"].rsplit("::", 1)[-1], message)
    return raised
