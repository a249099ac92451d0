#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks for what has to come from the system, all of it before any work starts, and names
# the command that installs what is missing. With --install (as root) runs that command.
# A program that was chosen and does not work is an error of its own: nothing stands in for it.
set -eu
cd "$(dirname "$0")/.."

usage() {
    cat >&2 <<'EOT'
usage: tools/require.sh [--install] WHAT ...
WHAT: python, cxx, sanitizers, clang, make, vm
  --install  install what is missing (Debian, Ubuntu; as root)
PYTHON, CC, CXX and FUZZ_CXX in the environment choose the programs that are checked.
EOT
    exit 2
}

install=no
if [ "${1:-}" = --install ]; then
    install=yes
    shift
fi
[ $# -gt 0 ] || usage
for what in "$@"; do
    case $what in
    python | cxx | sanitizers | clang | make | vm) ;;
    *)
        [ "$what" = --help ] || echo "tools/require.sh: unknown: $what" >&2
        usage
        ;;
    esac
done
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
packages=
reasons=
wrong=

need() { # need "reason" package ...
    reasons="$reasons  - $1
"
    shift
    packages="$packages $*"
}

refuse() { # refuse "what is wrong and what to do": no package puts it right
    wrong="$wrong  - $1
"
}

# ------------------------------------------------------------------------- Python

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

# The same for a Python and for the virtual environments made by it.
library_of() { "$1" -c 'import os; print(os.path.realpath(os.__file__))' 2>/dev/null; }

version_of() { "$1" -V 2>&1 | head -n 1; }

describe() { # why a program is not the one that is needed
    if ! command -v "$1" >/dev/null; then
        echo "there is no such program"
    else
        "$1" -c 'import sys; print("it is Python %d.%d.%d" % sys.version_info[:3])' 2>/dev/null ||
            echo "it does not run Python code"
    fi
}

find_python() {
    for candidate in python3 python3.13 python3.12 python3.11; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

# make keeps its virtual environment in .venv; it is not made anew for another Python.
check_venv() { # check_venv [chosen Python]
    [ -e .venv/bin/python ] || [ -L .venv/bin/python ] || return 0
    if ! made_by=$(library_of .venv/bin/python); then
        refuse "the Python that .venv was made by is gone: run make clean first"
    elif [ -n "${1:-}" ] && [ "$(library_of "$1")" != "$made_by" ]; then
        refuse "PYTHON=$1 is $(version_of "$1") of $(dirname "$(library_of "$1")"), but .venv was \
made by $(version_of .venv/bin/python) of ${made_by%/os.py}: run make clean first, or leave PYTHON \
out to use .venv as it is"
    fi
}

check_python() {
    python=${PYTHON:-}
    if [ -n "$python" ] && ! fits "$python"; then
        known=
        if fits .venv/bin/python; then
            known=" to use .venv, made by $(version_of .venv/bin/python)"
        fi
        refuse "PYTHON=$python: $(describe "$python"). Give the name or path of Python 3.11, 3.12 \
or 3.13, or leave PYTHON out$known"
        return
    fi
    check_venv "$python"
    [ -n "$python" ] || python=$(find_python)
    if [ -z "$python" ]; then
        if command -v python3 >/dev/null; then
            need "Python 3.11, 3.12 or 3.13 (python3 here: $(version_of python3))" \
                python3.11 python3.11-venv python3.11-dev
        else
            need "Python 3.11, 3.12 or 3.13" python3 python3-venv python3-dev
        fi
        return
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        need_of_python "the venv module (venv, ensurepip)" "python$version-venv"
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        need_of_python "the headers (Python.h)" "python$version-dev"
}

need_of_python() { # need_of_python "part" package: packages complete the system's Python only
    path=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
    case $path in
    /usr/bin/*) need "$1 of $path" "$2" ;;
    *)
        other=
        ! fits /usr/bin/python3 || other=", such as PYTHON=/usr/bin/python3"
        refuse "$path lacks $1, and no package of the system brings it: install that Python anew \
with it, or choose another one$other"
        ;;
    esac
}

# ---------------------------------------------------------------------- compilers

compile() { # compile COMPILER argument ...: the compiler may carry flags, as for CMake
    compiler=$1
    shift
    if command -v "$compiler" >/dev/null; then
        "$compiler" "$@" 2>/dev/null
    else
        $compiler "$@" 2>/dev/null
    fi
}

need_compiler() { # need_compiler VARIABLE default chosen "what is needed" package ...
    variable=$1 default=$2 chosen=$3 wanted=$4
    shift 4
    if [ "$chosen" = "$default" ]; then
        if command -v "$chosen" >/dev/null; then
            need "$wanted ($chosen here cannot do it: $(version_of_compiler "$chosen"))" "$@"
        else
            need "$wanted ($chosen is not there)" "$@"
        fi
    else
        fault="there is no such program"
        ! command -v "${chosen%% *}" >/dev/null ||
            fault="it cannot build a test program ($(version_of_compiler "$chosen"))"
        refuse "$variable=$chosen: $fault. Needed is $wanted. Put it right (Debian's packages: $*), \
choose another one, or leave $variable out to use $default"
    fi
}

version_of_compiler() { compile "$1" --version | head -n 1; }

check_cxx() {
    cat >"$probe/a.cpp" <<'EOT'
#include <atomic>
#include <concepts>
#include <span>
template <std::integral T> T sum(std::span<const T> all) { T s = 0; for (T t : all) s += t; return s; }
int main() { std::atomic<int> a{1}; a.notify_all(); const int v[] = {1, -1}; return sum(std::span<const int>(v)); }
EOT
    compile "${CXX:-c++}" -std=c++20 -o "$probe/a" "$probe/a.cpp" -pthread ||
        need_compiler CXX c++ "${CXX:-c++}" "a C++20 compiler, g++ 11 or newer or clang 14 or newer" g++
    echo 'int main(void) { return 0; }' >"$probe/c.c"
    compile "${CC:-cc}" -o "$probe/c" "$probe/c.c" ||
        need_compiler CC cc "${CC:-cc}" "a C compiler" gcc libc6-dev
}

check_sanitizers() {
    echo 'int main() { return 0; }' >"$probe/s.cpp"
    compile "${CXX:-c++}" -o "$probe/s" "$probe/s.cpp" || return 0 # check_cxx says so
    for kind in address undefined thread; do
        if ! compile "${CXX:-c++}" -fsanitize=$kind -o "$probe/s" "$probe/s.cpp"; then
            case $(version_of_compiler "${CXX:-c++}") in
            *clang*) need "the runtime of ${CXX:-c++} for -fsanitize=$kind" libclang-rt-dev ;;
            *) need "the runtime of ${CXX:-c++} for -fsanitize=$kind" g++ ;;
            esac
        fi
    done
}

check_clang() {
    cat >"$probe/f.cpp" <<'EOT'
#include <stddef.h>
#include <stdint.h>
#include <string>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return std::string(reinterpret_cast<const char *>(data), size).size() == size ? 0 : -1;
}
EOT
    if ! compile "${FUZZ_CXX:-clang++}" -std=c++20 -fsanitize=fuzzer,address,undefined \
        -o "$probe/f" "$probe/f.cpp"; then
        # Some releases keep the runtime in a package of its own, others do not.
        runtime=libclang-rt-dev
        if apt-cache show clang >/dev/null 2>&1 && ! apt-cache show $runtime >/dev/null 2>&1; then
            runtime=
        fi
        # shellcheck disable=SC2086
        need_compiler FUZZ_CXX clang++ "${FUZZ_CXX:-clang++}" \
            "clang with libFuzzer, for the fuzz targets" clang $runtime
    fi
}

check_make() {
    command -v make >/dev/null || need "make" make
}

# ---------------------------------------------------------------- virtual machines

BACKPORTS=/etc/apt/sources.list.d/bookworm-backports.sources
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

check_vm() { # what tests/vm needs
    version=$(qemu-system-x86_64 --version 2>/dev/null |
        sed -n 's/^QEMU emulator version \([0-9]*\).*/\1/p')
    if [ "${version:-0}" -lt 10 ]; then
        qemu=qemu-system-x86
        if grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then
            # apt takes only what is named from backports, so that nothing else comes newer.
            qemu=
            for part in qemu-system-x86 qemu-system-common qemu-system-data seabios; do
                qemu="$qemu $part/bookworm-backports"
            done
            apt-cache madison qemu-system-x86 2>/dev/null | grep -q bookworm-backports ||
                backports=yes
        fi
        # shellcheck disable=SC2086
        need "QEMU 10 or newer, for machines with CXL memory (here: ${version:-none})" $qemu
    fi
    while read -r program package; do
        command -v "$program" >/dev/null || need "$program, for test machines" "$package"
    done <<'EOT'
mmdebstrap mmdebstrap
zstd zstd
cpio cpio
mkfs.ext4 e2fsprogs
depmod kmod
EOT
    [ -e $KEYRING ] || need "the keys of Debian's archive" debian-archive-keyring
}

backports_source() { # with the mirror that this machine uses
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(SITE)' \
        'Created-By: Packages' 2>/dev/null | sed -n 's/^Debian Debian //p' | head -n 1)
    printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\nSigned-By: %s\n' \
        "${mirror:-http://deb.debian.org/debian}" $KEYRING
}

# ------------------------------------------------------------------------- report

check_all() {
    packages=
    backports=no
    reasons=
    wrong=
    for what in "$@"; do
        "check_$what"
    done
    # shellcheck disable=SC2086
    packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ' | sed 's/ *$//')
    if [ -n "$wrong" ]; then
        printf 'Cannot go on:\n%s' "$wrong" >&2
    fi
}

check_all "$@"
[ -n "$packages$wrong" ] || exit 0
if [ "$install" = yes ] && [ -z "$wrong" ]; then
    export DEBIAN_FRONTEND=noninteractive
    if [ "$backports" = yes ]; then
        echo "Adding Debian's backports: $BACKPORTS"
        backports_source >$BACKPORTS
    fi
    apt-get update -q
    check_all "$@" # again: package lists may be there only now
    echo "Installing: $packages"
    # shellcheck disable=SC2086
    apt-get install -y -q --no-install-recommends $packages
    check_all "$@"
    [ -n "$packages$wrong" ] || exit 0
fi
if [ -n "$packages" ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo='sudo '
    printf 'Missing on this machine:\n%s' "$reasons"
    if [ "$backports" = yes ]; then
        echo "It is in Debian's backports; as root:"
        echo "  cat >$BACKPORTS <<'EOT'"
        backports_source
        echo "EOT"
        echo "  apt-get update"
    fi
    if command -v apt-get >/dev/null; then
        echo "Install it with:"
    else
        echo "On Debian and Ubuntu this installs it; other systems have packages like these:"
    fi
    echo "  ${sudo}apt-get install -y $packages"
fi >&2
exit 1
