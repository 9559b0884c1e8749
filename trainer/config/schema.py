"""Every setting of the trainer: its type, default, limits and meaning, declared once, and words for a wrong one.

Classes only group settings for help and documentation: flags, keys of files, phases and checkpoints use the same names.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from trainer import faults

Task = Literal["classify", "lm", "mlm", "contrastive"]
DataSource = Literal[
    "auto", "digits", "cifar10", "images", "parquet", "tokens", "documents", "text", "stdlib", "synthetic"
]
Parallel = Literal["ddp", "data_parallel", "zero1", "fsdp", "local_sgd"]
Recompute = Literal["none", "selective", "operations", "full"]
Compression = Literal["none", "zstd", "gzip"]
BatchSize = Annotated[int, Field(ge=1)] | Literal["auto"]
OwnCode = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
Shares = dict[str, Annotated[float, Field(gt=0)]]

T = TypeVar("T")

IMAGE_TASKS = ("classify", "contrastive")
TEXT_TASKS = ("lm", "mlm")

_LATER = Path()  # a path that depends on the task and the environment
_TEXTS: dict[str, Any] = {"type": ["string", "array"]}

# Settings with words for on and off, which true and false stand for: supervisors know no other words, and YAML reads
# off as false.
SWITCHES: Mapping[str, tuple[str, str]] = {"gradient_checkpointing": ("none", "full"), "compile": ("off", "default")}
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

# Data that may be images or text; the task tells.
HOLDS_BOTH = ("auto", "parquet", "synthetic")

# Modes of torch.compile in which it records CUDA graphs.
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")

# Where a task wants something other than the defaults of `Settings`, which suit images of digits.
_TEXT_DEFAULTS = {"steps": 200, "batch_size": 8, "weight_decay": 0.1, "validate_every": 100}
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "classify": {},
    "contrastive": {"augment": True},
    "lm": _TEXT_DEFAULTS | {"lr": 3e-3, "width": 128, "dropout": 0.0},
    "mlm": _TEXT_DEFAULTS | {"lr": 5e-4},
}

# Words for kinds of values that pydantic names otherwise.
_KINDS = {
    "dict_type": "should be name: value",
    "tuple_type": "should be a list",
    "path_type": "should be a path",
    "string_pattern_mismatch": "package.module:name of your own code",
}


class Scope(enum.Enum):
    """Why a setting has one value for a whole run; settings without a scope may differ between phases."""

    RUN = enum.auto()  # it is set up once, or decides the order of the data
    SHAPE = enum.auto()  # weights depend on it: those of a checkpoint with another value cannot be loaded


RunWide = Annotated[T, Scope.RUN]
Shape = Annotated[T, Scope.SHAPE]


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        numeric = cls.model_fields[info.field_name or ""].annotation in (int, float, BatchSize, Shares)
        numbers = value.values() if isinstance(value, dict) else [value]
        if numeric and any(isinstance(number, bool) for number in numbers):
            raise PydanticCustomError("number", "Input should be a number, not true or false")
        return value


class RunSettings(_Group):
    """The task, its length, and the folder of its files"""

    task: Shape[Task | OwnCode] = Field("classify", description="what to train, or package.module:Class")
    task_options: dict[str, Any] = Field({}, description="arguments of your own task's class")
    steps: int = Field(300, ge=1, description="optimizer steps of the whole run")
    epochs: RunWide[float] = Field(0.0, ge=0, description="passes over the training data that make up the steps")
    phases: RunWide[tuple[dict[str, Any], ...]] = Field((), description="parts of the run with settings of their own")
    phase: RunWide[str] = Field("", description="name of the phase these settings belong to; set by the trainer")
    seed: RunWide[int] = Field(0, ge=0, le=2**63 - 1, description="of weights, data order, augmentation and dropout")
    deterministic: RunWide[bool] = Field(True, description="same seed, same result; slower on GPUs")
    device: RunWide[Literal["auto", "cpu", "cuda"]] = Field("auto", description="auto: one GPU per rank if available")
    timeout: RunWide[float] = Field(600.0, gt=0, description="seconds to wait for other ranks or a checkpoint")
    start_timeout: RunWide[float] = Field(600.0, gt=0, description="the same until a phase's first step, if longer")
    # Just less than torchrun waits before it kills.
    stop_timeout: RunWide[float] = Field(
        25.0, gt=0, description="seconds of a step after a stop (5/6 of $GPUTUI_GRACE)"
    )
    output_dir: RunWide[Path] = Field(_LATER, description="default: $GPUTUI_RUN_DIR, else runs/TASK")
    inject: RunWide[tuple[str, ...]] = Field(
        (), description="faults on purpose, such as oom@step=40", json_schema_extra=_TEXTS
    )

    @field_validator("inject", mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            return value
        return tuple(fault.text for text in texts for fault in faults.parse(text))


class ModelSettings(_Group):
    """The network"""

    model: Shape[str] = Field(
        "auto",
        description="a name, config.json, or package.module:function; auto: cnn (images), bytes (lm), bert-tiny (mlm)",
    )
    model_options: Shape[dict[str, Any]] = Field(
        {}, description="keys of its configuration, or the function's arguments"
    )
    weights: RunWide[Path | None] = Field(None, description="folder with model.safetensors to start from")
    lora: Shape[int] = Field(0, ge=0, description="rank of low-rank adapters, trained instead of the weights; 0: none")
    lora_modules: Shape[tuple[str, ...]] = Field(
        (), description="lora: names of layers; default: peft's for the model", json_schema_extra=_TEXTS
    )
    lora_alpha: Shape[float] = Field(0.0, ge=0, description="lora: scale of the adapters times rank; 0: twice the rank")
    train_only: Shape[str] = Field("", description="train parameters whose names this regular expression is found in")
    width: Shape[int] = Field(
        16, ge=8, multiple_of=8, description="cnn: channels; bytes: embedding size, a multiple of 32"
    )
    depth: Shape[int] = Field(2, ge=1, description="cnn, bytes: residual blocks")
    dropout: float = Field(0.1, ge=0, le=0.9, description="share of activations dropped (ResNets: none)")
    context: Shape[int] = Field(128, ge=8, description="tokens that a language model sees")
    embedding_size: Shape[int] = Field(64, ge=2, description="contrastive: size of the compared vectors")
    temperature: float = Field(0.1, gt=0, description="contrastive: divisor of similarities")
    hard_negatives: int = Field(0, ge=0, description="contrastive: compare with so many most similar; 0: all")
    mask_probability: float = Field(0.15, gt=0, lt=1, description="mlm: share of masked tokens")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="classify: share spread over all classes")

    @field_validator("lora_modules", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @field_validator("train_only")
    @classmethod
    def _is_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise PydanticCustomError(
                "pattern", "should be a regular expression ({reason})", {"reason": str(error)}
            ) from None
        return value


class DataSettings(_Group):
    """The data and how it is read"""

    data: RunWide[DataSource | OwnCode] = Field(
        "auto", description="auto: digits or stdlib; or package.module:function"
    )
    data_options: RunWide[dict[str, Any]] = Field({}, description="arguments of your own data's function")
    data_dir: RunWide[Path | None] = Field(None, description="folder of the data (gputui help trainer)")
    tokenizer: RunWide[Path | None] = Field(None, description="documents: a Hugging Face tokenizer's folder")
    data_column: RunWide[str] = Field("", description="parquet: column of the data; default: by type")
    label_column: RunWide[str] = Field("label", description="parquet: the column with the class")
    image_size: RunWide[int] = Field(0, ge=0, description="pixels a side after resizing; 0: as they are")
    augment: bool = Field(False, description="random crops and flips of training images")
    synthetic_samples: RunWide[int] = Field(4096, ge=2, description="synthetic: samples in the training set")
    num_workers: int = Field(0, ge=0, description="processes per rank that read ahead; 0: none")
    prefetch: int = Field(2, ge=1, description="batches that each worker reads ahead")
    pin_memory: bool = Field(True, description="CUDA: batches wait in page-locked memory")
    cache_bytes: int = Field(2**30, ge=0, description="parquet: decoded row groups that each reading process keeps")
    max_broken_samples: int = Field(100, ge=0, description="unreadable samples per rank before the run fails")


class ParallelSettings(_Group):
    """Cooperation of the ranks"""

    parallel: Parallel = Field("ddp", description="how the ranks share the model")
    tensor_parallel: int = Field(1, ge=1, description="lm, mlm with fsdp: ranks that every layer is split over")
    shard_ranks: int = Field(0, ge=0, description="fsdp: ranks that share a copy of the weights (HSDP); 0: all")
    ranks: int = Field(0, ge=0, description="ranks that take part; 0: all")
    average_every: int = Field(8, ge=2, description="local_sgd: steps between averages of the weights")
    average_from: int = Field(0, ge=0, description="local_sgd: steps of a phase with common gradients before that")
    bucket_cap_mb: float = Field(25.0, gt=0, description="ddp, zero1: MiB of gradients in one all-reduce")
    static_graph: bool = Field(False, description="ddp, zero1: every step uses the same parameters")
    gradient_as_bucket_view: bool = Field(True, description="ddp, zero1: gradients live in the exchange buffers")
    find_unused_parameters: bool = Field(False, description="ddp, zero1: some parameters may get no gradient")
    broadcast_buffers: bool = Field(True, description="ddp, zero1: all ranks use rank 0's batch statistics")
    sync_batchnorm: bool = Field(False, description="batch statistics over all ranks (GPUs only)")
    compress_gradients: Literal["none", "fp16", "bf16"] = Field("none", description="ddp, zero1: dtype of the exchange")
    check_gradients: int = Field(0, ge=0, description="steps between comparisons of the ranks' gradients; 0: none")
    reshard_after_forward: bool = Field(True, description="fsdp: free gathered weights after forward")
    cpu_offload: bool = Field(False, description="fsdp: keep weights and optimizer in host memory")


class PrecisionSettings(_Group):
    """Numbers and memory"""

    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="bf16 and fp16 use autocast")
    tf32: bool = Field(True, description="TF32 on GPUs (never when deterministic)")
    loss_scale: float = Field(65536.0, gt=0, description="fp16: first scale of the loss")
    loss_scale_growth: float = Field(2.0, gt=1, description="fp16: factor after good steps")
    loss_scale_backoff: float = Field(0.5, gt=0, lt=1, description="fp16: factor after infinite gradients")
    loss_scale_interval: int = Field(2000, ge=1, description="fp16: good steps before the scale grows")
    channels_last: bool = Field(False, description="the memory order of images that GPUs prefer")
    gradient_checkpointing: Recompute = Field(
        "none",
        description="recompute in backward: selective (every other block), operations (the cheap ones), full",
    )
    loss_chunk: int = Field(0, ge=0, description="lm: tokens whose loss is computed at once; 0: all")
    memory_snapshot: RunWide[bool] = Field(
        False, description="CUDA: if memory runs out, allocations go to OUTPUT_DIR/evidence"
    )
    memory_fraction: float = Field(1.0, gt=0, le=1, description="share of the GPU's memory to use")
    expandable_segments: RunWide[bool] = Field(False, description="CUDA's allocator: against fragmentation")
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = Field(
        "off", description="torch.compile's mode"
    )
    compile_scope: Literal["whole", "blocks"] = Field("whole", description="blocks: each one alone")

    @field_validator(*SWITCHES, mode="before")
    @classmethod
    def _switched(cls, value: Any, info: ValidationInfo) -> Any:
        word = _TRUTH.get(str(value).lower())
        if word is None:
            return value
        return SWITCHES[info.field_name or ""][word]


class OptimizerSettings(_Group):
    """Steps of the optimizer"""

    batch_size: BatchSize = Field(16, description="samples per rank and micro batch; auto: the most that fit")
    max_batch_size: int = Field(1024, ge=1, description="the most that auto tries")
    oom_retries: int = Field(0, ge=0, description="retries with smaller micro batches if memory runs out")
    grad_accum: int = Field(3, ge=1, description="micro batches per optimizer step")
    samples_per_step: int = Field(
        0, ge=0, description="of all ranks, in micro batches of at most batch_size; 0: by grad_accum"
    )
    optimizer: Literal["adamw", "sgd", "muon"] = Field(
        "adamw", description="muon trains matrices of blocks, adamw the rest"
    )
    lr: float = Field(2e-3, gt=0, description="peak learning rate")
    lr_shares: Shares = Field({}, description="share of lr by part of a parameter's name: head=0.5,bias=2")
    schedule: Literal["cosine", "linear", "constant", "wsd"] = Field("cosine", description="decay after the warm-up")
    decay_share: float = Field(0.2, gt=0, le=1, description="wsd: share of steps with decay")
    warmup_steps: int = Field(20, ge=0, description="steps of linear warm-up; a tenth of a shorter run")
    final_lr_ratio: float = Field(0.05, ge=0, le=1, description="last learning rate as a share of the peak")
    weight_decay: float = Field(0.01, ge=0, description="decay of weights with two or more dimensions")
    beta1: float = Field(0.9, ge=0, lt=1, description="adamw, muon: decay of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="adamw, muon: decay of the mean squared gradient")
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd, muon: momentum")
    grad_clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 measures without clipping")
    gc_every: int = Field(0, ge=0, description="steps between garbage collections; 0: Python's default")
    reset_optimizer: bool = Field(False, description="forget the optimizer's state at a phase's start")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of averaged weights; 0: none")


class CheckpointSettings(_Group):
    """Checkpoints and resuming"""

    checkpoint_dir: RunWide[Path] = Field(_LATER, description="default: OUTPUT_DIR/checkpoints")
    checkpoint_every: int = Field(50, ge=0, description="steps between checkpoints; 0: only at the end")
    epoch_checkpoints: bool = Field(False, description="also save every epoch")
    best_checkpoint: RunWide[bool] = Field(False, description="also keep best_model.pt")
    best_metric: RunWide[str] = Field("val/loss", description="the metric of the best; loss, perplexity: the lowest")
    keep: RunWide[int] = Field(3, ge=1, description="newest checkpoints to keep")
    async_checkpoints: bool = Field(False, description="write checkpoints in the background")
    sharded_checkpoints: bool = Field(False, description="fsdp: every rank writes its own part")
    checkpoint_compression: Compression = Field("none", description="pack checkpoints: smaller files, slower writing")
    export: RunWide[Literal["none", "last", "ema", "best"]] = Field(
        "none", description="weights for OUTPUT_DIR/hf at the end"
    )
    resume: RunWide[str] = Field(
        "", description="checkpoint, auto (newest valid) or none; default: $GPUTUI_CHECKPOINT, none"
    )


class TelemetrySettings(_Group):
    """Metrics, logs and traces"""

    metrics: RunWide[Path] = Field(_LATER, description="default: $GPUTUI_METRICS, else OUTPUT_DIR/metrics.jsonl")
    log_every: int = Field(10, ge=1, description="steps between lines on standard output")
    rank_metrics_every: int = Field(10, ge=0, description="steps between timings of further ranks; 0: none")
    validate_every: int = Field(50, ge=0, description="steps between validations; 0: only at the end")
    validate_samples: int = Field(0, ge=0, description="held-out samples used; 0: all")
    answer_every: int = Field(0, ge=0, description="lm: steps between answers to held-out prompts; 0: none")
    answer_tokens: int = Field(48, ge=1, description="the most tokens in such an answer")
    histograms_every: int = Field(0, ge=0, description="steps between histograms; 0: none")
    trace_every: int = Field(0, ge=0, description="steps between Chrome traces; 0: none")
    bottleneck_every: int = Field(100, ge=0, description="steps between verdicts on the speed; 0: none")


class Settings(
    TelemetrySettings,
    CheckpointSettings,
    OptimizerSettings,
    PrecisionSettings,
    ParallelSettings,
    DataSettings,
    ModelSettings,
    RunSettings,
):
    """The settings of a run: times in seconds, paths as given, defaults those of the task."""

    @model_validator(mode="before")
    @classmethod
    def _with_task_defaults(cls, values: Any) -> Any:
        task = values.get("task") if isinstance(values, dict) else None
        if isinstance(task, str) and task in TASK_DEFAULTS:
            return {**TASK_DEFAULTS[task], **values}
        return values

    @field_validator("data_dir", "weights", "tokenizer", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        if value == "":
            return None
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, text in self._contradictions():
            raise PydanticCustomError("contradiction", "{text}", {"name": name, "text": text})
        return self

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """The settings that do not fit the others, and what is wrong with them, in words that follow their names."""
        yield from self._of_data()
        yield from self._of_the_task()
        yield from self._of_weights()
        yield from self._of_ranks()
        yield from self._of_compilation()

    def _of_data(self) -> Iterator[tuple[str, str]]:
        task = self.task
        is_text = task in TEXT_TASKS
        if is_own(task) and self.data in HOLDS_BOTH:
            yield "data", f" {self.data} may be images or text: with your own task, name data that is one of them"
        if is_own(task) and self.model == "auto":
            yield "model", " is needed with your own task: there is no usual one"
        for name, user in (("task_options", task), ("data_options", self.data)):
            if getattr(self, name) and not is_own(user):
                yield name, f" are for code of your own, not for {user}"
        is_known = not is_own(task) and not is_own(self.data) and self.data not in HOLDS_BOTH
        if is_known and (self.data in ("tokens", "documents", "text", "stdlib")) != is_text:
            kind = "no text" if is_text else "text"
            yield "data", f" {self.data} is {kind}: it does not suit --task {task}"
        if self.epochs and self.phases:
            yield "epochs", " cannot be given with phases, which have steps of their own"
        if self.epochs and self.batch_size == "auto" and not self.samples_per_step:
            yield "epochs", " with an automatic batch size needs --samples-per-step"

    def _of_the_task(self) -> Iterator[tuple[str, str]]:
        task = self.task
        if task == "lm" and self.model in ("auto", "bytes") and self.width % 32:
            yield "width", f" must be a multiple of 32 for --task lm, got {self.width}"
        if task == "contrastive" and not self.augment:
            yield "augment", " is needed with --task contrastive, which compares two different views of each image"
        if task == "contrastive" and self.parallel == "data_parallel":
            yield "parallel", " data_parallel cannot compare images across devices for --task contrastive: use ddp"
        if self.data == "documents" and self.tokenizer is None:
            yield "tokenizer", " is needed with --data documents: the folder of a Hugging Face tokenizer"
        if self.data == "documents" and task != "lm":
            yield "data", f" documents needs --task lm, not {task}"
        if self.answer_every and not (task == "lm" and self.data in ("tokens", "documents")):
            yield "answer_every", " needs --task lm, and --data tokens that were prepared, or documents"
        if self.export == "ema" and not self.ema:
            yield "export", " ema needs averaged weights: --ema 0.999"
        if self.export == "best" and not self.best_checkpoint:
            yield "export", " best needs --best-checkpoint"
        for name, only in (("loss_chunk", "lm"), ("hard_negatives", "contrastive"), ("label_smoothing", "classify")):
            if getattr(self, name) and task != only:
                yield name, f" needs --task {only}, not {task}"

    def _of_weights(self) -> Iterator[tuple[str, str]]:
        if self.lora and self.weights is None:
            yield "lora", " needs --weights: adapters are for weights that a folder has"
        if self.lora and self.train_only:
            yield "train_only", " goes not with --lora, which freezes all but the adapters: choose with --lora-modules"
        for name in ("lora_modules", "lora_alpha"):
            if getattr(self, name) and not self.lora:
                yield name, " needs --lora 16, or another rank"
        if self.tensor_parallel > 1 and (self.lora or self.train_only):
            yield "tensor_parallel", " splits no layers that are frozen: not with --lora or --train-only"

    def _of_ranks(self) -> Iterator[tuple[str, str]]:
        task = self.task
        parallel = self.parallel
        if self.tensor_parallel > 1 and not (task in TEXT_TASKS and parallel == "fsdp"):
            yield "tensor_parallel", f" needs a language model and --parallel fsdp, not --task {task} with {parallel}"
        if self.shard_ranks and (self.tensor_parallel > 1 or self.ranks):
            yield "shard_ranks", " goes with neither --tensor-parallel nor --ranks"
        if self.ranks and self.tensor_parallel > 1:
            yield "ranks", f" must be left out: --tensor-parallel {self.tensor_parallel} needs all ranks"
        for name in ("shard_ranks", "cpu_offload", "sharded_checkpoints"):
            if getattr(self, name) and parallel != "fsdp":
                yield name, f" needs --parallel fsdp, not {parallel}"
        if self.check_gradients and not (parallel in ("ddp", "zero1") or self.shard_ranks):
            yield "check_gradients", f" needs --parallel ddp, zero1, or fsdp with --shard-ranks, not {parallel}"
        if self.compress_gradients != "none" and parallel not in ("ddp", "zero1"):
            yield "compress_gradients", f" needs --parallel ddp or zero1, not {parallel}"
        if parallel == "local_sgd":
            unfit = {
                "task": task == "contrastive",  # compares with the images of other ranks
                "precision": self.precision == "fp16",  # each rank would skip other updates
                "compile": self.compile in CUDA_GRAPH_MODES,  # averages are in other memory
                "channels_last": self.channels_last,  # averages are contiguous
                "static_graph": self.static_graph,
                "oom_retries": bool(self.oom_retries),
                "ema": bool(self.ema),  # each rank would have other averages over the steps
            }
            for name in (name for name, is_set in unfit.items() if is_set):
                yield name, f" {getattr(self, name)} does not go with --parallel local_sgd"
        if self.optimizer == "muon" and parallel == "fsdp":
            yield "optimizer", " muon needs whole matrices on a rank: not with --parallel fsdp"
        if self.sync_batchnorm and self.device == "cpu":
            yield "sync_batchnorm", " needs CUDA GPUs, not --device cpu"

    def _of_compilation(self) -> Iterator[tuple[str, str]]:
        if self.compile_scope == "blocks" and self.compile in ("off", *CUDA_GRAPH_MODES):
            yield "compile_scope", f" blocks needs --compile default, not {self.compile}"
        if self.compile != "off" and self.bucket_cap_mb < 1:  # torch cuts compiled graphs by DDP's buckets
            yield "bucket_cap_mb", f" must be at least 1 with --compile, got {self.bucket_cap_mb:g}"
        if self.compile != "off" and self.parallel == "data_parallel":  # a copy of the model would call the original
            yield "compile", " works with every way of --parallel but data_parallel"
        if self.compile in CUDA_GRAPH_MODES and self.parallel == "fsdp":
            yield "compile", f" {self.compile} uses CUDA graphs, for which weights must stay in place: not with fsdp"


# In the order in which people read them.
GROUPS: tuple[type[BaseModel], ...] = Settings.__bases__[::-1]

SHAPE_SETTINGS = tuple(name for name, setting in Settings.model_fields.items() if Scope.SHAPE in setting.metadata)
RUN_WIDE = frozenset(
    name for name, setting in Settings.model_fields.items() if any(isinstance(mark, Scope) for mark in setting.metadata)
)


def is_own(name: str) -> bool:
    """Return whether a setting names the user's own code, as ``package.module:name``."""
    return ":" in name


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def did_you_mean(name: str, names: Iterable[str] | None = None) -> str:
    """A hint at the known name, by default a setting's, most like this one; empty if none is."""
    if names is None:
        names = Settings.model_fields
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return ""


def first(error: ValidationError) -> tuple[str, str]:
    """The name of the first setting that is wrong, and what is wrong, such as `` should be greater than 0, got -1``."""
    errors = error.errors(include_url=False)
    place = errors[0]["loc"]
    if not place:  # it does not fit the others
        return errors[0]["ctx"]["name"], errors[0]["msg"]
    same = [
        _KINDS.get(problem["type"], problem["msg"].removeprefix("Input "))
        for problem in errors
        if problem["loc"][0] == place[0]
    ]
    return str(place[0]), f" {', or '.join(same)}, got {errors[0]['input']!r}"
