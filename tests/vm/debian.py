# SPDX-License-Identifier: Apache-2.0
"""Packages of the Debian release that runs in the test machines: looked up, downloaded and
unpacked with package lists of our own. Nothing is installed on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vm.cache import run, say

__all__ = ["KEYRING", "RELEASE", "Debian", "KernelPackages"]

RELEASE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_META = "linux-image-cloud-amd64"  # names the newest kernel of a suite; has all of CXL


@dataclass(frozen=True)
class KernelPackages:
    """release: as uname -r says. packages: to be unpacked, one over the other."""

    release: str
    packages: tuple[str, ...]


class Debian:
    """The release and its backports, through an apt whose state lies in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mirror = _mirror()
        self._fresh = False

    def kernel(self, wanted: str) -> KernelPackages:
        """The kernel whose version begins with wanted ("6.12"); the newest where none does."""
        self._update()
        releases: list[str] = []
        for meta in self._show(_META):
            found = re.search(r"linux-image-(\d\S*)", meta.get("Depends", ""))
            if found:
                releases.append(found[1])
        if not releases:
            raise SystemExit(f"{_META} of {RELEASE} names no kernel: {self.mirror}")
        fitting = [r for r in releases if r.startswith(f"{wanted}.")]
        release = (fitting or sorted(releases, key=_numbers))[-1]
        if not fitting:
            say(f"{RELEASE} and its backports have no kernel {wanted}: {release} in its place")
        return KernelPackages(release, self._parts(release))

    def _parts(self, release: str) -> tuple[str, ...]:
        """Newer releases spread a kernel over several packages, tied by Depends."""
        parts: list[str] = []
        todo = [f"linux-image-{release}"]
        while todo:
            name = todo.pop()
            parts.append(name)
            depends = self._show(name)[0].get("Depends", "")
            for part in ("binary", "modules", "base"):
                other = f"linux-{part}-{release}"
                if re.search(rf"{re.escape(other)}( |,|$)", depends) and other not in parts:
                    todo.append(other)
        return tuple(dict.fromkeys(parts))

    def unpack(self, packages: tuple[str, ...], to: Path) -> None:
        """Downloads the packages and unpacks them into a folder."""
        self._update()
        debs = self.folder / "debs"
        debs.mkdir(exist_ok=True)
        self._apt("apt-get", "-qq", "download", *packages, cwd=debs)
        for package in packages:
            for deb in debs.glob(f"{package}_*.deb"):
                run("dpkg-deb", "-x", deb, to)
                deb.unlink()

    def bootstrap(
        self, to: Path, packages: tuple[str, ...], *, keep_docs: bool = False
    ) -> None:
        """A root of the release with these packages, by mmdebstrap."""
        sources = f"deb [signed-by={KEYRING}] {self.mirror} {RELEASE} main"
        options = ["--aptopt=Apt::Install-Recommends false"]
        if not keep_docs:
            for part in ("man", "locale", "doc", "info"):
                options.append(f"--dpkgopt=path-exclude=/usr/share/{part}/*")
        run(
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--mode=root",
            f"--include={','.join(packages)}",
            *options,
            RELEASE,
            to,
            sources,
        )

    def _update(self) -> None:
        if self._fresh:
            return
        for place in ("lists/partial", "cache/archives/partial"):
            (self.folder / place).mkdir(parents=True, exist_ok=True)
        (self.folder / "debian.sources").write_text(
            f"Types: deb\nURIs: {self.mirror}\nSuites: {RELEASE} {RELEASE}-backports\n"
            f"Components: main\nSigned-By: {KEYRING}\n"
        )
        self._apt("apt-get", "-qq", "update")
        self._fresh = True

    def _show(self, package: str) -> list[dict[str, str]]:
        text = self._apt("apt-cache", "show", package)
        records = []
        for block in text.strip().split("\n\n"):
            fields = re.findall(r"^([A-Za-z0-9-]+): (.*)$", block, re.M)
            records.append(dict(fields))
        return records

    def _apt(self, program: str, *words: str, cwd: Path | None = None) -> str:
        options = {
            "Dir::Etc::sourcelist": self.folder / "debian.sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "Dir::State::status": "/dev/null",
            "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64",
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return run(program, *given, *words, cwd=cwd)


def _numbers(release: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", release)]


def _mirror() -> str:
    """The Debian mirror this machine uses; Debian's own where it is not a Debian."""
    text = run(
        "apt-get",
        "indextargets",
        "--format",
        "$(ORIGIN)|$(LABEL)|$(SITE)",
        "Created-By: Packages",
    )
    for line in text.splitlines():
        origin, label, site = line.split("|", 2)
        if (origin, label) == ("Debian", "Debian"):
            return site.rstrip("/")
    return "http://deb.debian.org/debian"
