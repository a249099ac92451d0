# SPDX-License-Identifier: Apache-2.0
"""The codes of health findings, and what ``sacctl health --explain`` says about each.

A code is never given another meaning, nor used again once it is gone.
"""

from __future__ import annotations

import difflib

from sacctl.errors import NotFoundError
from sacctl.health_check import Check
from sacctl.health_codes_devices import DEVICES

__all__ = ["CHECKS", "Check", "explain"]


_LIST = (
    Check(
        "SAC101",
        "unknown",
        "no daemon answers",
        """Nobody listens at the socket, so nothing can be said about pools. Processes that
        have pages pinned can go on reading them; what needs the daemon waits for it.

        Start it: systemctl start sacd, or sacctl daemon run. If one should be running, look
        whether it uses another socket (settings, SAC_SOCKET) and into its log.""",
    ),
    Check(
        "SAC102",
        "critical",
        "the daemon does not answer as it should",
        """Somebody listens at the socket but did not answer in time, broke the connection,
        or speaks another version of the protocol. Reading goes on; writing, attaching and
        eviction do not.

        Look into its log. If it hangs, restart it: clients wait and go on.""",
    ),
    Check(
        "SAC103",
        "critical",
        "the serving thread stands still",
        """The daemon's thread for clients has made no turn for seconds. No reservation is
        granted and nobody can attach. A service manager with a watchdog restarts it.

        Restart the daemon: clients wait and go on. Keep its log for a report.""",
    ),
    Check(
        "SAC104",
        "degraded",
        "open files are running out",
        """The daemon needs a descriptor for each client, for each namespace's index and for
        each table of a client. At the limit nobody can attach any more.

        Raise LimitNOFILE in the unit, or ulimit -n, and restart the daemon.""",
    ),
    Check(
        "SAC105",
        "degraded",
        "nearly as many clients as allowed",
        """daemon.max_clients bounds the processes that may be connected at once.

        Raise it in the settings and restart the daemon, or find out with sacctl client list
        who opens so many.""",
    ),
    Check(
        "SAC106",
        "unknown",
        "the daemon may not be asked",
        """The socket does not let this user connect, so nothing can be said.

        Join the group that daemon.socket_group names, or run it as the daemon's user.""",
    ),
    Check(
        "SAC201",
        "critical",
        "a pool is not served",
        """The pool has a record, but the daemon could not open its files: they are gone, in
        use by another process, or may not be opened by the daemon's user. Other pools are
        served.

        The reason is in the finding. Files of another user are handed over again when he
        runs sacctl pool create with the same spec. Then sacctl daemon reload tries again.""",
    ),
    Check(
        "SAC202",
        "critical",
        "a pool is damaged",
        """Its superblocks or tables are not what the format demands, or are of a version
        that this daemon does not know. Nothing of it is served and nothing was changed.

        If another version of libsac wrote it, use that one. Else destroy the pool and create
        it again: it held copies of what can be computed.""",
    ),
    Check(
        "SAC203",
        "degraded",
        "memory of a pool is dead",
        """Reading a part of its memory failed (SIGBUS): a device with an uncorrectable
        error, or a file that was cut short. The blocks of 2 MiB are out of use and their
        pages have left; they will be computed again.

        Look into the kernel's log for memory errors. Replace the device; of an emulated pool,
        destroy and create it.""",
    ),
    Check(
        "SAC204",
        "degraded",
        "a pool has nothing left for some namespaces",
        """All slabs belong to namespaces, and there are namespaces that have none: puts to
        them find no room. Memory stays with a namespace that took it, until its quota is
        made smaller or it is destroyed.

        Extend the pool, or give the large namespaces a quota (sacctl namespace resize).""",
    ),
    Check(
        "SAC205",
        "degraded",
        "huge pages were not obtained",
        """The pool asked for huge pages and the kernel backs it with smaller ones. It works,
        with more misses of the address cache: gathers are slower.

        Reserve huge pages (vm.nr_hugepages, or hugepages= on the kernel's command line) and
        create the pool again.""",
    ),
    Check(
        "SAC206",
        "degraded",
        "a pool's file system may run full",
        """The files of an emulated pool take room when slabs are given out. The file system
        has less left than the pool still has to give: puts will fail with "no space" before
        the pool is full. Nothing already stored is in danger.

        Free room in the file system, or make the pool smaller.""",
    ),
    Check(
        "SAC207",
        "degraded",
        "a pool's metadata is full",
        """No room is left for page headers. What is stored stays and is evicted as always,
        but no namespace can grow and none can be created.

        Destroy a namespace that is not needed, or create a pool with more metadata.""",
    ),
    Check(
        "SAC208",
        "note",
        "the last daemon was killed",
        """The pool was not marked clean, so its tables were scanned. That happens after a
        kill or a crash; every committed page was kept and clients went on.

        Nothing is to be done. If nobody killed it, look into the log of the time before.""",
    ),
    Check(
        "SAC209",
        "note",
        "a pool was opened after a reboot",
        """Or after its devices were away: its memory may have lost its content. Pages without
        a data checksum were dropped, and of the others those that do not verify.

        Nothing is to be done. Namespaces with --checksum keep their pages over a reboot where
        the memory does.""",
    ),
    Check(
        "SAC210",
        "critical",
        "a pool's memory has gone",
        """A device that holds the pool, or its metadata, went away: unplugged, reset after an
        error, or taken from its driver. All pages have left. Clients that use the copying
        calls get errors for them and go on; the daemon goes on.

        When the devices are back, sacctl pool assemble makes the region again and hands it to
        the daemon; clients attach anew. Look into the kernel's log for why it went.""",
    ),
    Check(
        "SAC211",
        "degraded",
        "a part of a pool's memory has gone",
        """One of the pool's devices went away, with the pages on it. The others are served,
        and pages that are missing will be computed again.

        When the device is back: sacctl pool assemble. Look into the kernel's log for why it
        went.""",
    ),
    Check(
        "SAC212",
        "critical",
        "a pool takes no more writes",
        """A block of its metadata that is in use is dead. What is there is read on; puts,
        evictions and new namespaces fail, so engines compute what they could have kept.

        If its device went away, sacctl pool assemble when it is back. Where the memory is
        bad: clear the poison that the device lists (docs/faults.md says how), then destroy
        the pool and create it again.""",
    ),
    Check(
        "SAC301",
        "critical",
        "a namespace is damaged",
        """Its superblock or layout is not what the format demands. The other namespaces of
        the pool are served.

        Destroy it: its pages are lost and will be computed again.""",
    ),
    Check(
        "SAC302",
        "degraded",
        "a namespace is full of pages that must stay",
        """Nearly all page parts are pinned by readers, being written, or out of use, and it
        cannot grow: puts are refused with "no space".

        sacctl namespace show says who holds them. Raise its quota, extend the pool, or let
        the engines hold fewer prefixes at once.""",
    ),
    Check(
        "SAC303",
        "degraded",
        "page parts are out of use",
        """A writer that missed its deadline may still be writing, so its slots are not used
        again before it ends the put, closes or exits. Slots of dead memory stay out of use.

        Look for a writer that hangs (sacctl client list: reservations) and end it.""",
    ),
    Check(
        "SAC401",
        "degraded",
        "a client holds pages without a connection",
        """Its process lives, but its connection was lost for a minute or more. Its pins and
        reservations stay: it may be stopped, or hang.

        End the process, or sacctl client evict it: its tables are revoked, its reservations
        end, and its pins go when it closes them.""",
    ),
    Check(
        "SAC402",
        "degraded",
        "an evicted client still runs",
        """Its tables are revoked for good and its calls fail, but it has not closed what it
        had pinned, so those pages stay.

        End the process, or sacctl client evict --kill.""",
    ),
    Check(
        "SAC403",
        "note",
        "a client has no connection",
        """Its process lives and holds nothing. A client connects again with its next call
        that needs the daemon, so this is usual for one that idles after a restart.

        Nothing is to be done.""",
    ),
)

CHECKS: dict[str, Check] = {check.code: check for check in (*_LIST, *DEVICES)}


def explain(code: str) -> str:
    """What a code means and what to do, as paragraphs. Raises NotFoundError."""
    check = CHECKS.get(code.upper())
    if check is None:
        near = difflib.get_close_matches(code.upper(), CHECKS, 1, 0.5)
        known = near[0] if near else ", ".join(CHECKS)
        raise NotFoundError(
            f"there is no finding {code[:64]}; meant is perhaps {known}"
            if near
            else f"there is no finding {code[:64]}; known are {known}",
            object=code[:64],
        )
    paragraphs = [" ".join(part.split()) for part in check.text.split("\n\n")]
    head = f"{check.code}: {check.title} ({check.severity})"
    return "\n\n".join([head, *paragraphs]) + "\n"
