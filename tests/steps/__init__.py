# SPDX-License-Identifier: Apache-2.0
"""One script of steps, kernel.steps, for the simulated kernel and for a real one.

``python3 -m steps`` runs it on this machine (root, CXL devices that nobody uses, and nothing
else on them); tests/unit/test_cxlsim_steps.py runs it on the simulator. Both must answer each
write as the script says. Plain Python: nothing but the standard library and sacctl.cxl.sysfs.
"""
