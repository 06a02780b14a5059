"""Where files may be saved and sent from, and the files themselves. Everything here blocks: use `work.in_thread`.

Whether a path is allowed is decided on what it is, not on what it is called: it is resolved, then walked down from the
allowed folder with one open folder after the other, none of which may be a symbolic link. What somebody exchanges
between the two ends in an error, not in another file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pacerelled.errors import InvalidArgument, NotPossible
from pacerelled.files import is_hidden

from .names import numbered, safe_name

MAX_COPIES = 1000  # files of one name in a folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART = re.compile(r"\.pacerelle-[0-9a-f]{16}\.part")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # what file systems without hard links say

_SOURCE_HINT = (
    'The user allows a folder with a line like files_out = ["~/Documents"] in config.toml (`pacerelle paths` shows'
    " where that is) and then `pacerelle stop`."
)
_TARGET_HINT = (
    "Leave `directory` out. The user allows another folder with a line like"
    ' files_in = ["~/Downloads/Pacerelle", "~/Documents"] in config.toml (`pacerelle paths` shows where that is).'
)


@dataclass(frozen=True, slots=True)
class Place:
    """A path that is allowed: an allowed folder, resolved, and the way down from it."""

    root: Path
    parts: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.root.joinpath(*self.parts)


class Folders:
    """The folders that the settings `files_in` and `files_out` name. `state` is never among them."""

    def __init__(self, inward: tuple[Path, ...], outward: tuple[Path, ...], state: Path) -> None:
        self.inward = inward
        self.outward = outward
        self.state = state

    def source(self, path: str) -> Source:
        """A file to send, still closed. Raises InvalidArgument."""
        if not self.outward:
            raise InvalidArgument("No folder is allowed to send files from", argument="path", hint=_SOURCE_HINT)
        place = self._place(path, self.outward, "path", _SOURCE_HINT)
        if not place.parts:
            raise InvalidArgument(f"{path} is a folder", argument="path", hint="Send one file of it.")
        return Source(place, self.state)

    def target(self, directory: str | None) -> Target:
        """A file to make in `directory`, else in the first allowed folder. Raises InvalidArgument."""
        if not self.inward:
            raise InvalidArgument("No folder is allowed to save files in", argument="directory", hint=_TARGET_HINT)
        return Target(
            self._place(directory or str(self.inward[0]), self.inward, "directory", _TARGET_HINT),
            self.state,
        )

    def clean(self) -> None:
        """Removes what a daemon that was killed had begun to save. What another one writes to just now stays."""
        for folder in self.inward:
            with suppress(OSError):
                for name in filter(_PART.fullmatch, os.listdir(folder)):
                    with suppress(OSError):
                        _remove_unused(folder / name)

    def _place(self, path: str, allowed: tuple[Path, ...], argument: str, hint: str) -> Place:
        given = os.path.expanduser(path)
        if not os.path.isabs(given) or "\0" in given:
            raise InvalidArgument(
                f"`{argument}` is no whole path", argument=argument, hint="Give it from the root, or from ~, on."
            )
        resolved = Path(os.path.realpath(given))
        for folder in allowed:
            root = Path(os.path.realpath(folder))
            if not resolved.is_relative_to(root):
                continue
            if is_hidden(resolved):
                raise InvalidArgument(
                    f"{path} is hidden or in a hidden folder: settings and keys live there, and none of it is touched",
                    argument=argument,
                    hint="Use a file whose path has no part that begins with a dot.",
                )
            if resolved.is_relative_to(os.path.realpath(self.state)):
                raise _own(argument)
            return Place(root, resolved.relative_to(root).parts)
        raise InvalidArgument(
            f"{path} is in none of the allowed folders: {', '.join(map(str, allowed))}", argument=argument, hint=hint
        )


class Source:
    """A file to be read once. `open` raises InvalidArgument, `read` NotPossible; close it in any case."""

    def __init__(self, place: Place, state: Path) -> None:
        self._place = place
        self._state = state
        self._fd: int | None = None
        self._lock = threading.Lock()  # a call that was cancelled may still read while the file is closed
        self._left = 0
        self._stamp: tuple[int, int] | None = None
        self.name = place.parts[-1]
        self.size = 0  # bytes, once it is open

    def open(self) -> None:
        with _explained(self._place, "path"):
            folder = _walk(self._place.root, self._place.parts[:-1], self._state, "path")
            try:
                # O_NONBLOCK: a pipe would wait for somebody who writes.
                self._fd = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            finally:
                os.close(folder)
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidArgument(
                    f"{self._place.path} is no regular file", argument="path", hint="Send a regular file."
                )
            self.size = self._left = found.st_size
            self._stamp = (found.st_size, found.st_mtime_ns)

    def head(self, count: int) -> bytes:
        """The first bytes; reading starts before them all the same."""
        with self._lock, _readable(self._place):
            return os.pread(self._fd, count, 0) if self._fd is not None else b""

    def read(self, count: int) -> bytes:
        """The next piece, nothing at the end. Raises NotPossible if the file is no longer as it was."""
        with self._lock, _readable(self._place):
            if self._fd is None:
                return b""
            data = os.read(self._fd, min(count, self._left))
            self._left -= len(data)
            if not data:
                found = os.fstat(self._fd)
                if self._left or (found.st_size, found.st_mtime_ns) != self._stamp:
                    raise NotPossible(f"{self._place.path} was changed while it was read", hint="Send it once more.")
            return data

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


class Target:
    """A file in the making: under a hidden name until `keep`, gone after `close` if it was not kept.

    The hidden name is in the allowed folder itself, where `Folders.clean` finds it again after a crash.
    """

    def __init__(self, place: Place, state: Path) -> None:
        self._place = place
        self._state = state
        self._part = f".pacerelle-{secrets.token_hex(8)}.part"
        self._root: int | None = None
        self._folder: int | None = None
        self._fd: int | None = None

    def open(self) -> None:
        """Raises InvalidArgument and NotPossible."""
        with _explained(self._place, "directory"):
            os.makedirs(self._place.root, 0o700, exist_ok=True)
            self._root = _walk(self._place.root, (), self._state, "directory")
            self._folder = _walk(self._place.root, self._place.parts, self._state, "directory")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._part, flags, 0o600, dir_fd=self._root)
            with suppress(OSError):  # not all network file systems know locks
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, data: bytes) -> None:
        """Raises NotPossible."""
        assert self._fd is not None
        with _writable(self._place):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def keep(self, name: str) -> Path:
        """Moves the file into place under the first free name. Nothing is overwritten. Raises NotPossible."""
        assert self._fd is not None
        assert self._folder is not None
        name = safe_name(name)
        with _writable(self._place):
            os.fsync(self._fd)
            for number in range(1, MAX_COPIES + 1):
                try:
                    self._move(numbered(name, number))
                except FileExistsError:
                    continue
                os.fsync(self._folder)
                return self._place.path / numbered(name, number)
        raise NotPossible(f"{self._place.path} has {MAX_COPIES} files of this name", hint="Move some of them away.")

    def mark(self) -> list[int]:
        """What tells the file, now that all is written, from all others, whatever name it gets. Raises NotPossible."""
        assert self._fd is not None
        with _writable(self._place):
            return _mark(os.fstat(self._fd))

    def kept(self, mark: list[int]) -> Path | None:
        """The file with this mark, if it was kept in this folder. Raises NotPossible."""
        assert self._folder is not None
        with _writable(self._place), os.scandir(self._folder) as entries:
            for entry in entries:
                same = entry.inode() == mark[1] and _mark(entry.stat(follow_symlinks=False)) == mark
                if same and not _PART.fullmatch(entry.name):
                    return self._place.path / entry.name
        return None

    def close(self) -> None:
        if self._fd is not None and self._root is not None:
            with suppress(OSError):
                os.unlink(self._part, dir_fd=self._root)
        for fd in (self._fd, self._folder, self._root):
            if fd is not None:
                os.close(fd)
        self._fd = self._folder = self._root = None

    def _move(self, name: str) -> None:
        try:
            os.link(self._part, name, src_dir_fd=self._root, dst_dir_fd=self._folder, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise NotPossible(
                    f"{self._place.path} is on another disk than {self._place.root}",
                    hint="The user can name that folder itself in files_in.",
                ) from error
            if error.errno not in _NO_LINKS:
                raise
            # A name of our own that nobody has, then the file in its place.
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._folder))
            os.replace(self._part, name, src_dir_fd=self._root, dst_dir_fd=self._folder)


def _mark(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _walk(root: Path, parts: tuple[str, ...], state: Path, argument: str) -> int:
    """The open folder at the end of the way. Raises OSError, and InvalidArgument if the way leads into `state`."""
    own = os.stat(state)
    fd = os.open(root, _FOLDER)
    try:
        for part in (None, *parts):
            if part is not None:
                below = os.open(part, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = below
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                raise _own(argument)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _own(argument: str) -> InvalidArgument:
    return InvalidArgument(
        "That is the daemon's own folder: its store and keys are never touched",
        argument=argument,
        hint="Use another folder.",
    )


def _remove_unused(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(fd)


@contextmanager
def _explained(place: Place, argument: str) -> Iterator[None]:
    """Names the path for what the operating system says when it is opened."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            why = "is not what it was a moment ago, or no folder where one must be"
        elif error.errno == errno.ENOENT:
            why = "does not exist"
        else:
            why = f"cannot be opened: {error.strerror}"
        raise InvalidArgument(f"{place.path} {why}", argument=argument, hint="Check the path.") from error


@contextmanager
def _readable(place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotPossible(f"{place.path} cannot be read: {error.strerror}", hint="Check the disk.") from error


@contextmanager
def _writable(place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotPossible(
            f"Nothing can be written into {place.path}: {error.strerror}", hint="Free some space, or mend its rights."
        ) from error
