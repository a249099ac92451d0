# SPDX-License-Identifier: Apache-2.0
"""Keeps a peer on loopback: it runs in network and process namespaces of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def command() -> list[str]:
    """What to put before a command so that it has loopback only, and so that all its
    processes end when it does. Raises RuntimeError where the kernel does not let us."""
    program = shutil.which("unshare")
    if program is None:
        raise RuntimeError("unshare is not installed (Debian and Ubuntu: package util-linux)")
    words = [program, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        words += ["--user", "--map-root-user"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise RuntimeError(
            f"no network namespace of its own: {tried.stderr.strip()}; run it as root, or "
            "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)"
        )
    return words


def loopback_up() -> None:
    """Brings up lo in a new network namespace. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a server: asks, waits 5 s, kills."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
