"""What a model answers to held-out prompts in the middle of its training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.data import Text
from trainer.errors import SettingsError
from trainer.session import PhaseSession
from trainer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Answer:
    """The words of a prompt and of what the model made of it."""

    prompt: str
    answer: str


class Prompts:
    """The held-out prompts of the prepared tokens. Collective: every rank constructs and calls it.

    Raises SettingsError if the tokens came without any that leave room for an answer.
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
        self._room = data.context

    def answers(self) -> list[Answer]:
        """Answer each prompt greedily with the current weights (collective)."""
        objective = self._session.objective
        objective.eval()
        try:
            # Each token is another length, for which blocks would be compiled again.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                pairs = [(prompt, self._after(prompt)) for prompt in self._prompts]
        finally:
            objective.train()
        return [Answer(self._tokenizer.text(prompt), self._tokenizer.text(answer)) for prompt, answer in pairs]

    def _after(self, prompt: tuple[int, ...]) -> list[int]:
        """The tokens after a prompt. Ranks that hold parts of a model must stop at the same token, which unequal GPUs
        may round differently: rank 0's counts."""
        session, tokens = self._session, list(prompt)
        last = min(len(prompt) + session.settings.answer_tokens, self._room)
        while len(tokens) < last:
            inputs = torch.tensor([tokens], device=session.world.device)
            with session.precision.autocast():
                logits = session.objective.model(inputs)
            token = session.world.from_main(int(logits[0, -1, : self._tokenizer.size].argmax()))
            if token in self._tokenizer.stops:
                break
            tokens.append(token)
        return tokens[len(prompt) :]
