# SPDX-License-Identifier: Apache-2.0
"""The simulated machine itself: what a test can do with it, and what it notices."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import cxlsim
import pytest
from cxlsim.__main__ import found, tell
from unit.cxl_region import make, take, writes

from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs

TESTS = Path(__file__).resolve().parents[1]
CXL = "/sys/bus/cxl/devices"
DAX = "/sys/bus/dax"


def test_reading_is_that_of_a_machine(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb4", size=512 << 20) as m:
        assert m.sysfs.simulated
        names = [n for n in m.sysfs.names(CXL) if n.startswith("mem")]
        assert names == ["mem0", "mem1", "mem2", "mem3"]
        assert {m.sysfs.number(f"{CXL}/{n}/serial") for n in names} == {256, 257, 258, 259}
        assert {m.sysfs.number(f"{CXL}/{n}/ram/size") for n in names} == {512 << 20}
        assert m.sysfs.real(f"{CXL}/mem0").startswith("/sys/devices/pci0000:")
        assert m.sysfs.read(f"{CXL}/decoder0.2/target_list") == "12,52"


def test_names_are_in_no_order_and_can_be_repeated(tmp_path: Path) -> None:
    def order(seed: int) -> list[str]:
        with cxlsim.Machine(tmp_path / str(seed), "2hb4", seed=seed) as m:
            return [d.name for d in m.kernel.memdevs]

    seen = {tuple(order(seed)) for seed in range(6)}
    assert len(seen) > 2
    assert order(5) == order(5)


def test_sizes_and_serials_are_given(tmp_path: Path) -> None:
    sizes = [256 << 20, 1 << 30]
    with cxlsim.Machine(tmp_path, "1hb2", size=sizes, serials=[0, 0]) as m:
        found = {(d.serial, d.bytes) for d in m.kernel.memdevs}
        assert found == {(0, 256 << 20), (0, 1 << 30)}
        assert m.memdev(m.kernel.memdevs[1].pci).bytes == 1 << 30
    with pytest.raises(ValueError, match="2 devices"):
        cxlsim.Machine(tmp_path / "x", "1hb2", size=[256 << 20])
    with pytest.raises(ValueError, match="256 MiB"):
        cxlsim.Machine(tmp_path / "x", "1hb2", size=100)


def test_the_kernels_rules_have_the_kernels_errnos(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2") as m:
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)) as raised:
            m.sysfs.write(f"{CXL}/decoder0.0/create_ram_region", "region9")
        assert raised.value.errno == errno.EBUSY
        assert raised.value.filename == f"{CXL}/decoder0.0/create_ram_region"
        for path, code in (
            (f"{CXL}/decoder0.0/nothing", errno.ENOENT),
            (f"{CXL}/decoder0.0/start", errno.EACCES),
            (f"{CXL}/decoder0.0", errno.EISDIR),
        ):
            assert m.write(path, "1") == code
        assert [w[2] for w in m.writes] == [
            errno.EBUSY, errno.ENOENT, errno.EACCES, errno.EISDIR,
        ]  # fmt: skip


def test_a_write_can_be_made_to_fail_and_does_nothing_then(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", kmem=False) as m:
        todo = writes(m, [0, 1])
        for n in range(len(todo)):
            before = m.snapshot()
            m.fail_at(0, errno.ENOMEM)
            assert m.write(*todo[n]) == errno.ENOMEM
            assert m.snapshot() == before, todo[n]
            assert m.write(*todo[n]) == 0
        assert m.sysfs.names(f"{DAX}/devices")
        m.fail_at(1)
        assert m.write(f"{DAX}/drivers_autoprobe", "0") == 0
        assert m.write(f"{DAX}/drivers_autoprobe", "1") == errno.EIO


def test_something_can_happen_between_two_writes(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", kmem=False) as m:
        todo = writes(m, [0, 1])
        seen = []

        def gone(path: str, value: str) -> None:
            seen.append((path, value))
            m.unplug(0x101)

        commit = next(n for n, (path, _) in enumerate(todo) if path.endswith("/commit"))
        m.before(commit, gone)
        codes = [m.write(*one) for one in todo]
        assert seen == [todo[commit]]
        assert codes[:commit] == [0] * commit
        assert codes[commit:] == [errno.ENXIO, errno.ENXIO]
        assert [n for n in m.sysfs.names(CXL) if n.startswith("mem")] == [m.memdev(0x100).name]


def test_a_target_written_twice_crashes_the_kernel(tmp_path: Path) -> None:
    m = cxlsim.Machine(tmp_path, "2hb2")
    todo = writes(m, [0, 1])
    first = next(n for n, (path, _) in enumerate(todo) if path.endswith("/target0"))
    for one in todo[: first + 1]:
        assert m.write(*one) == 0
    assert m.write(*todo[first]) == errno.ENXIO
    codes = [m.write(*one) for one in todo[first + 1 :]]
    assert codes == [0, 0, errno.EIO, errno.EIO, errno.EIO]
    assert m.write(f"{DAX}/drivers_autoprobe", "0") == errno.EIO
    with pytest.raises(AssertionError, match="written twice"):
        m.__exit__(None, None, None)


def test_a_crash_that_is_looked_at_is_expected(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2") as m:
        assert m.oops == ""
        m.kernel.oops = "of a test"
        assert m.oops == "of a test"


def test_snapshots_tell_what_has_changed(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", kmem=False) as m:
        before = m.snapshot()
        region = make(m, [0, 1])
        middle = m.snapshot()
        assert middle != before
        take(m, f"dax{region[6:]}.0")
        assert {p for p, v in m.snapshot().items() if middle.get(p) != v} >= {
            "new_id:device_dax"
        }
        m.sysfs.write(f"{CXL}/decoder0.2/delete_region", region)
        left = {p for p, v in m.snapshot().items() if before.get(p) != v}
        assert any(p.endswith("/dpa_size") for p in left)
        assert "new_id:device_dax" in left
        for path, value in [
            (f"{CXL}/{d.name}/dpa_size", "0") for x in m.kernel.memdevs for d in x.decoders[:1]
        ] + [(f"{DAX}/drivers/device_dax/remove_id", f"dax{region[6:]}.0")]:
            m.sysfs.write(path, value)
        assert m.snapshot() == before


# ------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("granularity", [256, 4096])
def test_a_regions_bytes_are_on_its_devices_in_turn(granularity: int, tmp_path: Path) -> None:
    topology = "2hb2" if granularity == 256 else "2hb2g4k"
    with cxlsim.Machine(tmp_path, topology, kmem=False) as m:
        dax = f"dax{make(m, [0, 1], granularity)[6:]}.0"
        take(m, dax)
        with mapped(m, dax) as memory:
            for n in range(6):
                memory[n * granularity] = ord("a") + n
            memory[(400 << 20) + granularity] = ord("z")
        found = [m.peek(0x100 + d, k * granularity, 1) for k in range(3) for d in range(2)]
        assert found == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert m.peek(0x101, 200 << 20, 1) == b"z"


def test_bytes_outlive_region_and_machine(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb4", kmem=False, seed=1) as m:
        dax = f"dax{make(m, [0, 2, 1, 3])[6:]}.0"
        take(m, dax)
        assert m.sysfs.at(f"/dev/{dax}").stat().st_size == 1 << 30
        with mapped(m, dax) as memory:
            memory[1000:1005] = b"hello"
            memory[(1 << 30) - 3 :] = b"end"
    with cxlsim.Machine(tmp_path, "2hb4", kmem=False, seed=2) as m:
        dax = f"dax{make(m, [0, 2, 1, 3])[6:]}.0"
        take(m, dax)
        with mapped(m, dax) as memory:
            assert memory[1000:1005] == b"hello"
            assert memory[(1 << 30) - 3 :] == b"end"
            memory[1000:1005] = bytes(5)
        m.sysfs.write(f"{DAX}/drivers/device_dax/unbind", dax)
        m.sysfs.write(f"{DAX}/drivers/device_dax/bind", dax)
        with mapped(m, dax) as memory:
            assert memory[1000:1005] == bytes(5)
            assert memory[(1 << 30) - 3 :] == b"end"


def test_split_devices_have_their_own_part(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1", kmem=False) as m:
        number = make(m, [0])[6:]
        home = f"{CXL}/dax_region{number}/dax_region"
        dax, other = f"dax{number}.0", f"dax{number}.1"
        m.sysfs.write(f"{DAX}/devices/{dax}/size", str(192 << 20))
        m.sysfs.write(f"{home}/create", "1")
        m.sysfs.write(f"{DAX}/devices/{other}/size", str(64 << 20))
        take(m, dax)
        take(m, other)
        with mapped(m, dax) as first, mapped(m, other) as second:
            assert (len(first), len(second)) == (192 << 20, 64 << 20)
            first[0], second[0] = 1, 2
        assert m.peek(0x100, 0, 1) == b"\1"
        assert m.peek(0x100, 192 << 20, 1) == b"\2"


def test_a_mapping_dies_with_the_driver(tmp_path: Path) -> None:
    """As on a machine: SIGBUS for who has it mapped, ENXIO for who opens it."""
    with cxlsim.Machine(tmp_path, "1hb1", kmem=False) as m:
        dax = f"dax{make(m, [0])[6:]}.0"
        path = m.sysfs.at(f"/dev/{dax}")
        with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
            os.open(path, os.O_RDWR)
        take(m, dax)
        code = (
            "import mmap, os, sys\n"
            "m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 1 << 21)\n"
            "m[0] = 7; print('mapped', flush=True); sys.stdin.readline(); print(m[0])\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "mapped\n"
        m.sysfs.write(f"{DAX}/drivers/device_dax/unbind", dax)
        child.communicate("\n", timeout=30)
        assert child.returncode == -signal.SIGBUS
        with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
            os.open(path, os.O_RDWR)
        assert m.peek(0x100, 0, 1) == b"\7"


def test_a_file_that_stays_open_over_a_new_bind_crashes_the_kernel(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1", kmem=False) as m:
        dax = f"dax{make(m, [0])[6:]}.0"
        take(m, dax)
        driver = f"{DAX}/drivers/device_dax"
        with mapped(m, dax):
            m.sysfs.write(f"{driver}/unbind", dax)
        m.sysfs.write(f"{driver}/bind", dax)  # nobody has it any more
        assert m.log == []
        with mapped(m, dax):
            m.sysfs.write(f"{driver}/unbind", dax)
            m.sysfs.write(f"{driver}/bind", dax)
        assert "refcount_t: underflow" in m.log[0]
        region = f"region{dax[3:].partition('.')[0]}"
        assert m.write(f"{CXL}/decoder0.0/delete_region", region) == errno.EIO
        assert "was open" in m.oops


def test_a_device_made_anew_does_not_mind_old_files(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1", kmem=False) as m:
        region = make(m, [0])
        dax = f"dax{region[6:]}.0"
        take(m, dax)
        with mapped(m, dax):
            for verb in ("unbind", "bind", "unbind"):
                m.sysfs.write(f"/sys/bus/cxl/drivers/cxl_region/{verb}", region)
        assert m.log == []
        assert m.oops == ""


def mapped(m: cxlsim.Machine, dax: str) -> mmap.mmap:
    with m.sysfs.at(f"/dev/{dax}").open("r+b") as of:
        return mmap.mmap(of.fileno(), 0)


# ----------------------------------------------------------------------------- devices


def test_a_device_goes_and_comes_back(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", kmem=False) as m:
        region = make(m, [0, 1])
        dax = f"dax{region[6:]}.0"
        take(m, dax)
        with mapped(m, dax) as memory:
            memory[256] = 9
        m.unplug(0x101)
        assert not m.sysfs.exists(f"{DAX}/devices/{dax}")
        assert m.sysfs.read(f"{CXL}/{region}/commit") == "0"
        assert m.sysfs.read(f"{CXL}/{region}/target1") == ""
        assert m.sysfs.read(f"{CXL}/{region}/target0")
        m.sysfs.write("/sys/bus/pci/rescan", "1")
        assert len([n for n in m.sysfs.names(CXL) if n.startswith("mem")]) == 1
        m.plug(0x101)
        assert len([n for n in m.sysfs.names(CXL) if n.startswith("mem")]) == 2
        assert m.peek(0x101, 0, 1) == b"\x09"
        assert m.memdev(0x101).decoders[0].dpa_bytes == 0


def test_a_device_removed_by_sysfs_is_found_by_a_rescan(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2") as m:
        at = f"/sys/bus/pci/devices/{m.memdev(0x100).pci}"
        m.sysfs.write(f"{at}/remove", "1")
        assert not m.sysfs.exists(at)
        m.sysfs.write("/sys/bus/pci/rescan", "1")
        assert m.sysfs.exists(at)
        assert m.sysfs.exists(f"{CXL}/{m.memdev(0x100).name}")


def test_link_and_errors(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1") as m:
        at = m.sysfs.real(f"{CXL}/mem0").rpartition("/")[0]
        assert m.sysfs.read(f"{at}/current_link_width") == "16"
        m.break_link(0x100, speed="8.0", width=4)
        assert m.sysfs.read(f"{at}/current_link_width") == "4"
        assert m.sysfs.read(f"{at}/current_link_speed") == "8.0 GT/s PCIe"
        m.aer(0x100, "correctable", 3)
        m.aer(0x100, "fatal", 2, "MalfTLP")
        assert "TOTAL_ERR_COR 3" in m.sysfs.read(f"{at}/aer_dev_correctable")
        assert "MalfTLP 2\n" in m.sysfs.read(f"{at}/aer_dev_fatal")
        assert "TOTAL_ERR_FATAL 2" in m.sysfs.read(f"{at}/aer_dev_fatal")
        assert "TOTAL_ERR_NONFATAL 0" in m.sysfs.read(f"{at}/aer_dev_nonfatal")


def test_poison_is_silent_until_the_list_is_asked_for(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", kmem=False) as m:
        region = make(m, [0, 1])
        m.poison(0x101, 0x1080)
        assert m.events == []
        name = m.memdev(0x101).name
        m.sysfs.write(f"{CXL}/{name}/trigger_poison_list", "1")
        assert len(m.events) == 1
        place = m.sysfs.number(f"{CXL}/{region}/resource") + 0x2180
        assert f"memdev={name} " in m.events[0]
        assert f" serial=257 trace_type=List region={region} " in m.events[0]
        assert f" hpa={place:#x} dpa=0x1080 " in m.events[0]


def test_poison_by_debugfs(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1") as m:
        debug = "/sys/kernel/debug/cxl/mem0"
        m.sysfs.write(f"{debug}/inject_poison", "0x2000")
        assert m.memdev(0x100).poison == {0x2000}
        assert "trace_type=Inject region= " in m.events[0]
        assert m.write(f"{debug}/inject_poison", "0x2001") == errno.EINVAL
        assert m.write(f"{debug}/inject_poison", "0x10000000") == errno.EINVAL
        m.sysfs.write(f"{debug}/clear_poison", "0x2000")
        m.sysfs.write(f"{CXL}/mem0/trigger_poison_list", "1")
        assert [e.split("trace_type=")[1].split()[0] for e in m.events] == ["Inject", "Clear"]


def test_events_reach_who_has_switched_them_on(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1") as m:
        at = m.trace_instance("one")
        with (at / "trace_pipe").open("rb") as pipe:
            os.set_blocking(pipe.fileno(), False)
            m.event("cxl_memory_module: memdev=mem0")
            (at / "events/cxl/enable").write_text("1")
            m.event("cxl_dram: memdev=mem0")
            text = pipe.read().decode()
        assert text.endswith(": cxl_dram: memdev=mem0\n")
        assert text.count("\n") == 1
        assert len(m.events) == 2


# ------------------------------------------------------------------------- the simulator


def test_writes_from_many_threads_are_one_after_the_other(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1") as m:
        window = f"{CXL}/decoder0.0"
        failed: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(8):
                    name = m.sysfs.read(f"{window}/create_ram_region")
                    if m.write(f"{window}/create_ram_region", name) == 0:
                        m.sysfs.write(f"{window}/delete_region", name)
                    # Else another was faster.
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        created = [code for path, _, code in m.writes if path.endswith("create_ram_region")]
        assert set(created) <= {0, errno.EBUSY}
        assert 0 in created
        assert [n for n in m.sysfs.names(CXL) if n.startswith("region")] == []


def test_a_machine_that_was_left_refuses_writes(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1") as m:
        sysfs = m.sysfs
    assert sysfs.exists(f"{CXL}/mem0")
    with pytest.raises(OSError, match="no simulator answers") as raised:
        sysfs.write(f"{DAX}/drivers_autoprobe", "0")
    assert raised.value.errno == errno.EROFS


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_may_not_write(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path / "m", "1hb1") as m:
        here = os.open(m.root, os.O_PATH)
        child = os.fork()
        if child == 0:
            # By a descriptor: the folders above are root's alone.
            os.fchdir(here)
            os.setresuid(65534, 65534, 65534)
            with socket.socket(socket.AF_UNIX) as to:
                to.connect(".kernel")
                asked = {"write": f"{DAX}/drivers_autoprobe", "value": "0"}
                to.sendall(json.dumps(asked).encode() + b"\n")
                answer = json.loads(to.makefile().readline())
            os._exit(answer["errno"])
        os.close(here)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EACCES
        assert m.sysfs.read(f"{DAX}/drivers_autoprobe") == "1"
        assert m.writes == []


@pytest.mark.parametrize("line", [b"nonsense", b"{}", b'{"write": 1, "value": "x"}', b"[]"])
def test_a_request_that_is_none_gets_an_answer(line: bytes, tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "1hb1") as m:
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(10)
            to.connect(str(m.root / ".kernel"))
            to.sendall(line + b"\n")
            answer = json.loads(to.makefile().readline())
        assert answer == {"errno": errno.EBADMSG}
        assert m.writes == []


def test_by_hand_as_a_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cxlsim", tmp_path, "--topology", "sw2", "--no-kmem"],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        sysfs = Sysfs(tmp_path)
        sysfs.write(f"{DAX}/drivers_autoprobe", "0")
        assert sysfs.read(f"{DAX}/drivers_autoprobe") == "0"
        assert "kmem" not in sysfs.names(f"{DAX}/drivers")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with pytest.raises(OSError, match="no simulator answers"):
        sysfs.write(f"{DAX}/drivers_autoprobe", "1")


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_on_a_machine_of_its_own(code: int, tmp_path: Path) -> None:
    script = f"import os; print(os.listdir(os.environ['SAC_SYSROOT'] + '{CXL}')); exit({code})"
    done = subprocess.run(
        [sys.executable, "-m", "cxlsim", tmp_path, "--", sys.executable, "-c", script],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert "mem0" in done.stdout
    assert not (tmp_path / ".kernel").exists()


def test_a_newer_kernel_shows_the_dax_device_a_little_later(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", kmem=False, version="7.3") as m:
        region = make(m, [0, 1])
        assert m.sysfs.names(f"{DAX}/devices") == []
        for _ in range(200):
            if m.sysfs.names(f"{DAX}/devices"):
                break
            time.sleep(0.02)
        assert m.sysfs.names(f"{DAX}/devices") == [f"dax{region[6:]}.0"]


def test_without_cache_invalidation_nothing_is_committed(tmp_path: Path) -> None:
    with cxlsim.Machine(tmp_path, "2hb2", invalidates=False) as m:
        codes = [m.write(*one) for one in writes(m, [0, 1])]
        assert codes[-2:] == [errno.ENXIO, errno.ENXIO]
        assert not any(codes[:-2])
        assert "Failed to synchronize CPU cache state" in "\n".join(m.log)


def test_devices_go_and_come_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cxlsim.Machine(tmp_path, "1hb2") as m:
        assert tell(tmp_path, "unplug", "0x100") == 0
        assert [d.serial for d in read(m.sysfs).memdevs] == [0x101]
        assert tell(tmp_path, "plug", "256") == 0
        assert sorted(d.serial for d in read(m.sysfs).memdevs) == [0x100, 0x101]
        assert tell(tmp_path, "unplug", "0x999") == 1
        assert "No such device" in capsys.readouterr().err
    assert tell(tmp_path, "unplug", "0x100") == 1
    assert "no simulated machine runs there" in capsys.readouterr().err


def test_a_program_beside_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    here = Path(sys.executable)
    assert found(here.name) == str(here)
    assert found("no-such-program") is None
