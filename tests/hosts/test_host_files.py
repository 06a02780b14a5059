"""What happens to a host's file when writing it goes wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pacerelle_cli.hosts import files
from pacerelle_cli.hosts.errors import BadHostFile


def test_a_file_that_another_program_changed_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    file = files.read(path)
    path.write_text('{"theirs": 1}')
    with pytest.raises(BadHostFile, match="changed by another program"):
        file.write('{"ours": 1}')
    assert path.read_text() == '{"theirs": 1}'


def test_a_file_that_appeared_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    file = files.read(path)
    path.write_text("{}")
    with pytest.raises(BadHostFile, match="changed by another program"):
        file.write("")
    assert path.read_text() == "{}"


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    file = files.read(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadHostFile, match="No space left"):
        file.write("{ }")
    assert (path.read_text(), os.listdir(tmp_path)) == ("{}", ["settings.json"])


def test_a_path_that_is_no_utf8_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    with pytest.raises(BadHostFile, match="cannot hold the path"):
        files.read(path).write("/h\udce4/python")
    assert not path.exists()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadHostFile, match="cannot be read"):
        files.read(tmp_path)


def test_a_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "dotfiles" / "file")
    assert files.read(link).write("{}") is None
    assert (tmp_path / "dotfiles" / "file").read_text() == "{}"
    assert stat.S_IMODE((tmp_path / "dotfiles").stat().st_mode) == 0o700
    assert link.is_symlink()
