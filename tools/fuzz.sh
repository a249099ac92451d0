#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of a build folder, the given seconds shared among them.
#   tools/fuzz.sh BUILD_FOLDER SECONDS
# Starts from tests/native/fuzz/corpus/NAME (NAME is the target without fuzz_), which is
# only read; inputs that are found go to BUILD_FOLDER/corpus/NAME, and one that fails to
# BUILD_FOLDER/failed-NAME-*: keep that one in the corpus together with its correction.
set -eu

build=$1
seconds=$2
targets=$(find "$build" -maxdepth 1 -type f -name 'fuzz_*' -perm -100 | sort)
count=$(printf '%s\n' "$targets" | grep -c . || true)
if [ "$count" = 0 ]; then
    echo "tools/fuzz.sh: no fuzz target in $build" >&2
    exit 1
fi
each=$((seconds / count))
[ "$each" -gt 0 ] || each=1
for target in $targets; do
    name=${target##*/fuzz_}
    kept=tests/native/fuzz/corpus/$name
    found=$build/corpus/$name
    mkdir -p "$found"
    if [ ! -d "$kept" ]; then
        echo "tools/fuzz.sh: $kept is missing: a target starts from a kept corpus" >&2
        exit 1
    fi
    echo "-- fuzz_$name for $each s from $(find "$kept" -type f | wc -l) inputs"
    # Of any length at once: in a minute libFuzzer's slow growth would stay with one change.
    "$target" -max_total_time="$each" -len_control=0 -max_len=1024 \
        -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -verbosity=0 -artifact_prefix="$build/failed-$name-" "$found" "$kept"
done
