"""A settings file is read once per version, and again until its version is followed."""

from __future__ import annotations

from pathlib import Path

from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.home_files import SettingsFile, load_used_gpus


def test_a_settings_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    file = SettingsFile(path, load_used_gpus)

    def content() -> frozenset[int | str] | ProfileError | None:
        version = file.newer()
        assert version is not None
        file.follow(version)
        assert file.newer() is None
        return version.content

    assert content() is None
    path.write_text("use: [0, 1]\n")
    assert content() == {0, 1}
    path.write_text("usee: [0]\n")
    assert isinstance(content(), ProfileError)
    path.unlink()
    assert content() is None


def test_a_reading_that_was_not_followed_comes_again(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "gpus.yaml", load_used_gpus)
    assert file.newer() == file.newer() is not None
