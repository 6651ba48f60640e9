#!/usr/bin/env bash
# wheels.sh [host] [cuda]: builds wheels into build/wheels/host and build/wheels/cuda, prints their sizes, installs each in
# a fresh virtual environment without a compiler in PATH, and runs it.
#
#   $CUDA_ARCHITECTURES  those of the CUDA wheel. "80-real" is machine code alone, "120" adds PTX, for newer GPUs
#   $SITE_PACKAGES       1: the environment contains the packages of this python3. With PyTorch and GPUs the CUDA wheel runs
#                        attention on one GPU and on two
#   $BUILT               1: builds nothing, installs and runs the wheels of an earlier call
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD work=$PWD/build/wheels
unset PYTHONPATH SEQPAR_LIBRARY SEQPAR_ATTN_LIBRARY  # use the installed files, not those of this build

build() { # KIND [OPTION...]
  [ -z "${BUILT:-}" ] || return 0
  rm -rf "${work:?}/$1"
  # With CMake's names of the compilers and a folder as deep as the presets', so that ccache reuses earlier results.
  CC=cc CXX=c++ python3 -m pip wheel --quiet --no-deps --wheel-dir "$work/$1" --config-settings=build-dir="$source/build/wheel-$1" "${@:2}" "$source"
}

sizes() { # KIND
  (cd "$work/$1" && du -b ./*.whl && python3 -m zipfile -l ./*.whl | awk '/\.so/ { print $NF, $1 }')
}

environment() { # FOLDER
  rm -rf "$1"
  if [ -n "${SITE_PACKAGES:-}" ]; then
    python3 -m venv --without-pip "$1"
    python3 -c 'import site; print(*site.getsitepackages(), sep="\n")' > "$(echo "$1"/lib/python3*/site-packages)/machine.pth"
  else
    python3 -m venv "$1" && "$1/bin/python" -m pip install --quiet numpy
  fi
}

# The wheel needs no compiler and no headers: PATH has the environment's programs only.
try() { # KIND
  local venv=$work/venv-$1
  local run=(env -i PATH="$venv/bin" HOME="$work" NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-2}" "$venv/bin/python")
  environment "$venv"
  "${run[@]}" -m pip install --quiet --no-index --no-deps "$work/$1"/*.whl
  cd /
  "${run[@]}" -c '
import numpy as np, seqpar
from seqpar._abi import attn_lib
with seqpar.Communicator(1, seqpar.unique_id(), 0) as comm:
    prefix, total = comm.all_scan(np.ones((4, 16, 32), np.float32), op="sum")
print("seqpar", seqpar.version(), "sum", total.sum(), attn_lib()._name)'
  "${run[@]}" -m seqpar all_scan_perf -t 2 -b 64K -e 64K -n 5 > "$work/$1.log" || { cat "$work/$1.log"; return 1; }
  tail -4 "$work/$1.log"
  [ "$1" != cuda ] || [ -z "${SITE_PACKAGES:-}" ] || try_gpus
}

try_gpus() {
  local gpus ranks
  gpus=$("${run[@]}" -c 'import torch; print(torch.cuda.device_count())')
  echo "on $gpus GPUs"
  [ "$gpus" -gt 0 ] || return 0
  "${run[@]}" -c '
import torch, seqpar.torch as sp
print("PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version(), "cuDNN", torch.backends.cudnn.version(), torch.cuda.get_device_name())
q = torch.randn(1, 4096, 8, 64, device="cuda", dtype=torch.bfloat16)
print(sp.explain(q, q, q, sp.comm(single=True, device="cuda"), causal=True))'
  for ranks in 1 2; do
    [ "$ranks" -le "$gpus" ] || continue
    echo "$ranks ranks: the error of each tensor, and its tolerance"
    for options in "--algorithm ring zigzag allgather_kv ulysses auto --heads 8 --kv-heads 2" \
      "--documents 1 2 137 372 --window 100" "--family gla --algorithm zeco lasp2"; do
      # shellcheck disable=SC2086
      "${run[@]}" -m torch.distributed.run --nproc-per-node "$ranks" -m seqpar.testing.parity --device cuda --dtype bfloat16 \
        --length 517 --head-dim 64 $options
    done
  done
}

[ $# -gt 0 ] || set -- host cuda
for kind in "$@"; do
  case $kind in
    host) build host ;;
    cuda)
      # Before the build: its isolated environment has no pip to download them with.
      scripts/cudnn_frontend.sh "$work/cudnn_frontend"
      build cuda --config-settings=cmake.define.SEQPAR_CUDNN_FRONTEND_DIR="$work/cudnn_frontend" --config-settings=cmake.define.SEQPAR_CUDA=ON \
        --config-settings="cmake.define.CMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-80-real;90-real;100-real;120}"
      ;;
    *)
      echo "wheels: unknown kind '$kind', expected: host cuda" >&2
      exit 2
      ;;
  esac
  sizes "$kind"
  (try "$kind")
done
