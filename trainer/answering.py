"""Answers of a language model: to held-out prompts during training, and of a finished one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.data import Text
from trainer.errors import SettingsError
from trainer.exporting import Restored
from trainer.session import PhaseSession
from trainer.tokenizer import Tokenizer


def generate(
    prompt: Sequence[int],
    scores: Callable[[list[int]], Tensor],
    pick: Callable[[Tensor], int],
    *,
    most: int,
    stops: Collection[int],
) -> list[int]:
    """Continue a prompt, up to `most` tokens in all or one of `stops`. Returns the new tokens.

    `scores` maps the tokens so far to the logits [size] of the next one, of which `pick` chooses it.
    """
    tokens = list(prompt)
    while len(tokens) < most and (token := pick(scores(tokens))) not in stops:
        tokens.append(token)
    return tokens[len(prompt) :]


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

    def answers(self) -> list[tuple[str, str]]:
        """Answer each prompt greedily with the current weights; pairs of prompt and answer (collective)."""
        session, tokenizer = self._session, self._tokenizer

        def pick(logits: Tensor) -> int:
            return session.world.from_main(int(logits.argmax()))  # rank 0's, because GPUs may round differently

        session.objective.eval()
        try:
            # Each token makes another length, for which compiled blocks would be compiled again.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"), session.precision.autocast():
                answers = [
                    generate(
                        prompt,
                        self._scores,
                        pick,
                        most=min(len(prompt) + session.settings.answer_tokens, self._context),
                        stops=tokenizer.stops,
                    )
                    for prompt in self._prompts
                ]
        finally:
            session.objective.train()
        return [
            (tokenizer.text(prompt), tokenizer.text(answer))
            for prompt, answer in zip(self._prompts, answers, strict=True)
        ]

    def _scores(self, tokens: list[int]) -> Tensor:
        # Ranks that share layers take lengths that they divide; no token sees what comes after it.
        padding = [0] * (-len(tokens) % self._session.settings.tensor_parallel)
        inputs = torch.tensor([tokens + padding], device=self._session.world.device)
        logits: Tensor = self._session.objective.model(inputs)
        return logits[0, len(tokens) - 1, : self._tokenizer.size]


@torch.no_grad()
def answer(restored: Restored, prompt: str, *, tokens: int, temperature: float, plain: bool) -> str:
    """Generate an answer to a prompt, or with `plain` its continuation, of at most `tokens` tokens.

    Greedy, or with a temperature above 0 sampled by torch's random state. Raises SettingsError if the prompt fills the
    context.
    """
    tokenizer, network = restored.tokenizer(), restored.network
    ids = tokenizer.beginning(prompt) if plain else tokenizer.prompt([{"role": "user", "content": prompt}])
    context = getattr(network.config, "max_position_embeddings", None) or len(ids) + tokens
    if len(ids) >= context:
        raise SettingsError(f"--prompt has {len(ids)} tokens, and the model sees {context} at once: shorten it")
    cache: Any = None
    seen = 0

    def scores(so_far: list[int]) -> Tensor:
        nonlocal cache, seen
        output = network(torch.tensor([so_far[seen:]]), **({} if cache is None else {"past_key_values": cache}))
        cache = getattr(output, "past_key_values", None)
        seen = 0 if cache is None else len(so_far)
        logits: Tensor = output.logits[0, -1, : tokenizer.size]
        return logits

    def pick(logits: Tensor) -> int:
        if temperature:
            return int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1))
        return int(logits.argmax())

    new = generate(ids, scores, pick, most=min(len(ids) + tokens, context), stops=tokenizer.stops)
    return tokenizer.text(new)
