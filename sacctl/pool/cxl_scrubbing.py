# SPDX-License-Identifier: Apache-2.0
"""Makes a pool's memory reachable again, so that its destruction can scrub it."""

from __future__ import annotations

from sacctl.cxl.model import Topology
from sacctl.cxl.read import read
from sacctl.cxl.sysfs import Sysfs
from sacctl.errors import CtlError, NotFoundError, RefusedError, UsageError
from sacctl.pool.boot import boot_id
from sacctl.pool.cxl_assemble import assemble
from sacctl.pool.cxl_find import missing
from sacctl.pool.cxl_record import CxlPart
from sacctl.pool.cxl_survivors import make_survivors, survivors
from sacctl.pool.record import Record, Records
from sacctl.pool.steps import Say

__all__ = ["return_to_scrub"]


def return_to_scrub(
    record: Record, sysfs: Sysfs, records: Records, *, leak: bool, say: Say
) -> list[str]:
    """Makes the pool's devices again; where some are missing, the regions that are whole.
    Changes the record.

    leak: where the kernel has the pool's memory as its own, it need not be reached. Returns
    what cannot be scrubbed for that, as sentences. Raises RefusedError where the memory cannot
    be reached: the record is to stay; CtlError, BusyError, PartlyError as assemble().
    """
    part, topology = record.cxl, read(sysfs)
    assert part is not None
    whole = [region for region in part.regions if not missing(topology, region)]
    try:
        if len(whole) == len(part.regions):
            assemble(record.name, sysfs, records, half_destroyed=True, say=say)
        elif len(survivors(topology, part, boot_id(sysfs))) < len(whole):
            make_survivors(record, sysfs, records, say)
    except (NotFoundError, RefusedError, UsageError) as error:
        if leak and _in_system_ram(topology, part):
            return [f"its memory could not be scrubbed: {error.message}"]
        raise _unscrubbed(record, records, error) from error
    return []


def _in_system_ram(topology: Topology, part: CxlPart) -> bool:
    """Whether somebody has given dax devices of the pool to the kernel as ordinary memory."""
    names = {name for region in part.regions for name in region.dax}
    return any(dax.driver == "kmem" and dax.name in names for dax in topology.dax)


def _unscrubbed(record: Record, records: Records, error: CtlError) -> RefusedError:
    # A wrong size is none that was asked for here.
    advice = "" if isinstance(error, UsageError) else error.hint
    bare = (
        "to give its memory away as it is, unscrubbed, remove "
        f"{records.path(record.name)} by hand"
    )
    return RefusedError(
        f"pool '{record.name}' stays, for its memory could not be scrubbed: {error.message}",
        object=error.object or record.name,
        hint=f"{advice}; or, {bare}" if advice else bare,
    )
