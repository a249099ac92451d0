# SPDX-License-Identifier: Apache-2.0
"""What a test machine boots: a kernel with a small first root, and a Debian root image.

The kernel packages are unpacked, never installed. The root image holds packages only: the
product and the tests come on a disk of their own (payload.py), so a change of them makes
no image anew. Everything is kept in a cache folder.
"""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from vm.cache import ROOT, built, digest, run
from vm.debian import RELEASE, Debian

__all__ = ["Images", "Kernel"]

_HERE = Path(__file__).resolve().parent

# Of the boot image. sacctl's own Python packages, as far as the release has them in
# versions that pyproject.toml takes; _WHEELS for the rest.
_PACKAGES = (
    "acl",
    "busybox-static",
    "cxl",
    "daxctl",
    "dbus",
    "iproute2",
    "kmod",
    "libstdc++6",
    "ndctl",
    "pciutils",
    "procps",
    "python3",
    "python3-numpy",
    "python3-pyudev",
    "python3-rich",
    "python3-venv",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
)
_WHEELS = ("click",)

# What the first root loads or a test may load: disks, CXL, DAX, watchdogs, error injection.
_MODULES = (
    "virtio_blk",
    "ext4",
    "overlay",
    "crc32c_generic",
    "cxl_acpi",
    "cxl_pci",
    "cxl_mem",
    "cxl_port",
    "cxl_pmem",
    "device_dax",
    "dax_cxl",
    "dax_hmem",
    "kmem",
    "softdog",
    "einj",
    "hwpoison-inject",
)

# Units that cost seconds and do nothing for a test.
_MASKED = (
    "getty.target",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-random-seed.service",
    "systemd-update-utmp.service",
    "systemd-machine-id-commit.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "cxl-monitor.service",
    "ndctl-monitor.service",
    "systemd-hwdb-update.service",
    "systemd-binfmt.service",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "systemd-pcrphase.service",
)


@dataclass(frozen=True)
class Kernel:
    """release: as uname -r says. image: an ELF vmlinux. first_root: a cpio archive."""

    release: str
    image: Path
    first_root: Path


class Images:
    """Everything bootable, in a cache folder."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.debian = Debian(cache / "apt")

    def root(self) -> Path:
        """The root image, ext4, read-only in every machine."""
        tree = self.tree()
        key = (tree / ".made-from").read_text()
        folder = built(self.cache / "image", key, "the root image", self._write_image)
        return folder / "root.ext4"

    def tree(self) -> Path:
        """The root as a folder."""
        wheels = [_pinned(name) for name in _WHEELS]
        key = digest([RELEASE, *_PACKAGES, *wheels, *_MASKED])

        def make(folder: Path) -> None:
            self.debian.bootstrap(folder / "root", _PACKAGES)
            _configure(folder / "root")
            for wheel in wheels:
                unpack_wheel(wheel, folder / "root/usr/local/lib/python3.13/dist-packages")

        return built(self.cache / "tree", key, f"a {RELEASE} root (mmdebstrap)", make)

    def _write_image(self, folder: Path) -> None:
        tree = self.cache / "tree/root"
        mib = int(run("du", "-sm", tree).split()[0])
        # No journal: nothing ever writes to it.
        run(
            *("mkfs.ext4", "-q", "-F", "-d", tree, "-L", "root", "-m", "0"),
            *("-O", "^has_journal", folder / "root.ext4", f"{mib * 5 // 4 + 64}M"),
        )

    def kernel(self, wanted: str) -> Kernel:
        """A kernel by the beginning of its version, such as "6.12"."""
        key = digest([wanted, RELEASE, *_MODULES])
        folder = self.cache / f"kernel-{wanted}"

        def make(new: Path) -> None:
            found = self.debian.kernel(wanted)
            self.debian.unpack(found.packages, new / "packages")
            (new / "release").write_text(found.release)
            compressed = next((new / "packages").rglob("vmlinuz*"))
            (new / "vmlinux").write_bytes(_uncompressed(compressed.read_bytes()))
            _pick_modules(new / "packages", found.release, new / "modules")
            shutil.rmtree(new / "packages")

        built(folder, key, f"kernel {wanted}", make)
        release = (folder / "release").read_text()
        first = self._first_root(folder, release)
        return Kernel(release, folder / "vmlinux", first)

    def _first_root(self, kernel: Path, release: str) -> Path:
        """Busybox, modules and guest/first: mounts the image and starts the real init."""
        busybox = self.cache / "tree/root/usr/bin/busybox"
        first = _HERE / "guest/first"

        def make(folder: Path) -> None:
            root = folder / "root"
            for place in ("bin", "sbin", "dev", "proc", "sys", "run", "lower", "upper", "new"):
                (root / place).mkdir(parents=True)
            shutil.copy(busybox, root / "bin/busybox")
            # The kernel itself calls /sbin/modprobe, for a checksum of ext4's.
            (root / "sbin/modprobe").symlink_to("/bin/busybox")
            shutil.copy(first, root / "init")
            (root / "init").chmod(0o755)
            shutil.copytree(kernel / "modules/lib/modules", root / "lib/modules")
            with (folder / "first.cpio").open("wb") as out:
                names = "\n".join(str(p.relative_to(root)) for p in sorted(root.rglob("*")))
                subprocess.run(
                    ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"],
                    input=names.encode(),
                    stdout=out,
                    cwd=root,
                    check=True,
                )
            shutil.rmtree(root)

        key = digest([first, busybox, release])
        where = self.cache / f"first-{kernel.name}"
        return built(where, key, f"the first root for {release}", make) / "first.cpio"


def unpack_wheel(requirement: str, to: Path) -> None:
    """A pure Python wheel from the package index, unpacked into a folder of packages."""
    to.mkdir(parents=True, exist_ok=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install")
    run(
        *pip,
        "install",
        "--no-deps",
        "--no-compile",
        "--only-binary=:all:",
        "-t",
        to,
        requirement,
    )


def _pinned(name: str) -> str:
    """The requirement that make installs: "click==8.5.1"."""
    text = (ROOT / "requirements/build.txt").read_text()
    found = re.search(rf"^{re.escape(name)}==\S+$", text, re.M)
    if not found:
        raise SystemExit(f"requirements/build.txt pins no {name}")
    return found[0]


def _configure(root: Path) -> None:
    """No terminals, no timers, a fixed name and machine id."""
    units = root / "etc/systemd/system"
    for unit in _MASKED:
        (units / unit).symlink_to("/dev/null")
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    (root / "etc/hostname").write_text("vm\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost vm\n")
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (root / "etc/fstab").write_text("")


def _uncompressed(image: bytes) -> bytes:
    """The ELF kernel in a bzImage, which starts faster. The boot protocol's header says
    where it lies: setup_sects at 0x1f1, payload_offset at 0x248, payload_length at 0x24c."""
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    packed = image[start : start + length]
    if packed.startswith(b"\x28\xb5\x2f\xfd"):
        # The payload ends with its own size, which zstd does not know.
        done = subprocess.run(["zstd", "-dcq"], input=packed, capture_output=True, check=False)
        elf = done.stdout
    elif packed.startswith(b"\xfd7zXZ\0"):
        elf = lzma.LZMADecompressor().decompress(packed)
    elif packed.startswith(b"\x1f\x8b"):
        elf = gzip.decompress(packed)
    else:
        raise SystemExit(f"a kernel packed in an unknown way: {packed[:8].hex()}")
    if not elf.startswith(b"\x7fELF"):
        raise SystemExit("the kernel package holds no ELF kernel")
    return elf


def _pick_modules(packages: Path, release: str, to: Path) -> None:
    """_MODULES and what they need, uncompressed, with an index of their own."""
    tree = next(
        place
        for place in (
            packages / "usr/lib/modules" / release,
            packages / "lib/modules" / release,
        )
        if place.is_dir()
    )
    if tree.parents[2] != packages:  # kmod looks in lib/modules
        (packages / "lib").mkdir(exist_ok=True)
        (packages / "lib/modules").symlink_to(packages / "usr/lib/modules")
    target = to / "lib/modules" / release
    target.mkdir(parents=True)
    run("depmod", "-b", packages, release)
    files: set[Path] = set()
    for module in _MODULES:
        # A module that is built in, or that this kernel has not, names no file.
        shown = subprocess.run(
            ["modprobe", "-d", packages, "-S", release, "--show-depends", module],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        files |= {Path(found) for found in re.findall(r"^insmod (\S+)", shown, re.M)}
    for file in sorted(files):
        inside = str(file).split(f"{release}/", 1)[1]
        out = target / re.sub(r"\.(xz|zst)$", "", inside)
        out.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".xz":
            out.write_bytes(lzma.decompress(file.read_bytes()))
        elif file.suffix == ".zst":
            run("zstd", "-dq", file, "-o", out)
        else:
            shutil.copy(file, out)
    for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
        if (tree / name).exists():
            shutil.copy(tree / name, target / name)
    run("depmod", "-b", to, release)
