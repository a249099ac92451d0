#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The hot buffer's kernels under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.
# Needs a GPU, cuda-core and compute-sanitizer (CUDA toolkit, or SANITIZER=path). Few steps:
# each runs a hundred times slower. Exit status 1 where a tool found something.
set -eu
cd "$(dirname "$0")/../.."
sanitizer=${SANITIZER:-compute-sanitizer}
python=${PYTHON:-python3}
command -v "$sanitizer" >/dev/null || {
    echo "$sanitizer is not there: install the CUDA toolkit, or set SANITIZER" >&2
    exit 2
}
failed=0
for tool in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
    echo "== $tool"
    "$sanitizer" --tool "$tool" --error-exitcode 1 "$python" tests/gpu/hot_alone.py sanitize ||
        failed=1
done
exit $failed
