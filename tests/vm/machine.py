"""A throw-away Debian in QEMU, for what only a real systemd can show. Nothing of it ever runs on the machine itself.

An image is made once for each Debian release (mmdebstrap, as root) and kept in `$PACERELLED_VM_DIR`, by default
`~/.cache/pacerelled-vm`. A run boots it with changes thrown away, and hands it folders as further disks; the first one
has a script `start`, which says on the second serial port what the caller wants to know, and powers the machine off.
The cloud kernel has drivers for NVMe and ext4 built in, so that it boots without an initrd. The order in which it finds
disks is not sure: the root is found by the id of its partition, the others by their labels.
"""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SUITES = {"bookworm": 252, "trixie": 257}  # Debian release → its systemd
PROGRAMS = ("qemu-system-x86_64", "mke2fs")
PACKAGES = (
    "systemd", "systemd-sysv", "libpam-systemd", "dbus-user-session", "polkitd", "procps",
    # what CPython's own modules are linked with
    "libssl3", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5", "libreadline8", "libncursesw6", "libuuid1",
    "zlib1g", "libexpat1", "libstdc++6",
)  # fmt: skip
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_reap.service", "fstrim.timer")
USER = "ada"
DISK_ID = 0x70616365  # of a master boot record, with which the kernel finds its root
LINUX_PARTITION = 0x83
_SPARE = 1024  # MiB that an image has for what is written in it
_CONSOLE_LINES = 40  # of a machine that failed, for the error
_ROOT_UNIT = """\
[Unit]
Wants=systemd-user-sessions.service systemd-logind.service
After=systemd-user-sessions.service systemd-logind.service dbus.service
FailureAction=poweroff-force
[Service]
ExecStart=/bin/sh -c 'mkdir -p /payload && mount -o ro LABEL=payload /payload && exec /bin/sh /payload/start'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS1
[Install]
WantedBy=multi-user.target
"""


class NoMachine(Exception):
    """There can be none here, and why."""


class MachineFailed(Exception):
    """It did not come to its end."""


def folder() -> Path:
    """Where images are kept."""
    named = os.environ.get("PACERELLED_VM_DIR")
    return Path(named) if named else Path.home() / ".cache" / "pacerelled-vm"


@dataclass(frozen=True)
class Image:
    root: Path
    kernel: Path


def image(suite: str) -> Image:
    """The image of a Debian release, made if it is missing. Raises NoMachine."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        raise NoMachine(f"{', '.join(missing)} is missing (Debian: apt install qemu-system-x86 e2fsprogs)")
    made = Image(folder() / f"{suite}.ext4", folder() / f"{suite}.vmlinuz")
    if not made.root.exists():
        if os.getuid() != 0 or shutil.which("mmdebstrap") is None:
            raise NoMachine(f"there is no image of {suite}, and making one needs root and mmdebstrap")
        _make(suite, made)
    return made


def _make(suite: str, made: Image) -> None:
    made.root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.root.parent) as work:
        tree = Path(work, "tree")
        kernel = (
            "mkdir /kernel && cd /kernel && apt-get download $(apt-cache depends linux-image-cloud-amd64 |"
            " sed -n 's/^ *Depends: \\(linux-image-[^ ]*\\)$/\\1/p' | head -1) && dpkg-deb -x linux-image-*.deb ."
        )
        command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet", f"--include={','.join(PACKAGES)}"]
        command += [
            f'--customize-hook=chroot "$1" sh -c {shlex.quote(kernel)}',
            suite,
            str(tree),
            *_sources(suite, work),
        ]
        done = subprocess.run(_apart(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoMachine(f"the packages for {suite} cannot be had: {done.stderr.strip()[-2000:]}")
        (found,) = tree.glob("kernel/boot/vmlinuz-*")
        shutil.copy(found, made.kernel)
        shutil.rmtree(tree / "kernel")
        _furnish(tree)
        pack(tree, made.root, "root", spare=_SPARE, bootable=True)


def _apart(command: Sequence[str]) -> list[str]:
    """In mount and process namespaces of its own: nothing that packages mount or start stays behind."""
    return ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private", *command]


def _sources(suite: str, work: str) -> list[str]:
    """This machine's own places to get Debian from; none, where it has none to tell: mmdebstrap knows one."""
    here = Path("/etc/apt/sources.list.d/debian.sources")
    if not here.exists():
        return []
    text = here.read_text()
    for other in SUITES:
        text = text.replace(other, suite)
    there = Path(work, "debian.sources")
    there.write_text(text)
    return [str(there)]


def _furnish(tree: Path) -> None:
    def write(place: str, text: str) -> None:
        file = tree / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("etc/hostname", "machine\n")
    write("etc/hosts", "127.0.0.1 localhost machine\n")
    write("etc/machine-id", f"{0xADA:032x}\n")
    write("etc/fstab", "LABEL=root / ext4 defaults 0 0\n")
    write("etc/systemd/system/payload.service", _ROOT_UNIT)
    units = tree / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/payload.service").symlink_to("../payload.service")
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (tree / "var/log/journal").mkdir(exist_ok=True)  # so that users have journals of their own
    subprocess.run(["chroot", tree, "useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)


def pack(source: Path, target: Path, label: str, *, spare: int = 16, bootable: bool = False) -> None:
    """A disk with the content of a folder, and so many MiB free. A bootable one has a partition, which has an id."""
    used = int(subprocess.run(["du", "-sm", source], capture_output=True, check=True).stdout.split()[0])
    size, start = used * 5 // 4 + spare, int(bootable)  # MiB
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    with new.open("wb") as file:
        file.truncate((start + size) << 20)
        if bootable:
            file.seek(440)
            file.write(struct.pack("<I2x4xB3xII", DISK_ID, LINUX_PARTITION, start << 11, size << 11))
            file.seek(510)
            file.write(b"\x55\xaa")
    options = f"lazy_itable_init=1,nodiscard,offset={start << 20}"
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-L", label, "-E", options, "-d", source, new, f"{size}M"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    new.rename(target)


def run(image: Image, disks: Sequence[Path], *, within: float) -> str:
    """Boots it, and returns what it said until it was powered off. `within` is in seconds. Raises MachineFailed."""
    with tempfile.TemporaryDirectory() as work:
        said, console = Path(work, "said"), Path(work, "console")
        command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35"]
        command += ["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "2048", "-kernel", str(image.kernel)]
        command += [
            "-append",
            f"root=PARTUUID={DISK_ID:08x}-01 rw console=ttyS0 quiet panic=-1 systemd.mask=serial-getty@ttyS0.service",
        ]
        command += ["-serial", f"file:{console}", "-serial", f"file:{said}", "-device", "nvme,id=disks,serial=disks"]
        for number, disk in enumerate([image.root, *disks], 1):
            command += ["-drive", f"if=none,id=disk{number},format=raw,file={disk},snapshot=on"]
            command += ["-device", f"nvme-ns,bus=disks,drive=disk{number},nsid={number}"]
        try:
            done = subprocess.run(
                ["nice", "-n", "10", *command], env={**os.environ, "TMPDIR": work}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False, timeout=within,
            )  # fmt: skip
            failed = f"QEMU ended with exit code {done.returncode}: {done.stderr}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            failed = f"It was not done after {within:g} s."
        text = said.read_text(errors="replace") if said.exists() else ""
        if failed:
            lines = console.read_text(errors="replace").splitlines() if console.exists() else []
            raise MachineFailed("\n".join([failed, text, *lines[-_CONSOLE_LINES:]]))
        return text
