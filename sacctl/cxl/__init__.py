# SPDX-License-Identifier: Apache-2.0
"""CXL memory as the kernel shows it in sysfs: read, planned over, and changed.

Use the modules: ``sysfs`` (the one way to the files), ``model`` (what there is), ``read``
(a Topology from sysfs), ``plan`` and ``rules`` (what can be made), ``regionsteps`` and
``daxsteps`` (the writes, each with its way back), ``adopt`` (what firmware has made).
"""
