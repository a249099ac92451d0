# SPDX-License-Identifier: Apache-2.0
"""Codes of findings on CXL devices: SAC501 and on. The rules of health_codes.py hold."""

from __future__ import annotations

from sacctl.health_check import Check

__all__ = ["DEVICES"]

DEVICES = (
    Check(
        "SAC501",
        "critical",
        "a device of a pool is missing",
        """The pool's record names a CXL device by its serial number (or by its PCI address,
        where it has none), and the kernel shows no such device.

        Look whether it is plugged in and has power (lspci), and into the kernel's log. When it
        is there again the pool is assembled by itself, or by sacctl pool assemble.""",
    ),
    Check(
        "SAC502",
        "critical",
        "a device of a pool does not work",
        """The kernel shows the device, but it cannot be used: no driver is bound, it has no
        endpoint (the driver's probe failed), or its security state is locked.

        sacctl device show says more. Look into the kernel's log for cxl_pci and cxl_mem.""",
    ),
    Check(
        "SAC503",
        "degraded",
        "a device's link is slower than it could be",
        """Speed or width of its PCIe link is below what device and slot can do. It works, with
        less bandwidth; in an interleaved region all devices are as slow as this one.

        Seat the card anew, look at riser and cable; a link that trained down under errors
        comes back with a reset of the slot.""",
    ),
    Check(
        "SAC504",
        "degraded",
        "a device's link has many corrected errors",
        """The counters of corrected errors (AER) of the device have grown by ten or more
        within an hour. No data was lost: the link repeats what was wrong. It costs bandwidth,
        and is how links begin to fail.

        Seat the card anew, look at riser and cable, and watch whether it goes on.""",
    ),
    Check(
        "SAC505",
        "degraded",
        "a device had errors that could not be corrected",
        """The counters of uncorrectable errors (AER) have grown within an hour. The kernel
        resets the link then, and the memory of the device's regions goes away with it.

        Look into the kernel's log. If it happens again, replace the device.""",
    ),
    Check(
        "SAC506",
        "note",
        "a device's link had errors since the boot",
        """Counters of its link (AER) are not zero, and have not grown much within the last
        hour, or nobody has looked for so long.

        Nothing is to be done.""",
    ),
    Check(
        "SAC507",
        "critical",
        "a pool's region is not whole",
        """The region is gone, is not committed, has no driver, or no longer leads to every
        device of the pool. Its memory cannot be read or written.

        If its devices are there, sacctl pool assemble makes it again.""",
    ),
    Check(
        "SAC508",
        "critical",
        "a pool's dax device is not what it should be",
        """The device file of the pool is not there, or another driver has it: kmem makes
        ordinary memory of it, and it cannot be opened any more.

        sacctl pool assemble binds it to device_dax. If the kernel uses the memory already,
        sacctl pool adopt says what can be done.""",
    ),
    Check(
        "SAC509",
        "degraded",
        "the kernel uses memory of a pool",
        """Memory blocks in the range of the pool are online: the kernel may put anything
        there. Somebody, or a rule of the distribution, brought them online.

        sacctl pool adopt says which they are and whether they can be taken back. Boot with
        memhp_default_state=offline.""",
    ),
    Check(
        "SAC510",
        "degraded",
        "a device asks for attention",
        """The device reports a state of its own: maintenance needed, performance degraded,
        replacement needed, or trouble with its media.

        cxl list -H shows all that it reports. Plan for its replacement.""",
    ),
    Check(
        "SAC511",
        "degraded",
        "a device is too hot",
        """Its temperature has reached the threshold that is set in it (cxl list -A). Many
        devices become slower then.

        Look at fans and airflow.""",
    ),
    Check(
        "SAC512",
        "degraded",
        "a device is nearly worn out",
        """It reports that nearly all of its life is used, or more than the threshold that is
        set in it.

        Plan for its replacement.""",
    ),
    Check(
        "SAC513",
        "degraded",
        "a device has poison in a pool's memory",
        """The device's poison list names addresses that lie in a pool. Reading them raises an
        error. The blocks of 2 MiB around them have to be out of use: the monitor
        (sac-monitor.service) sees to that as soon as the device tells, and reads the lists at
        its start.

        sacctl device monitor --once does it now. A list that grows means that the device
        fails.""",
    ),
    Check(
        "SAC514",
        "degraded",
        "poison whose place in a pool cannot be known",
        """The kernel told a device address only, and the region is interleaved: which bytes of
        the pool are bad cannot be said, so nothing was taken out of use. Who reads them gets
        an error for that page, and the block is taken out of use then.

        A newer kernel (6.10 for all events) tells the host address. Or destroy the pool and
        create it without the device.""",
    ),
    Check(
        "SAC515",
        "note",
        "a device could not be asked",
        """Temperature, wear or poison could not be read: the program cxl is not installed, the
        device does not offer it, or the kernel has no trace of CXL events.

        Install the program cxl (Debian 13: package cxl; Debian 12: ndctl), load cxl_pci, and
        mount tracefs (mount -t tracefs nodev /sys/kernel/tracing). On a simulated machine no
        device can be asked. What is in sysfs is looked at all the same.""",
    ),
    Check(
        "SAC516",
        "degraded",
        "the kernel's policy for new devices was left changed",
        """While a region is made, sacctl keeps the kernel from giving its memory away, and puts
        the setting back at the end. The command was killed in between: new dax devices get no
        driver until the setting is back.

        The finding names the file and the value it had. The next sacctl pool create, assemble
        or destroy puts it back, too.""",
    ),
)
