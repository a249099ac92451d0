# SPDX-License-Identifier: Apache-2.0
"""A test machine: QEMU with CXL devices, and the channel over which its guest asks things.

The guest may ask for QMP commands, for bytes of the files behind the CXL devices, and for
devices to be pulled out and put back. Everything else that it sends is handed on.
"""

from __future__ import annotations

import json
import mmap
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vm.cache import run
from vm.images import Kernel
from vm.qmp import Qmp, QmpError, connect
from vm.topologies import Topology

__all__ = ["AbortedError", "HungError", "Machine", "Settings"]

# The guest must not see a hypervisor: kernels refuse then to flush caches for a CXL region
# they cannot flush on behalf of (docs/vm-testing.md). 5-level page tables only cost time.
_PROCESSOR = "max,-hypervisor,-la57"
_ACCELERATOR = "tcg,thread=multi,tb-size=512"
# Without these two a virtio device cannot reach CXL memory and hangs.
_VIRTIO = "disable-legacy=on,iommu_platform=on"
_STATE_MIB = 512
_UNPLUGGING = 40.0  # the guest takes 5 s to let go


class HungError(Exception):
    """The machine said nothing for too long."""


class AbortedError(Exception):
    """QEMU itself has failed, which says nothing about what ran in it."""


@dataclass(frozen=True)
class Settings:
    """init: "minimal" or "systemd". append: to the kernel's command line. state: what the
    machine writes stays for its next start."""

    topology: Topology
    kernel: Kernel
    root: Path
    init: str = "minimal"
    append: str = ""
    state: bool = False
    memory: str = "1G,maxmem=8G,slots=4"
    processors: int = 1


class Machine:
    """Runs from `with` on, until its end. folder: for its files, console.log among them."""

    def __init__(self, settings: Settings, folder: Path, payload: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.payload = payload
        self._plugs = 0

    def __enter__(self) -> Machine:
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in ("qmp", "channel"):
            (self.folder / stale).unlink(missing_ok=True)
        self._log = (self.folder / "qemu.log").open("wb")
        self._process = subprocess.Popen(
            self._command(), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        try:
            self.qmp = Qmp(self.folder / "qmp")
            self._channel = connect(self.folder / "channel")
        except (OSError, ValueError) as error:
            self._end()
            raise SystemExit(
                f"qemu: {(self.folder / 'qemu.log').read_text()}{error}"
            ) from error
        return self

    def __exit__(self, *exc: object) -> None:
        self.qmp.close()
        self._channel.close()
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def messages(self, limit: Any) -> Iterator[dict[str, Any]]:
        """What the guest says, requests to the host answered and left out, until it powers
        off. limit(): seconds from now that the next message may take. Raises HungError and
        AbortedError."""
        pending = b""
        end = time.monotonic() + limit()
        while True:
            ready, _, _ = select.select(
                [self._channel], [], [], max(0.0, end - time.monotonic())
            )
            if not ready:
                raise HungError(f"nothing heard for {limit():.0f} s")
            got = self._channel.recv(1 << 16)
            if not got:
                self._process.wait(30)
                if self._process.returncode == -signal.SIGABRT:
                    raise AbortedError((self.folder / "qemu.log").read_text().strip())
                return
            pending += got
            while b"\n" in pending:
                line, pending = pending.split(b"\n", 1)
                message = json.loads(line)
                if "do" in message:
                    self._channel.sendall(json.dumps(self._answer(message)).encode() + b"\n")
                else:
                    self._channel.sendall(b"{}\n")
                    yield message
                    end = time.monotonic() + limit()

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        todo = message.pop("do")
        try:
            return {"return": getattr(self, f"do_{todo}")(**message)}
        except (QmpError, OSError, TimeoutError, ValueError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    # ------------------------------------------------- what the guest may ask for

    def do_qmp(self, command: str, arguments: dict[str, Any]) -> Any:
        return self.qmp(command, **arguments)

    def do_peek(self, device: int, offset: int, length: int) -> str:
        """Bytes of a device's memory, in hexadecimal digits."""
        with (self.folder / f"mem{device}").open("rb") as file:
            file.seek(offset)
            return file.read(length).hex()

    def do_find(self, device: int, what: str, most: int) -> list[int]:
        """The offsets at which bytes are found in a device's memory."""
        found: list[int] = []
        with (
            (self.folder / f"mem{device}").open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        ):
            at = memory.find(bytes.fromhex(what))
            while at >= 0 and len(found) < most:
                found.append(at)
                at = memory.find(bytes.fromhex(what), at + 1)
        return found

    def do_nonzero(self, device: int, offset: int, length: int) -> int | None:
        """The offset of a byte in a range of a device's memory that is not zero."""
        step = 1 << 20
        with (self.folder / f"mem{device}").open("rb") as file:
            for at in range(offset, offset + length, step):
                file.seek(at)
                part = file.read(min(step, offset + length - at))
                if rest := part.lstrip(b"\0"):
                    return at + len(part) - len(rest)
        return None

    def do_poke(self, device: int, offset: int, data: str) -> None:
        with (self.folder / f"mem{device}").open("r+b") as file:
            file.seek(offset)
            file.write(bytes.fromhex(data))

    def do_unplug(self, device: int) -> None:
        """Pulls a device out, as by its slot's button: returns when it has gone."""
        self.qmp("device_del", id=f"mem{device}")
        # QEMU's event comes only when its last own reference goes, which it may keep.
        end = time.monotonic() + _UNPLUGGING
        while any(o["name"] == f"mem{device}" for o in self._peripherals()):
            if time.monotonic() > end:
                raise TimeoutError(f"device {device} is still there after {_UNPLUGGING} s")
            time.sleep(0.1)

    def _peripherals(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.qmp("qom-list", path="/machine/peripheral")
        return found

    def do_plug(self, device: int) -> None:
        """Puts it back in its port, with the memory that it had."""
        self._plugs += 1
        topology = self.settings.topology
        back, label = f"back{device}p{self._plugs}", f"label{device}p{self._plugs}"
        self.qmp(
            "object-add",
            **{
                "qom-type": "memory-backend-file",
                "id": back,
                "share": True,
                "mem-path": str(self.folder / f"mem{device}"),
                "size": topology.size(device),
            },
        )
        self.qmp(
            "object-add", **{"qom-type": "memory-backend-ram", "id": label, "size": 1 << 20}
        )
        self.qmp(
            "device_add",
            **{
                "driver": "cxl-type3",
                "bus": topology.devices[device],
                "volatile-memdev": back,
                "lsa": label,
                "id": f"mem{device}",
                "sn": topology.serial(device),
            },
        )

    # ------------------------------------------------------------------- QEMU's words

    def _command(self) -> list[str]:
        settings, folder = self.settings, self.folder
        for device in range(len(settings.topology.devices)):
            file = folder / f"mem{device}"
            if not file.exists():
                with file.open("wb") as out:
                    out.truncate(settings.topology.size(device))
        append = (
            "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic mitigations=off nokaslr "
            # On a busy host the checks of timers at boot fail, and the TSC is measured wrongly.
            "no_timer_check lpj=4000000 "
            f"tsc=unstable clocksource=hpet vm.init={settings.init} {settings.append}"
        )
        disks = self._disk("root", settings.root) + self._disk("payload", self.payload)
        if settings.state:
            state = folder / "state.ext4"
            if not state.exists():
                run("mkfs.ext4", "-q", "-F", "-m", "0", state, f"{_STATE_MIB}M")
            disks += self._disk("state", state, readonly=False)
            append += " vm.state"
        return [
            # It ends with whoever started it, however that ends.
            *("setpriv", "--pdeathsig", "KILL"),
            *("qemu-system-x86_64", "-accel", _ACCELERATOR, "-cpu", _PROCESSOR),
            *("-machine", "q35,cxl=on", "-m", settings.memory),
            *("-smp", str(settings.processors), "-nodefaults", "-no-user-config"),
            *("-display", "none", "-no-reboot"),
            *("-chardev", f"file,id=console,path={folder / 'console.log'}"),
            *("-serial", "chardev:console"),
            *("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
            *("-device", f"virtio-serial-pci,{_VIRTIO}"),
            *("-chardev", f"socket,id=channel,path={folder / 'channel'},server=on,wait=off"),
            *("-device", "virtserialport,chardev=channel,name=tests"),
            *("-kernel", str(settings.kernel.image)),
            *("-initrd", str(settings.kernel.first_root), "-append", append.strip()),
            *disks,
            *settings.topology.arguments(folder),
        ]

    @staticmethod
    def _disk(name: str, file: Path, *, readonly: bool = True) -> list[str]:
        mode = "on" if readonly else "off"
        return [
            "-drive",
            f"file={file},if=none,id={name},format=raw,readonly={mode}",
            "-device",
            f"virtio-blk-pci,drive={name},serial={name},{_VIRTIO}",
        ]
