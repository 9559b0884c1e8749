"""A sampler's client that is read and checked as an agent would."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from gputui.machine.gpu_model import FastTick, Message
from gputui.machine.sampler_client import SamplerClient, SamplerHealth
from gputui.store.series import GpuSample

M = TypeVar("M")


class Watched:
    """Keeps every message and every state of health, and how long one turn waited at most: an agent must never wait."""

    def __init__(self, client: SamplerClient) -> None:
        self.client = client
        self.messages: list[Message] = []
        self.healths: list[SamplerHealth] = []

    def turn(self, timeout_seconds: float = 0.02) -> None:
        select.select([self.client], [], [], timeout_seconds)
        self.messages += self.client.read()
        self.healths.append(self.client.check(time.monotonic()))

    def until(self, happened: Callable[[], bool], timeout_seconds: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not happened():
            if time.monotonic() > deadline:
                kinds = [message.kind for message in self.messages]
                pytest.fail(f"not within {timeout_seconds} s; health {self.healths[-1:]}, messages {kinds[-20:]}")
            self.turn()

    def next(self, kind: type[M], suits: Callable[[M], bool] = lambda message: True) -> M:
        """The first message of a kind, from now on, that suits."""
        position = len(self.messages)
        matches: list[M] = []

        def happened() -> bool:
            nonlocal position
            new = self.messages[position:]
            position = len(self.messages)
            matches.extend(message for message in new if isinstance(message, kind) and suits(message))
            return bool(matches)

        self.until(happened)
        return matches[0]

    def next_sample(self, index: int = 0, suits: Callable[[GpuSample], bool] = lambda sample: True) -> GpuSample:
        """The next sample of the GPU at a place in the list that suits."""
        tick = self.next(FastTick, lambda tick: len(tick.gpus) > index and suits(tick.gpus[index]))
        return tick.gpus[index]

    def next_health(self, state: str) -> SamplerHealth:
        self.turn()
        self.until(lambda: self.healths[-1].state == state)
        return self.healths[-1]
