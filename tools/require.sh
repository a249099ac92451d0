#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks for what has to come from the system, all of it before any work starts, and names
# the command that installs what is missing. With --install (as root) runs that command.
#   tools/require.sh [--install] python|cxx|sanitizers|clang|make ...
# PYTHON, CC, CXX and FUZZ_CXX in the environment choose the programs that are checked.
set -eu

install=no
if [ "${1:-}" = --install ]; then
    install=yes
    shift
fi
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
packages=
reasons=

need() { # need "reason" package ...
    reasons="$reasons  - $1
"
    shift
    packages="$packages $*"
}

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

check_python() {
    python=$(find_python)
    if [ -z "$python" ]; then
        if command -v python3 >/dev/null; then
            need "Python 3.11, 3.12 or 3.13 (python3 here is $(python3 -V 2>&1))" \
                python3.11 python3.11-venv python3.11-dev
        else
            need "Python 3.11, 3.12 or 3.13" python3 python3-venv python3-dev
        fi
        return
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        need "the venv module of $python" "python$version-venv"
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        need "the headers of $python (Python.h)" "python$version-dev"
}

check_cxx() {
    cat >"$probe/a.cpp" <<'EOF'
#include <atomic>
#include <concepts>
#include <span>
template <std::integral T> T sum(std::span<const T> all) { T s = 0; for (T t : all) s += t; return s; }
int main() { std::atomic<int> a{1}; a.notify_all(); const int v[] = {1, -1}; return sum(std::span<const int>(v)); }
EOF
    if ! "${CXX:-c++}" -std=c++20 -o "$probe/a" "$probe/a.cpp" -pthread 2>/dev/null; then
        need "a C++20 compiler (g++ 11 or newer, clang 14 or newer)" g++
    fi
    echo 'int main(void) { return 0; }' >"$probe/c.c"
    if ! "${CC:-cc}" -o "$probe/c" "$probe/c.c" 2>/dev/null; then
        need "a C compiler" gcc libc6-dev
    fi
}

check_sanitizers() {
    echo 'int main() { return 0; }' >"$probe/s.cpp"
    for kind in address undefined thread; do
        if ! "${CXX:-c++}" -fsanitize=$kind -o "$probe/s" "$probe/s.cpp" 2>/dev/null; then
            case $("${CXX:-c++}" --version 2>/dev/null) in
            *clang*) need "clang's runtime for -fsanitize=$kind" libclang-rt-dev ;;
            *) need "the runtime for -fsanitize=$kind" g++ ;;
            esac
        fi
    done
}

check_clang() {
    cat >"$probe/f.cpp" <<'EOF'
#include <stddef.h>
#include <stdint.h>
#include <string>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return std::string(reinterpret_cast<const char *>(data), size).size() == size ? 0 : -1;
}
EOF
    if ! "${FUZZ_CXX:-clang++}" -std=c++20 -fsanitize=fuzzer,address,undefined \
        -o "$probe/f" "$probe/f.cpp" 2>/dev/null; then
        # Some releases keep the runtime in a package of its own, others do not.
        if apt-cache show clang >/dev/null 2>&1 && ! apt-cache show libclang-rt-dev >/dev/null 2>&1; then
            need "clang with libFuzzer, for the fuzz targets" clang
        else
            need "clang with libFuzzer, for the fuzz targets" clang libclang-rt-dev
        fi
    fi
}

check_make() {
    command -v make >/dev/null || need "make" make
}

check_all() {
    packages=
    reasons=
    for what in "$@"; do
        "check_$what"
    done
    packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ' | sed 's/ *$//')
}

check_all "$@"
[ -n "$packages" ] || exit 0
if [ "$install" = yes ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    check_all "$@" # again: package lists may be there only now
    echo "Installing: $packages"
    # shellcheck disable=SC2086
    apt-get install -y -q --no-install-recommends $packages
    check_all "$@"
    [ -n "$packages" ] || exit 0
fi
sudo=
[ "$(id -u)" = 0 ] || sudo='sudo '
{
    printf 'Missing on this machine:\n%s' "$reasons"
    echo "Install it with:"
    echo "  ${sudo}apt-get install -y $packages"
} >&2
exit 1
