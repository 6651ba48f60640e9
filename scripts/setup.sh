#!/usr/bin/env bash
# Installs the Debian 12 packages that building and testing need. Does nothing if all are installed.
set -euo pipefail

packages=(
  cmake ninja-build g++ ccache pkg-config git
  libucx-dev ucx-utils
  libopenmpi-dev openmpi-bin
  libcli11-dev nlohmann-json3-dev python3-matplotlib
  catch2 clang clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev
  python3 python3-numpy help2man abigail-tools
  iproute2 util-linux binutils procps
)

installed() { dpkg-query -W -f '${Status}' "$1" 2> /dev/null | grep -q '^install ok installed$'; }

command -v dpkg-query > /dev/null || {
  echo "setup: this is no Debian system. Install by hand what these packages stand for: ${packages[*]}" >&2
  exit 1
}
missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} = 0 ]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo > /dev/null || ! sudo -n true 2> /dev/null; then
    echo "setup: packages are missing and this is not root. Run this, then try again:" >&2
    echo "  su -c 'apt-get update && apt-get install -y --no-install-recommends ${missing[*]}'" >&2
    exit 1
  fi
  as_root=(sudo -n)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get -q update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"
