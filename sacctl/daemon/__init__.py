# SPDX-License-Identifier: Apache-2.0
"""The daemon: serves pools to other processes, and answers the administrator.

``run.run`` is its main; ``link.Link`` is what speaks to it. All that changes shared bytes is
in libsac; here are settings, pools by name, permissions, logs, metrics and the service
manager. Nothing is imported here: ``link`` must start quickly.
"""
