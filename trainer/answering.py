"""Answers of a language model: to held-out prompts during training, and of a finished one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.data import Text
from trainer.errors import SettingsError
from trainer.exporting import Restored
from trainer.session import PhaseSession
from trainer.tokenizer import Tokenizer


class Prompts:
    """The held-out prompts of prepared tokens. Collective: every rank constructs and calls it.

    Raises SettingsError if there are none that leave room for an answer.
    """

    def __init__(self, session: PhaseSession) -> None:
        data = session.data
        if not isinstance(data, Text) or data.tokenizer is None or not data.prompts:
            raise SettingsError("--answer-every needs tokens that python -m trainer prepare has made")
        self._prompts = [prompt for prompt in data.prompts if 0 < len(prompt) < data.context]
        if not self._prompts:
            raise SettingsError(f"--answer-every: no prompt of the tokens is shorter than --context {data.context}")
        self._session = session
        self.tokens = 0  # generated so far, a sign of life
        self._tokenizer = Tokenizer(data.tokenizer)
        self._context = data.context

    def answers(self) -> list[tuple[str, str]]:
        """Answer each prompt greedily with the current weights; pairs of prompt and answer (collective)."""
        session = self._session
        text = self._tokenizer.text
        session.objective.eval()
        try:
            # Each token makes another length, for which compiled blocks would be compiled again.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"), session.precision.autocast():
                return [(text(prompt), text(self._answer(prompt))) for prompt in self._prompts]
        finally:
            session.objective.train()

    def _answer(self, prompt: tuple[int, ...]) -> list[int]:
        session = self._session
        tokens = list(prompt)
        while len(tokens) < min(len(prompt) + session.settings.answer_tokens, self._context):
            # Rank 0's choice, because GPUs may round differently.
            token = session.world.from_main(int(self._scores(tokens).argmax()))
            self.tokens += 1
            if token in self._tokenizer.stops:
                break
            tokens.append(token)
        return tokens[len(prompt) :]

    def _scores(self, tokens: list[int]) -> Tensor:
        # Ranks that share layers take lengths that they divide; no token sees what comes after it.
        padding = [0] * (-len(tokens) % self._session.settings.tensor_parallel)
        inputs = torch.tensor([tokens + padding], device=self._session.world.device)
        logits: Tensor = self._session.objective.model(inputs)
        return logits[0, len(tokens) - 1, : self._tokenizer.size]


def answer(restored: Restored, prompt: str, *, tokens: int, temperature: float, plain: bool) -> str:
    """Generate an answer to a prompt, or with `plain` its continuation, of at most `tokens` tokens.

    Greedy, or with a temperature above 0 sampled by torch's random state. Raises SettingsError if the prompt fills the
    context.
    """
    tokenizer = restored.tokenizer()
    network = restored.network
    if plain:
        ids = tokenizer.beginning(prompt)
    else:
        ids = tokenizer.prompt([{"role": "user", "content": prompt}])
    context = getattr(network.config, "max_position_embeddings", None) or len(ids) + tokens
    if len(ids) >= context:
        raise SettingsError(f"--prompt has {len(ids)} tokens, and the model sees {context} at once: shorten it")
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    inputs = torch.tensor([ids])
    new = network.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=min(tokens, context - len(ids)),
        eos_token_id=list(tokenizer.stops) or None,
        pad_token_id=tokenizer.pad,
        **sampling,
    )
    return tokenizer.text([token for token in new[0, len(ids) :].tolist() if token not in tokenizer.stops])
