# SPDX-License-Identifier: Apache-2.0
"""The docs' C compiles as it stands, and runs on the CUDA for tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from unit import fake_gpu

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```c\n(.*?)^```", page.read_text(), re.M | re.S)


C_FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_c_blocks_compile(page: Path, tmp_path: Path) -> None:
    """Each by itself: a reader copies one."""
    for number, block in enumerate(blocks(page)):
        source = tmp_path / f"{number}.c"
        source.write_text(block)
        include = f"-I{ROOT / 'libsac' / 'include'}"
        words = ["cc", *C_FLAGS, include, "-fsyntax-only", str(source)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, f"{page.name}\n{done.stderr}"


# A prefix of 1,024 tokens, and memory that the CUDA for tests takes for a GPU's.
C_MAIN = """
#include <stdlib.h>
#define DO(call) do { if ((call) != SAC_OK) { \
    fprintf(stderr, "%s\\n", sac_last_error()->message); return 2; } } while (0)
int main(void) {
    const sac_pool_options of_pool = {.struct_size = sizeof of_pool, .bytes = 64 << 20};
    const sac_plane plane = {.name = "kv", .layers = {1}, .heads = 1, .tokens_per_row = 1,
                             .row_bytes = 64, .dtype = "bf16"};
    const sac_layout layout = {.struct_size = sizeof layout, .page_tokens = 64,
                               .plane_count = 1, .planes = &plane};
    const sac_ns_options of_ns = {.struct_size = sizeof of_ns, .layout = &layout};
    const sac_put_options of_put = {.struct_size = sizeof of_put, .first_tail = UINT64_MAX};
    static uint8_t keys[16][SAC_KEY_BYTES], rows[1024 * 64];
    static uint32_t tokens[1024];
    static int32_t request[1], selection[256], positions[256];
    const sac_scatter_req all = {.count = 16, .src = rows, .page_stride = 4096};
    sac_pool *pool; sac_ns *ns; sac_put *put; sac_prefix *prefix;
    sac_gpu *gpu; sac_gpu_registration *registration;
    DO(sac_pool_embedded(&of_pool, &pool));
    DO(sac_ns_open(pool, "c", &of_ns, &ns));
    DO(sac_keys(ns, tokens, 1024, NULL, 0, NULL, keys[0]));
    DO(sac_put_begin(ns, keys[0], 16, &of_put, &put));
    DO(sac_put_write(put, &all, 1, 1));
    DO(sac_put_commit(put, NULL));
    DO(sac_put_close(put));
    DO(sac_pin(ns, keys[0], 16, &prefix));
    if (register_pool(ns, &gpu, &registration))
        return 3;
    DO(sac_gpu_registration_close(registration));
    DO(sac_gpu_close(gpu));
    for (int i = 0; i < 256; ++i)
        selection[i] = i * 4, positions[i] = -7;
    if (gpu_step(ns, prefix, (uintptr_t)request, (uintptr_t)selection, (uintptr_t)positions, 0))
        return 4;
    for (int i = 0; i < 256; ++i)
        if (positions[i] < 0 || positions[i] >= 512)
            return 5;
    DO(sac_prefix_close(prefix));
    DO(sac_ns_close(ns));
    DO(sac_pool_close(pool));
    return 0;
}
"""


def test_c_blocks_for_a_gpu_run(tmp_path: Path) -> None:
    pages = [blocks(ROOT / "docs" / name) for name in ("gpu.md", "c-api.md")]
    source = "".join(block for page in pages for block in page) + C_MAIN
    (tmp_path / "step.c").write_text(source)
    command = (
        f"cc {' '.join(C_FLAGS)} step.c $({sys.executable} -m libsac --cflags --libs) -o step"
    )
    fake = fake_gpu.library()
    told = {"SAC_LIBCUDA": fake, "SAC_NVRTC": fake, "XDG_CACHE_HOME": str(tmp_path)}
    for words in (["sh", "-c", command], ["./step"]):
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, "PYTHONSAFEPATH": "1", **told},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words} {done.returncode}\n{done.stdout}{done.stderr}"
    assert re.fullmatch(
        r"position p is at 0x[0-9a-f]+ \+ p \* 64; 256 rows in slots\n", done.stdout
    )
