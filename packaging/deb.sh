#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds dist/sacctl_VERSION_ARCH.deb for Debian 13 (trixie). `make deb` calls it.
#
# On Debian 13 with the build dependencies (packaging/debian/control) it builds right here.
# Elsewhere, as root, in a root folder made by mmdebstrap, which is kept in build/deb for the
# next time. The network is asked for that folder and for two wheels, once each; the build
# itself uses none.
#
# DEB_VERSION is the version, that of libsac/include/sac.h if it is left out.
# DEB_ROOT is the root folder, build/deb/root if it is left out; one that is there is used.
# DEB_MIRROR is a Debian mirror, that of this machine's apt if it is left out.
# LINTIAN=1 lets lintian look at the package; its errors are errors.
# PYTHON is any Python with pip.
set -eu
cd "$(dirname "$0")/.."
top=$PWD
work=$top/build/deb
root=${DEB_ROOT:-$work/root}
python=${PYTHON:-python3}
project=$(sed -n 's/^#define SAC_VERSION "\(.*\)"/\1/p' libsac/include/sac.h)
version=${DEB_VERSION:-$project}
jobs=${JOBS:-$(nproc)}

fail() {
    echo "packaging/deb.sh: $1" >&2
    exit 1
}

# ------------------------------------------------------------ what trixie has not

vendor() { # vendor NAME: the wheel of the version in requirements/build.txt
    pin=$(sed -n "s/^$1==/$1==/p" requirements/build.txt)
    [ -n "$pin" ] || fail "requirements/build.txt has no version of $1"
    wheel=$1-${pin#*==}-py3-none-any.whl
    mkdir -p "$work/vendor"
    find "$work/vendor" -name "$1-*.whl" ! -name "$wheel" -delete
    [ -e "$work/vendor/$wheel" ] ||
        "$python" -m pip --disable-pip-version-check download -q --no-deps \
            -d "$work/vendor" "$pin"
}

# ----------------------------------------------------------------------- source tree

# What the package is made of: the files that are there now, without what is built.
parts() {
    tar -cf - --sort=name --owner=0 --group=0 --numeric-owner "$@" \
        --exclude=__pycache__ --exclude='*.pyc' --exclude='*.so' CMakeLists.txt LICENSE NOTICE \
        README.md pyproject.toml requirements cmake libsac sacctl tools docs systemd udev packaging
}

# A package of the very same files is not made again.
digest() { { parts --mtime=@0 && echo "$version" && ls "$work/vendor"; } | sha256sum; }

sources() {
    tree=$work/libsac-$version
    rm -rf "$tree"
    mkdir -p "$tree"
    parts | tar -xf - -C "$tree"
    cp -a "$tree/packaging/debian" "$tree/debian"
    cp -a "$work/vendor" "$tree/vendor"
    when=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
    cat >"$tree/debian/changelog" <<EOT
libsac ($version) trixie; urgency=medium

  * Release $version; CHANGELOG.md says what changed.

 -- libsac developers <libsac@localhost>  $(LC_ALL=C date -u -R -d "@$when")
EOT
}

# ------------------------------------------------------------------ where to build

# shellcheck disable=SC2016
packages='
    /^Build-Depends:/ { on = 1; next }
    /^[^ ]/ { on = 0 }
    on { gsub(/[ ,]|\(.*\)/, ""); print }'

depends() { # names of the build dependencies
    awk "$packages" packaging/debian/control |
        sed 's/^debhelper-compat$/debhelper/; s/^dh-sequence-installsysusers$//'
}

# The list of packages that the root was made with: another list makes a new root.
make_root() {
    # lintian to look at the result; systemd for its tests of units.
    # shellcheck disable=SC2046
    wanted=$(printf '%s\n' build-essential ccache lintian systemd $(depends) |
        LC_ALL=C sort -u | paste -sd,)
    if [ -d "$root/usr" ] && { [ -n "${DEB_ROOT:-}" ] || [ "$(cat "$root.list")" = "$wanted" ]; }
    then
        return
    fi
    command -v mmdebstrap >/dev/null ||
        fail "mmdebstrap is missing: apt-get install mmdebstrap (or build on Debian 13)"
    echo "== Debian 13 root to build in ($root)"
    rm -rf "$root" "$root.list"
    mkdir -p "$(dirname "$root")"
    # shellcheck disable=SC2016 # apt expands it
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(SITE)' 'Created-By: Packages' \
        2>/dev/null | sed -n 's/^Debian Debian //p' | head -n 1)
    mirror=${DEB_MIRROR:-${mirror:-http://deb.debian.org/debian}}
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mmdebstrap --quiet --variant=minbase --mode=root --include="$wanted" \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --aptopt='Apt::Install-Recommends "false"' \
        trixie "$root" "deb [signed-by=$keys] $mirror trixie main"
    echo "$wanted" >"$root.list"
}

# shellcheck disable=SC2016
build='cd "$1" && DEB_BUILD_OPTIONS="nocheck parallel=$2" dpkg-buildpackage -b -us -uc'

build_here() {
    sh -c "$build" sh "$tree" "$jobs"
}

build_in_root() {
    [ "$(id -u)" = 0 ] || fail "building in a root folder needs root (or build on Debian 13)"
    make_root
    place=$root/build
    rm -rf "$place"
    mkdir -p "$place"
    mv "$tree" "$place/"
    launcher=$(chroot "$root" sh -c 'command -v ccache || true')
    # Called behind ||, where the shell does not end at a failure by itself.
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        SOURCE_DATE_EPOCH="$when" CCACHE_DIR=/ccache CCACHE_BASEDIR="/build/libsac-$version" \
        ${launcher:+CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_C_COMPILER_LAUNCHER=ccache} sh -c "$build" sh "/build/libsac-$version" "$jobs" ||
        return 1
    [ -z "${LINTIAN:-}" ] ||
        chroot "$root" lintian --fail-on error "/build/sacctl_${version}_$(arch_of).deb" ||
        return 1
    mv "$place"/*.deb "$work/" || return 1
    rm -rf "$place"
}

arch_of() { dpkg --print-architecture; }

trixie_here() {
    grep -q '^VERSION_ID="13"' /etc/os-release 2>/dev/null && command -v dpkg-checkbuilddeps >/dev/null &&
        dpkg-checkbuilddeps packaging/debian/control 2>/dev/null
}

vendor click
vendor nanobind
made=$work/sacctl_$version.made-from
now=$(digest)
if [ "$(cat "$made" 2>/dev/null)" = "$now" ] && ls dist/sacctl_"$version"_*.deb 2>/dev/null; then
    exit 0
fi
sources
echo "== Debian package, version $version"
if trixie_here; then
    build_here
else
    build_in_root
fi >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log" >&2
    fail "the build failed: $work/build.log"
}
mkdir -p dist
mv "$work"/sacctl_"$version"_*.deb dist/
echo "$now" >"$made"
ls dist/sacctl_"$version"_*.deb
