# SPDX-License-Identifier: Apache-2.0
"""``python -m sacctl`` is ``sacctl``."""

from sacctl.cli import main

if __name__ == "__main__":
    main()
