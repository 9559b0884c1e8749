"""Answers to held-out prompts during training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.data import Text
from trainer.errors import SettingsError
from trainer.session import PhaseSession
from trainer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Answer:
    """The text of a prompt and of the model's answer."""

    prompt: str
    answer: str


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
        self._tokenizer = Tokenizer(data.tokenizer)
        self._context = data.context

    def answers(self) -> list[Answer]:
        """Answer each prompt greedily with the current weights (collective)."""
        objective = self._session.objective
        objective.eval()
        try:
            # Each token makes another length, for which compiled blocks would be compiled again.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                pairs = [(prompt, self._generate(prompt)) for prompt in self._prompts]
        finally:
            objective.train()
        return [Answer(self._tokenizer.text(prompt), self._tokenizer.text(answer)) for prompt, answer in pairs]

    def _generate(self, prompt: tuple[int, ...]) -> list[int]:
        """Generate an answer greedily. All ranks use rank 0's tokens, because GPUs may round differently."""
        session, tokens = self._session, list(prompt)
        last = min(len(prompt) + session.settings.answer_tokens, self._context)
        while len(tokens) < last:
            # Ranks that share layers take lengths that they divide; no token sees what comes after it.
            padding = [0] * (-len(tokens) % session.settings.tensor_parallel)
            inputs = torch.tensor([tokens + padding], device=session.world.device)
            with session.precision.autocast():
                logits = session.objective.model(inputs)
            token = session.world.from_main(int(logits[0, len(tokens) - 1, : self._tokenizer.size].argmax()))
            if token in self._tokenizer.stops:
                break
            tokens.append(token)
        return tokens[len(prompt) :]
