"""Modules that ranks import, for the server that forks them."""

import pkgutil
from importlib import import_module

import transformers.models.bert.modeling_bert
import transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama
import transformers.models.vit.modeling_vit  # noqa: F401

import trainer

for _module in pkgutil.walk_packages(trainer.__path__, "trainer."):
    if not _module.name.endswith("__main__"):
        import_module(_module.name)
