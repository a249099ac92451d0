# SPDX-License-Identifier: Apache-2.0
"""sacctl: the administrator's side of libsac: pools, the daemon, the command line.

Nothing is imported here, so that ``sacctl --help`` starts at once.
"""
