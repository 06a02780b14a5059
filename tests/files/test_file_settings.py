"""The settings `files_in` and `files_out`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pacerelled.config import load_settings
from pacerelled.errors import ConfigError
from pacerelled.files import is_hidden


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DOWNLOAD_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_saving_has_a_folder_and_sending_none(home: Path) -> None:
    found = load_settings(home / "config.toml", {}, {})
    assert found.files_in == (home / "Downloads" / "Pacerelle",)
    assert found.files_out == ()


def test_the_systems_download_folder_is_used(home: Path) -> None:
    (home / ".config").mkdir()
    (home / ".config" / "user-dirs.dirs").write_text('XDG_DOWNLOAD_DIR="$HOME/Téléchargements"\n')
    assert load_settings(home / "x", {}, {}).files_in == (home / "Téléchargements" / "Pacerelle",)


def test_lists_in_the_file_and_in_the_environment(home: Path) -> None:
    file = home / "config.toml"
    file.write_text('files_in = []\nfiles_out = ["~/Documents", "/srv/out"]\n')
    found = load_settings(file, {}, {})
    assert (found.files_in, found.files_out) == ((), (home / "Documents", Path("/srv/out")))
    env = {"PACERELLED_FILES_OUT": os.pathsep.join(["/a b", "~", ""]), "PACERELLED_FILES_IN": ""}
    found = load_settings(file, env, {})
    assert (found.files_in, found.files_out) == ((), (Path("/a b"), home))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('files_out = "~/Documents"', "list"),
        ("files_out = [1]", "list"),
        ("files_out = true", "list"),
        ('files_out = ["Documents"]', "whole path"),
        ('files_out = ["~nobody-has-this-name/x"]', "whole path"),
        ('files_out = ["/a\\u0000b"]', "whole path"),
        ('files_in = ["~/.ssh"]', "hidden"),
        ('files_in = ["/srv/.git/x"]', "hidden"),
    ],
)
def test_a_wrong_list_names_the_setting(home: Path, text: str, word: str) -> None:
    (home / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(home / "config.toml", {}, {})
    assert f"`{text.split()[0]}`" in caught.value.message
    assert word in caught.value.message
    assert "files_" in caught.value.hint or "dot" in caught.value.hint


def test_a_home_in_a_hidden_folder_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / ".homes" / "ada"))
    assert not is_hidden(tmp_path / ".homes" / "ada" / "Documents")
    assert is_hidden(tmp_path / ".homes" / "ada" / ".ssh")
    assert is_hidden(tmp_path / ".homes" / "bob" / "Documents")
