"""What may be read and written, and what may not, whatever lies in the way."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pacerelled.agent import folders as module
from pacerelled.agent.folders import Folders, Source, Target
from pacerelled.errors import AgentError, InvalidArgument, NotPossible


class Place:
    """A home with an allowed folder for each direction, secrets beside them, and the daemon's own folder in between."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.inward, self.outward = home / "Inbox", home / "Documents"
        self.state = self.outward / "store" / "pacerelled"
        for folder in (self.outward / "sub", self.state, home / ".ssh", self.outward / ".git"):
            folder.mkdir(parents=True)
        for secret in (home / "secret.txt", home / ".ssh" / "id", self.state / "store.key", self.outward / ".env"):
            secret.write_text("secret")
        (self.outward / "report.pdf").write_bytes(b"report" * 1000)
        (self.outward / "sub" / "deep.txt").write_text("deep")
        self.folders = Folders((self.inward,), (self.outward,), self.state)

    def read(self, path: Path | str) -> bytes:
        source = self.folders.source(str(path))
        try:
            source.open()
            return b"".join(iter(lambda: source.read(700), b""))
        finally:
            source.close()

    def save(self, name: str, data: bytes = b"data", directory: Path | str | None = None) -> Path:
        target = self.folders.target(None if directory is None else str(directory))
        try:
            target.open()
            target.write(data)
            return target.keep(name)
        finally:
            target.close()

    def everything(self) -> set[str]:
        return {str(path.relative_to(self.home)) for path in self.home.rglob("*")}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Place(tmp_path)


@pytest.fixture
def no_file_left_open() -> Iterator[None]:
    before = os.listdir("/dev/fd")
    yield
    assert len(os.listdir("/dev/fd")) == len(before)


pytestmark = pytest.mark.usefixtures("no_file_left_open")


# -- out -------------------------------------------------------------------------------------------------------


def test_files_in_allowed_folders_are_read(place: Place) -> None:
    assert place.read(place.outward / "report.pdf") == b"report" * 1000
    assert place.read("~/Documents/sub/../sub/deep.txt") == b"deep"
    (place.outward / "link.txt").symlink_to("sub/deep.txt")
    assert place.read(place.outward / "link.txt") == b"deep"
    (place.outward / "empty").touch()
    assert place.read(place.outward / "empty") == b""


def test_an_allowed_folder_may_itself_be_a_link(place: Place) -> None:
    (place.home / "shortcut").symlink_to(place.outward)
    place.folders.outward = (place.home / "shortcut",)
    assert place.read(place.home / "shortcut" / "report.pdf") == b"report" * 1000
    assert place.read(place.outward / "report.pdf") == b"report" * 1000


@pytest.mark.parametrize(
    "path",
    [
        "~/secret.txt",
        "~/Documents/../secret.txt",
        "~/.ssh/id",
        "~/Documents/.env",
        "~/Documents/.git/config",
        "~/Documents/store/pacerelled/store.key",
        "~/Documents/store/pacerelled",
        "~/Documents/leads-out",
        "~/Documents/leads-out-folder/id",
        "~/Documents/to-key",
        "~/Documents/to-state/store.key",
        "~/Documents",
        "~/Documents/sub",
        "~/Documents/pipe",
        "~/Documents/absent.txt",
        "~/Documents/report.pdf/x",
        "~/Documents2/report.pdf",
        "report.pdf",
        "Documents/report.pdf",
        "/dev/null",
        "/",
        "~/Documents/a\0b",
        "~/Documents/loop",
    ],
)
def test_nothing_else_is_read(place: Place, path: str) -> None:
    (place.outward / "leads-out").symlink_to(place.home / "secret.txt")
    (place.outward / "leads-out-folder").symlink_to(place.home / ".ssh")
    (place.outward / "to-key").symlink_to(place.state / "store.key")
    (place.outward / "to-state").symlink_to(place.state)
    (place.outward / "loop").symlink_to("loop")
    (place.home / "Documents2").mkdir()
    (place.home / "Documents2" / "report.pdf").touch()
    os.mkfifo(place.outward / "pipe")
    with pytest.raises(InvalidArgument) as refused:
        place.read(path)
    assert refused.value.argument == "path"
    assert refused.value.hint


def test_the_daemons_own_folder_is_refused_also_from_inside(place: Place) -> None:
    for allowed in (place.state, place.state / "sub", place.state.parent):
        (allowed / "file").parent.mkdir(exist_ok=True)
        (allowed / "file").touch()
        place.folders.outward = place.folders.inward = (allowed,)
        target = "file" if allowed != place.state.parent else "pacerelled/store.key"
        with pytest.raises(InvalidArgument, match="own folder"):
            place.read(allowed / target)
        with pytest.raises(InvalidArgument, match="own folder"):
            place.save("x", directory=allowed if allowed != place.state.parent else place.state)
    # Known by what it is, not only by its name, as after a bind mount.
    with pytest.raises(InvalidArgument, match="own folder"):
        os.close(module._walk(place.state.parent, ("pacerelled",), place.state, "path"))


def test_without_allowed_folders_the_error_says_how_to_allow_one(place: Place) -> None:
    place.folders.outward = place.folders.inward = ()
    with pytest.raises(InvalidArgument) as refused:
        place.read(place.outward / "report.pdf")
    assert 'files_out = ["~/Documents"]' in refused.value.hint
    assert "config.toml" in refused.value.hint
    with pytest.raises(InvalidArgument) as refused:
        place.save("x")
    assert "files_in" in refused.value.hint


@pytest.mark.parametrize("swapped", ["file", "folder"])
def test_a_link_put_in_between_check_and_opening_is_not_followed(place: Place, swapped: str) -> None:
    source = place.folders.source(str(place.outward / "sub" / "deep.txt"))
    if swapped == "file":
        (place.outward / "sub" / "deep.txt").unlink()
        (place.outward / "sub" / "deep.txt").symlink_to(place.home / "secret.txt")
    else:
        (place.outward / "sub").rename(place.outward / "sub2")
        (place.home / ".ssh" / "deep.txt").write_text("secret")
        (place.outward / "sub").symlink_to(place.home / ".ssh")
    with pytest.raises(InvalidArgument, match="a moment ago"):
        source.open()
    source.close()


def test_a_pipe_put_in_its_place_does_not_hold_anybody_up(place: Place) -> None:
    source = place.folders.source(str(place.outward / "report.pdf"))
    (place.outward / "report.pdf").unlink()
    os.mkfifo(place.outward / "report.pdf")
    with pytest.raises(InvalidArgument, match="regular"):
        source.open()
    source.close()


@pytest.mark.parametrize("change", ["longer", "shorter", "same length"])
def test_a_file_that_changes_while_it_is_read_is_not_sent(place: Place, change: str) -> None:
    path = place.outward / "report.pdf"
    source = place.folders.source(str(path))
    source.open()
    assert source.head(6) == b"report"
    assert source.read(6) == b"report"
    if change == "longer":
        with path.open("ab") as file:
            file.write(b"more")
    elif change == "shorter":
        os.truncate(path, 100)
    else:
        path.write_bytes(b"x" * source.size)
        os.utime(path, ns=(0, 0))
    with pytest.raises(NotPossible, match="changed"):
        b"".join(iter(lambda: source.read(1000), b""))
    source.close()
    assert source.read(10) == source.head(10) == b""


# -- in --------------------------------------------------------------------------------------------------------


def test_a_saved_file_is_private_and_so_is_the_folder_made_for_it(place: Place) -> None:
    path = place.save("../../plan.pdf", b"the plan")
    assert path == place.inward / "plan.pdf"
    assert path.read_bytes() == b"the plan"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.inward.stat().st_mode) == 0o700
    assert os.listdir(place.inward) == ["plan.pdf"]


def test_nothing_is_overwritten_whatever_is_there(place: Place) -> None:
    place.inward.mkdir()
    (place.inward / "a.txt").write_text("mine")
    (place.inward / "a (2).txt").symlink_to(place.home / "secret.txt")
    (place.inward / "a (3).txt").symlink_to("nowhere")
    (place.inward / "a (4).txt").mkdir()
    assert place.save("a.txt", b"theirs").name == "a (5).txt"
    assert place.save("a.txt", b"again").name == "a (6).txt"
    assert (place.inward / "a.txt").read_text() == "mine"
    assert (place.home / "secret.txt").read_text() == "secret"
    assert not (place.inward / "nowhere").exists()


def test_there_are_only_so_many_copies(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COPIES", 3)
    for _ in range(3):
        place.save("a")
    with pytest.raises(NotPossible, match="3 files"):
        place.save("a")
    assert sorted(os.listdir(place.inward)) == ["a", "a (2)", "a (3)"]


def test_a_folder_inside_may_be_named_but_must_exist(place: Place) -> None:
    (place.inward / "bills").mkdir(parents=True)
    assert place.save("b.pdf", directory="~/Inbox/bills") == place.inward / "bills" / "b.pdf"
    assert place.save("b.pdf", directory=place.inward) == place.inward / "b.pdf"
    before = place.everything()
    for directory, word in (
        ("~/Inbox/absent", "does not exist"),
        ("~/Inbox/b.pdf", "no folder"),
        ("~/Documents", "none of the allowed"),
        ("~/Inbox/..", "none of the allowed"),
        ("~/.ssh", "none of the allowed"),
        ("Inbox", "whole path"),
    ):
        with pytest.raises(InvalidArgument, match=word) as refused:
            place.save("x", directory=directory)
        assert refused.value.argument == "directory"
    (place.inward / ".hidden").mkdir()
    with pytest.raises(InvalidArgument, match="hidden"):
        place.save("x", directory="~/Inbox/.hidden")
    (place.inward / ".hidden").rmdir()
    assert place.everything() == before


def test_a_folder_on_another_disk_is_an_error_that_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_disk(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(module.os, "link", other_disk)
    with pytest.raises(NotPossible, match="another disk"):
        place.save("a")
    assert os.listdir(place.inward) == []


def test_a_file_system_without_hard_links_is_no_obstacle(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(module.os, "link", no_links)
    assert place.save("a", b"one").read_bytes() == b"one"
    assert place.save("a", b"two") == place.inward / "a (2)"
    assert sorted(os.listdir(place.inward)) == ["a", "a (2)"]


def test_what_is_not_kept_is_gone(place: Place) -> None:
    target = place.folders.target(None)
    target.open()
    target.write(b"half")
    (part,) = os.listdir(place.inward)
    assert part.startswith(".")
    assert stat.S_IMODE((place.inward / part).stat().st_mode) == 0o600
    target.close()
    assert os.listdir(place.inward) == []
    target.close()


def test_a_full_disk_or_a_folder_that_takes_nothing_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", full)
        with pytest.raises(NotPossible, match="No space left"):
            place.save("a")
    assert os.listdir(place.inward) == []
    place.inward.rmdir()
    place.inward.write_text("a file")
    with pytest.raises(AgentError):
        place.save("a")


def test_leftovers_of_a_crash_are_removed_and_nothing_else(place: Place) -> None:
    place.folders.clean()  # there is no folder yet
    place.inward.mkdir()
    leftover = place.inward / ".pacerelle-0123456789abcdef.part"
    in_use = place.inward / ".pacerelle-00000000000000ff.part"
    link = place.inward / ".pacerelle-00000000000000aa.part"
    others = [place.inward / name for name in ("a.part", ".pacerelle-x.part", ".pacerelle-0123456789abcdef.part.pdf")]
    for path in (leftover, in_use, *others):
        path.touch()
    link.symlink_to(place.home / "secret.txt")
    with in_use.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another daemon writes it
        place.folders.clean()
    assert sorted(place.inward.iterdir()) == sorted([in_use, link, *others])
    assert (place.home / "secret.txt").exists()


def test_a_file_in_the_making_is_not_taken_for_a_leftover(place: Place) -> None:
    target = place.folders.target(None)
    target.open()
    target.write(b"data")
    place.folders.clean()
    assert target.keep("a").read_bytes() == b"data"
    target.close()


def test_closing_what_was_never_opened(place: Place) -> None:
    root = module.Place(place.outward, ("report.pdf",))
    Source(root, place.state).close()
    Target(root, place.state).close()
