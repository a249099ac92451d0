# SPDX-License-Identifier: Apache-2.0
"""Which scenarios there are, and which machines they need: read without importing them,
since they only run in a guest."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["KERNELS", "SCENARIOS", "Boot", "Scenario", "Test", "boots", "load"]

SCENARIOS = Path(__file__).resolve().parent / "scenarios"
KERNELS = ("6.12", "7.3")
_AGAIN = "again_"


@dataclass(frozen=True)
class Scenario:
    """One file. Its capitals, all optional:

    TOPOLOGIES: the machines it runs on, each; or, where that takes too long, by kernel:
    {"6.12": (...), "7.3": (...)}. KERNELS: on each. INIT: "minimal" or
    "systemd". APPEND: to the kernel's command line. STATE = True: what is written stays for a
    second start of the machine, which runs the functions again_*. LEAVES: why it may leave
    the machine changed; it then has a machine for itself. LIMIT: seconds that a function
    may take. FILES: of the sources, patterns; brought into /payload/files.
    """

    name: str
    about: str
    tests: tuple[str, ...]
    again: tuple[str, ...]
    topologies: tuple[str, ...] | dict[str, tuple[str, ...]] = ("2hb2",)
    kernels: tuple[str, ...] = KERNELS
    init: str = "minimal"
    append: str = ""
    state: bool = False
    leaves: str = ""
    limit: float = 60
    files: tuple[str, ...] = ()

    def machines(self, kernel: str) -> tuple[str, ...]:
        """The topologies that it runs on with a kernel."""
        if isinstance(self.topologies, dict):
            return self.topologies.get(kernel, ())
        return self.topologies


@dataclass(frozen=True)
class Test:
    scenario: Scenario
    function: str
    kernel: str
    topology: str

    @property
    def id(self) -> str:
        return f"{self.kernel}/{self.topology}/{self.scenario.name}.{self.function}"

    def plan(self) -> dict[str, Any]:
        """As the guest's runner wants it."""
        return {
            "id": self.id,
            "module": self.scenario.name,
            "function": self.function,
            "limit": self.scenario.limit,
            "leaves": bool(self.scenario.leaves) or self.scenario.state,
        }


@dataclass
class Boot:
    """One machine and what it runs; second: what it runs after a restart."""

    kernel: str
    topology: str
    init: str
    append: str
    state: bool
    tests: list[Test] = field(default_factory=list)
    second: list[Test] = field(default_factory=list)

    @property
    def name(self) -> str:
        only = {t.scenario.name for t in self.tests}
        what = only.pop() if len(only) == 1 else self.init
        return f"{self.kernel}-{self.topology}-{what}"

    @property
    def package(self) -> bool:
        """Whether it brings the Debian package, which is made for that."""
        return any(".deb" in name for test in self.tests for name in test.scenario.files)


def load(file: Path) -> Scenario:
    """Raises SystemExit for a capital that is misspelt."""
    tree = ast.parse(file.read_text(), str(file))
    values: dict[str, Any] = {}
    own = ("name", "about", "tests", "again")
    known = {f.upper(): f for f in Scenario.__dataclass_fields__ if f not in own}
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name = node.targets[0].id
        if name in known:
            values[known[name]] = ast.literal_eval(node.value)
        elif name.isupper() and (meant := difflib.get_close_matches(name, known, 1, 0.7)):
            raise SystemExit(f"{file}: {name} means nothing; {meant[0]} does")
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    about = (ast.get_docstring(tree) or "").split("\n", 1)[0]
    tests = tuple(name for name in functions if name.startswith("test_"))
    again = tuple(name for name in functions if name.startswith(_AGAIN))
    return Scenario(file.stem, about, tests, again, **values)


def boots(scenarios: Iterable[Scenario], chosen: Iterable[str] = ()) -> list[Boot]:
    """The machines for these scenarios; with chosen, only tests whose id has one of these
    in it. Scenarios that leave a machine as it was share one."""
    found: dict[tuple[object, ...], Boot] = {}
    wanted = tuple(chosen)
    for scenario in scenarios:
        for kernel in scenario.kernels:
            for topology in scenario.machines(kernel):
                tests = list(_tests(scenario, scenario.tests, kernel, topology, wanted))
                if not tests:
                    continue
                alone = scenario.name if scenario.leaves or scenario.state else ""
                key = (kernel, topology, scenario.init, scenario.append, alone)
                boot = found.setdefault(
                    key,
                    Boot(kernel, topology, scenario.init, scenario.append, scenario.state),
                )
                boot.tests += tests
                boot.second += _tests(scenario, scenario.again, kernel, topology, ())
    return list(found.values())


def _tests(
    scenario: Scenario,
    functions: tuple[str, ...],
    kernel: str,
    topology: str,
    wanted: tuple[str, ...],
) -> Iterator[Test]:
    for function in functions:
        test = Test(scenario, function, kernel, topology)
        if not wanted or any(word in test.id for word in wanted):
            yield test
