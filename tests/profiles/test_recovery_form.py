"""What may be written under a profile's ``recovery:``, and where each mistake is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.core.yaml_forms.problems import Problem, ProfileError
from gputui.profiles.profile_file import read_profile
from tests.tables import table

FILE = Path("mine.yaml")


def problems(recovery: str) -> list[Problem]:
    with pytest.raises(ProfileError) as caught:
        read_profile(f"script: a.py\nrecovery: {recovery}", FILE)
    assert all(problem.line == 2 for problem in caught.value.problems)
    return caught.value.problems


@table(
    ("recovery", "key", "meant"),
    [
        ("standart", "recovery", "standard"),
        ("{policy: standart}", "recovery.policy", "standard"),
        ("{max_atempts: 5}", "recovery.max_atempts", "max_attempts"),
        ("{max_attempts: 0}", "recovery.max_attempts", None),
        ("{backoff: {bass: 5}}", "recovery.backoff.bass", "base"),
        ("{backoff: {base: .nan}}", "recovery.backoff.base", None),
        ("{ends_on: hang}", "recovery.ends_on", None),
        ("{ends_on: [hang, hangs]}", "recovery.ends_on.1", "hang"),
        ("{policy: off, ends_on: [hang]}", "recovery.ends_on", None),
        ("{policy: off, ladders: {cuda_oom: [restart]}}", "recovery.ladders", None),
        ("{hang_after: 0}", "recovery.hang_after", None),
        ("{ladders: {cuda_om: [restart]}}", "recovery.ladders.cuda_om", "cuda_oom"),
        ("{ladders: {import_error: [restart]}}", "recovery.ladders.import_error", None),
        ("{ladders: {cuda_oom: {restart: 1}}}", "recovery.ladders.cuda_oom", None),
        ("{ladders: {cuda_oom: [shrink_bach]}}", "recovery.ladders.cuda_oom.0", "shrink_batch"),
        ("{ladders: {cuda_oom: [[restart, shrink_bach]]}}", "recovery.ladders.cuda_oom.0.1", "shrink_batch"),
        ("{ladders: {cuda_oom: [stop, restart]}}", "recovery.ladders.cuda_oom.0", None),
        ("{ladders: {cuda_oom: [{rollback: 0}]}}", "recovery.ladders.cuda_oom.0", None),
        ("{notify: {}}", "recovery.notify", None),
        ("{notify: {x: 1}}", "recovery.notify.x", None),
        ("{notify: {command: mail me}}", "recovery.notify.command", None),
        ("{notify: {webhook: 'ftp://x'}}", "recovery.notify.webhook", None),
    ],
)
def test_a_mistake_has_its_place_and_the_nearest_right_word(recovery: str, key: str, meant: str | None) -> None:
    (found,) = problems(recovery)
    assert (found.key, found.nearest) == (key, meant)


def test_what_may_be_a_secret_is_not_shown() -> None:
    for notify in ("{webhook: 'htps://hooks.example.org/s3cret'}", "{command: curl s3cret}", "{command: [1, s3cret]}"):
        assert "s3cret" not in str(problems(f"{{notify: {notify}}}")[0])


@table(
    ("recovery", "policy"),
    [("off", "off"), ("false", "off"), ("{policy: off}", "off"), ("restart-only", "restart-only"), *(
        (text, "standard") for text in (
            "standard", "{}", "{max_attempts: 10000, hang_after: 1}",
            "{backoff: {base: 0, factor: 1.5, max: 60, jitter: 1}}", "{ends_on: []}", "{ladders: {default: restart}}",
            "{ladders: {nan_loss: [{rollback: 2}, [lower_lr, tighter_clip], {wait: 5, lower_lr: }, stop]}}",
            "{notify: {command: [mail, me], webhook: 'https://example.org/hook'}}",
        )
    )],
)  # fmt: skip
def test_what_may_be_written(recovery: str, policy: str) -> None:
    assert read_profile(f"script: a.py\nrecovery: {recovery}", FILE).form.recovery["policy"] == policy
