# SPDX-License-Identifier: Apache-2.0
"""A process that uses the system's daemon as an engine does: puts a page of its own, then
looks it up, pins it and checks every byte, once a second, over whatever happens to the daemon.
Each round is a line of JSON; one that went wrong has "error"."""

from __future__ import annotations

import json
import os
import time

import numpy as np

import libsac


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    # Patient: a restart takes its time where all is emulated.
    space = libsac.connect(timeout=120, reconnect=300).namespace("chat")
    planes = space.layout.planes
    number = 0
    while True:
        number += 1
        start = time.monotonic()
        first = os.getpid() * 1000 + number * 128
        try:
            keys = space.keys(range(first, first + 64))
            fill = number % 251 + 1
            with space.put(keys) as put:
                for plane in planes:
                    rows = np.full((1, plane.rows, plane.row_bytes), fill, np.uint8)
                    for layer in plane.layers:
                        put.write(plane.name, layer, rows)
            with space.pin(keys) as prefix:
                for plane in planes:
                    got = prefix.gather(plane.name, layer=plane.layers[0], tokens=np.arange(64))
                    assert (got == fill).all(), f"other bytes in {plane.name}"
            say(round=number, seconds=round(time.monotonic() - start, 3))
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}", round=number)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
