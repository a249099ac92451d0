# SPDX-License-Identifier: Apache-2.0
"""Which device stands where in an interleaved region.

Every level of the tree takes some address bits: the window picks a host bridge by the lowest
ones, the host bridge a root port by the next, a switch a port of its own by those above. So
position p lies below target p % ways of the window, position p // ways of what is left below
port number (p // ways) % ports of the bridge, and so on down. Devices of one bridge or switch
are therefore never side by side where there are several: two bridges with two devices each
are mem0, mem2, mem1, mem3.
"""

from __future__ import annotations

from collections.abc import Sequence

from sacctl.cxl.model import Memdev, RootDecoder
from sacctl.errors import UsageError

__all__ = ["fits", "in_order", "mistake", "names_of"]


def names_of(memdevs: Sequence[Memdev]) -> str:
    """For a message: "mem0, mem2"."""
    return ", ".join(m.name for m in memdevs)


def in_order(root: RootDecoder, memdevs: Sequence[Memdev]) -> tuple[Memdev, ...]:
    """The devices by position, whatever order they are given in. Ports count by their PCI
    addresses, which stay over reboots as names do not.

    Raises UsageError where a bridge or switch would have more devices than its neighbour.
    """
    below = [[m for m in memdevs if m.host_bridge == bridge] for bridge in root.targets]
    if len({len(part) for part in below}) > 1 or sum(map(len, below)) != len(memdevs):
        raise _bridges(root, memdevs)
    return _woven([_ordered(part, 0) for part in below])


def fits(root: RootDecoder, memdevs: Sequence[Memdev]) -> bool:
    """Whether there is an order at all."""
    try:
        in_order(root, memdevs)
    except UsageError:
        return False
    return True


def mistake(root: RootDecoder, ordered: Sequence[Memdev]) -> str:
    """Why the devices cannot stand in this order; "" where they can."""
    ways = root.ways
    for position, memdev in enumerate(ordered):
        wanted = root.targets[position % ways]
        if memdev.host_bridge != wanted:
            return (
                f"position {position} of {root.name} leads to host bridge {wanted}, and "
                f"{memdev.name} is below {memdev.host_bridge or 'none that is known'}"
            )
    return next(
        (why for i in range(ways) if (why := _mistake(ordered[i::ways], 0, i, ways))), ""
    )


def _ordered(members: Sequence[Memdev], level: int) -> list[Memdev]:
    """Devices below one port; level counts the ports from the host bridge's down."""
    if len(members) < 2:
        return list(members)
    parts: dict[str, list[Memdev]] = {}
    for memdev in members:
        parts.setdefault(_port(memdev, level), []).append(memdev)
    if len(parts) == 1:
        if level >= max(len(m.dports) for m in members):
            # No port parts them, as far as is known: by address, which stays.
            return sorted(members, key=lambda m: m.pci)
        return _ordered(members, level + 1)
    if len({len(part) for part in parts.values()}) > 1:
        counts = "; ".join(f"{names_of(part)} below {port}" for port, part in parts.items())
        raise UsageError(
            f"{_where(members[0], level)} cannot interleave {counts}: the same number of "
            "devices must be below each of its ports",
            object=names_of(members),
            hint=f"leave out {_surplus(parts)}, or give the same number below each port",
        )
    return list(_woven([_ordered(parts[port], level + 1) for port in sorted(parts)]))


def _mistake(ordered: Sequence[Memdev], level: int, first: int, step: int) -> str:
    """As mistake, for every step-th position from first, which are below one port."""
    if len(ordered) < 2 or level >= max(len(m.dports) for m in ordered):
        return ""
    ports = [_port(m, level) for m in ordered]
    count = len(set(ports))
    for index, port in enumerate(ports):
        if port != ports[index % count] or (index < count and port in ports[:index]):
            return (
                f"{_where(ordered[index], level)} decodes in turn over its {count} ports, and "
                f"{ordered[index].name} (below {port}) at position {first + index * step} "
                "is out of turn"
            )
    return next(
        (
            why
            for i in range(count)
            if (why := _mistake(ordered[i::count], level + 1, first + i * step, step * count))
        ),
        "",
    )


def _woven(parts: Sequence[Sequence[Memdev]]) -> tuple[Memdev, ...]:
    return tuple(memdev for turn in zip(*parts, strict=True) for memdev in turn)


def _port(memdev: Memdev, level: int) -> str:
    return memdev.dports[level] if level < len(memdev.dports) else ""


def _where(memdev: Memdev, level: int) -> str:
    kind = "host bridge" if level == 0 else "switch"
    at = memdev.host_bridge if level == 0 else memdev.dports[level - 1]
    port = memdev.ports[level] if level < len(memdev.ports) else "its port"
    return f"{kind} {port} ({at})" if level == 0 else f"{kind} {port} (below {at})"


def _surplus(parts: dict[str, list[Memdev]]) -> str:
    least = min(len(part) for part in parts.values())
    return names_of([m for part in parts.values() for m in part[least:]])


def _bridges(root: RootDecoder, memdevs: Sequence[Memdev]) -> UsageError:
    """The devices are not spread evenly over the window's bridges, or below another one."""
    outside = [m for m in memdevs if m.host_bridge not in root.targets]
    if outside:
        below = ", ".join(sorted({m.host_bridge or "an unknown bridge" for m in outside}))
        return UsageError(
            f"{names_of(outside)}: below {below}, which {root.name} does not lead to "
            f"(it leads to {', '.join(root.targets)})",
            object=names_of(outside),
        )
    counts = {b: [m for m in memdevs if m.host_bridge == b] for b in root.targets}
    each = "; ".join(f"{b}: {names_of(found) or 'none'}" for b, found in counts.items())
    least = min(len(found) for found in counts.values())
    surplus = names_of([m for found in counts.values() for m in found[least:]])
    return UsageError(
        f"{root.name} interleaves over {root.ways} host bridges, so each must give the same "
        f"number of devices ({each})",
        object=names_of(memdevs),
        hint=f"leave out {surplus}" if least else "add devices below each of its bridges",
    )
