# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios of the plan in the guest, each in a process of its own, and tells the
host how they went. Stops when one leaves the machine in a state that cannot be put right:
the host then starts the rest on a fresh one."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from vm.guest import cxl
from vm.guest.channel import hand_on, tell
from vm.guest.kit import PLAN, SkipError, kernel_log

_MOST = 60_000  # bytes of output that are sent
_SKIPPED = 77
_OUTPUT = Path("/run/vm-output")
_RECORDS = Path("/etc/sac/pools.d")


def install() -> None:
    """The product of the payload becomes that of every Python and shell."""
    packages = Path("/usr/local/lib/python3.13/dist-packages")
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "product.pth").write_text("/payload/product\n")
    sys.path.append("/payload/product")
    command = Path("/usr/local/bin/sacctl")
    command.write_text('#!/bin/sh\nexec python3 -P -m sacctl "$@"\n')
    command.chmod(0o755)


def _work(module: str, function: str) -> int:
    """The exit code of a scenario's process."""
    try:
        getattr(importlib.import_module(f"vm.scenarios.{module}"), function)()
    except SkipError as why:
        print(f"skipped: {why}", flush=True)
        return _SKIPPED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_one(module: str, function: str, limit: float) -> tuple[str, str]:
    """How a scenario went ("passed", "failed", "skipped") and all that it said."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        with _OUTPUT.open("wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        code = 1
        try:
            code = _work(module, function)
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + limit
    status: int | None = None
    while status is None:
        done, found = os.waitpid(pid, os.WNOHANG)
        if done:
            status = found
        elif time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            break
        time.sleep(0.02)
    output = _OUTPUT.read_text(errors="replace")[-_MOST:]
    assert status is not None
    if os.WIFSIGNALED(status):
        late = time.monotonic() > end
        why = f"took more than {limit:.0f} s" if late else "killed by a signal"
        return "failed", f"{output}\n{why}: {signal.Signals(os.WTERMSIG(status)).name}\n"
    code = os.WEXITSTATUS(status)
    return {0: "passed", _SKIPPED: "skipped"}.get(code, "failed"), output


def run_script(name: str, limit: float) -> int:
    """The exit code of a script in /payload/files, which talks to the console."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        hand_on()
        path = f"/payload/files/{name}"
        os.chdir("/root")
        if name.endswith(".py"):
            os.execvp("python3", ["python3", "-u", path])
        os.execvp("bash", ["bash", path])
    end = time.monotonic() + limit
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) & 0xFF
        if time.monotonic() > end:
            print(f"the script took more than {limit:.0f} s", flush=True)
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 124
        time.sleep(0.05)


def leftovers() -> list[str]:
    """What a scenario has left: as cxl.leftovers(), and records of pools."""
    return cxl.leftovers() + [f"the record {path}" for path in sorted(_RECORDS.glob("*.toml"))]


def clean() -> None:
    cxl.clean()
    for path in _RECORDS.glob("*.toml"):
        path.unlink()
    for folder in Path("/dev/shm").glob("sac-*"):
        shutil.rmtree(folder)


def run_all(plan: dict[str, Any]) -> None:
    for test in plan["tests"]:
        tell({"begin": test["id"]})
        lines = len(kernel_log().splitlines())
        start = time.monotonic()
        status, output = run_one(test["module"], test["function"], test["limit"])
        seconds = time.monotonic() - start
        left = [] if test["leaves"] else leftovers()
        if left:
            if status == "passed":
                status = "failed"
            output += "left behind: " + "; ".join(left) + "\n"
            clean()
        if status == "failed":
            new = kernel_log().splitlines()[lines:]
            output += "kernel: " + "\nkernel: ".join(new[-60:]) + "\n"
        tell({"end": test["id"], "status": status, "seconds": seconds, "output": output})
        if left and leftovers():
            break


def main() -> None:
    plan = json.loads(PLAN.read_text())
    install()
    tell({"ready": time.clock_gettime(time.CLOCK_BOOTTIME)})
    code = 0
    if "script" in plan:
        code = run_script(plan["script"], plan["limit"])
    else:
        run_all(plan)
    subprocess.run(["sync"], check=False)
    tell({"finished": code})


if __name__ == "__main__":
    main()
