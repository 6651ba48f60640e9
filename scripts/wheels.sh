#!/usr/bin/env bash
# wheels.sh [host] [cuda]: builds wheels into build/wheels/host and build/wheels/cuda, prints their sizes, installs each in
# a fresh virtual environment without a compiler in PATH, and runs it. $CUDA_ARCHITECTURES: those of the CUDA wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD work=$PWD/build/wheels
unset PYTHONPATH SEQPAR_LIBRARY SEQPAR_ATTN_LIBRARY  # use the installed files, not those of this build

build() { # KIND [OPTION...]
  rm -rf "${work:?}/$1"
  # With CMake's names of the compilers, so that ccache reuses earlier results.
  CC=cc CXX=c++ python3 -m pip wheel --quiet --no-deps --wheel-dir "$work/$1" -C build-dir="$work/build-$1" "${@:2}" "$source"
  (cd "$work/$1" && du -b ./*.whl && python3 -m zipfile -l ./*.whl | awk '/\.so/ { print $NF, $1 }')
}

# The wheel needs no compiler and no headers: PATH has the environment's programs only.
try() { # KIND
  rm -rf "$work/venv-$1" && python3 -m venv "$work/venv-$1"
  local python=$work/venv-$1/bin/python
  "$python" -m pip install --quiet numpy
  env -i PATH="$work/venv-$1/bin" HOME="$work" "$python" -m pip install --quiet --no-deps "$work/$1"/*.whl
  cd /
  env -i PATH="$work/venv-$1/bin" "$python" -c '
import numpy as np, seqpar
from seqpar._abi import attn_lib
with seqpar.Communicator(1, seqpar.unique_id(), 0) as comm:
    prefix, total = comm.all_scan(np.ones((4, 16, 32), np.float32), op="sum")
print("seqpar", seqpar.version(), "sum", total.sum(), attn_lib()._name)'
  env -i PATH="$work/venv-$1/bin" "$python" -m seqpar all_scan_perf -t 2 -b 64K -e 64K -n 5 > "$work/$1.log" || { cat "$work/$1.log"; return 1; }
  tail -4 "$work/$1.log"
}

[ $# -gt 0 ] || set -- host cuda
for kind in "$@"; do
  case $kind in
    host) build host ;;
    cuda)
      # Before the build: its isolated environment has no pip to download them with.
      scripts/cudnn_frontend.sh "$work/cudnn_frontend"
      build cuda -C cmake.define.SEQPAR_CUDNN_FRONTEND_DIR="$work/cudnn_frontend" -C cmake.define.SEQPAR_CUDA=ON -C "cmake.define.CMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-80;90;100;120}"
      ;;
    *)
      echo "wheels: unknown kind '$kind', expected: host cuda" >&2
      exit 2
      ;;
  esac
  (try "$kind")
done
