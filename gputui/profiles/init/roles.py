"""What an option of a script means to recovery, by its name, else by the first words of its help."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from gputui.runs.spec import ROLE_NAMES, Scalar, Scope

RESUME = "resume"
"""The role of an option that is given a checkpoint; ROLE_NAMES are those of parameters."""

NUMBER_ROLES = ROLE_NAMES.keys() - {"gradient_checkpointing", "cpu_offload"}
"""Roles of parameters that are numbers."""

# The usual names beside ROLE_NAMES, without the words of _QUALIFIERS before them and a unit of _UNIT behind.
_NAMES: Mapping[str, str] = {
    "batch_size": """
        batch_size batchsize batch_sz batch bs bsz mbs minibatch minibatch_size
        samples_per_gpu imgs_per_gpu images_per_gpu ims_per_batch
    """,
    "grad_accum": """
        grad_accum grad_accumulation grad_acc gradient_accumulation gradient_accumulate accum accumulate accumulation
        grad_accum_steps grad_accumulation_steps grad_acc_steps gradient_accumulation_step gradient_accumulate_every
        accum_steps accumulation_steps accum_iter accumulate_grad accumulate_grad_batches update_freq
    """,
    "gradient_checkpointing": """
        gradient_checkpoint grad_checkpointing grad_checkpoint activation_checkpointing activation_checkpoint
    """,
    "cpu_offload": "offload_to_cpu",
    "lr": "learningrate",
    "grad_clip": "clip clip_norm clip_grad clip_grad_norm gradient_clip gradient_clip_val gradient_clip_norm",
    "timeout": "ddp_timeout dist_timeout",
    "num_workers": "workers n_workers nworkers numworkers",
    RESUME: """
        checkpoint ckpt load load_model load_from load_path load_ckpt load_weights init_from restore restore_from
    """,
}
_RESUME_NAMES = """
    resume resume_from resume_path resume_file resume_ckpt resume_checkpoint resume_from_checkpoint resume_from_ckpt
    resume_training auto_resume ckpt_path load_checkpoint
"""
# Whose a batch or a rate is. With any other word it is another thing's, as in rollout_batch_size.
_QUALIFIERS = """
    per device gpu local micro mini train training trainer data dataset loader dataloader global total effective
    overall world optim optimizer base init initial peak
"""
_UNIT = re.compile(r"_per_(?:gpu|device|rank|worker|replica|process)$")
_OWNER = "the|input|training|train|per|gpu|device|mini|micro|local|global|total|effective|base|initial"
_LEADING = rf"(?:(?:{_OWNER})[\s-]+|mini|micro)*"
_COUNT = r"(?:the |number of |num |# ?of |how many )+"
_HELP: Mapping[str, str] = {
    "batch_size": _LEADING + r"batch[\s_-]?size",
    "grad_accum": rf"{_COUNT}?(?:\w+ )?(?:steps |batches |updates )?(?:to |for |of )?"
    r"(?:accumulat\w+ (?:the )?gradients?|gradients? accumulat)",
    "lr": _LEADING + r"learning[\s-]rate(?! (?:decay|schedul|warm|step|multipl|factor|gamma))",
    "num_workers": _COUNT + r"(?:(?:data[\s-]?load(?:ing|er)|loader|worker|sub)\s*)*(?:workers|processes)",
    RESUME: r"(?:the |a |path |to |of |checkpoint |model |weights |snapshot |state |file |name )*(?:resume|continue)\b",
}
_ELSEWHERE = re.compile(r"\b(?:eval|evaluation|val|valid|validation|test|testing|predict|prediction|inference)\b")
_OTHER_FILE = re.compile(r"\b(?:sav\w*|writ\w*|outputs?|every|interval|frequency|pre-?trained|backbone)\b")
_OF_ALL = re.compile(r"\b(?:global|total|effective|overall|world)\b|\b(?:all|over) (?:gpus|devices|ranks)\b")


class Meaning(Struct, frozen=True):
    """The role of an option. ``doubt`` orders several with the same role: 0 is recovery's own name
    for it, 1 another usual name, 2 one known by its help, 3 a value for all ranks together."""

    role: str
    doubt: int
    scope: Scope | None = None


def meaning_of(name: str, text: str = "", default: Scalar = None) -> Meaning | None:
    """The meaning of an option with a help text and a default, None for any other option. The batch
    of an evaluation has none."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_")
    spaced = re.sub(r"[_.]", " ", plain)
    described = " ".join(text.lower().split())[:120]
    role, doubt = _role_by_name(plain)
    if role is None and not isinstance(default, bool):
        role = next((role for role, form in _HELP.items() if re.match(form, described)), None)
        doubt = 2
    if role == RESUME and (not _takes_checkpoint(default) or (doubt and _OTHER_FILE.search(described))):
        return None
    if role is None or _ELSEWHERE.search(spaced) or (doubt == 2 and _ELSEWHERE.search(described)):
        return None
    if role in ("batch_size", "grad_accum") and (_OF_ALL.search(spaced) or _OF_ALL.search(described)):
        return Meaning(role, 3, "global")
    return Meaning(role, doubt)


def _takes_checkpoint(default: Scalar) -> bool:
    """Return whether an option's default, empty, on or off, leaves room for a checkpoint."""
    return default is None or isinstance(default, bool) or default == ""


def _role_by_name(name: str) -> tuple[str | None, int]:
    """The role of a name in lower case, and its doubt."""
    parts = name.rpartition(".")[2].split("_")
    while len(parts) > 1 and parts[0] in _QUALIFIERS.split():
        parts.pop(0)
    short = "_".join(parts)
    if short in _RESUME_NAMES.split():
        return RESUME, 0
    for role in (*ROLE_NAMES, RESUME):
        usual = ROLE_NAMES.get(role, ())
        if name in usual:
            return role, 0
        if {short, _UNIT.sub("", short)} & {*usual, *_NAMES[role].split()}:
            return role, 1
    return None, 0
