#!/usr/bin/env bash
# cudnn.sh CMAKE SOURCE_DIR WORK_DIR CUDA_COMPILER
# A build with CUDA stops without the headers of cuDNN or NCCL, and configures with SEQPAR_CUDNN=OFF.
set -euo pipefail
cmake=$1 source=$2 work=$3 nvcc=$4
# An index that refuses connections, so that nothing is downloaded.
export PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_RETRIES=0 PIP_NO_INPUT=1 PIP_CONFIG_FILE=/dev/null

configure() { # NAME OPTION...
  rm -rf "${work:?}/$1"
  "$cmake" -S "$source" -B "$work/$1" -G Ninja -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES=90 -DSEQPAR_CUDA=ON \
    -DSEQPAR_TESTS=OFF -DSEQPAR_PERF=OFF -DSEQPAR_MPI=OFF -DSEQPAR_EXAMPLES=OFF "${@:2}" > "$work/$1.log" 2>&1
}
mkdir -p "$work"
if configure refused; then
  echo "a build without cudnn_frontend.h was configured"
  exit 1
fi
for text in "cudnn_frontend.h is missing" SEQPAR_CUDNN_FRONTEND_DIR SEQPAR_CUDNN=OFF; do
  grep -q "$text" "$work/refused.log" || { cat "$work/refused.log"; echo "the error does not contain '$text'"; exit 1; }
done
configure off -DSEQPAR_CUDNN=OFF || { cat "$work/off.log"; exit 1; }
if configure nccl -DSEQPAR_CUDNN=OFF -DSEQPAR_NCCL_INCLUDE_DIR=/nonexistent; then
  echo "a build without nccl.h was configured"
  exit 1
fi
grep -q "nccl.h is missing (SEQPAR_NCCL_INCLUDE_DIR is /nonexistent)" "$work/nccl.log" || { cat "$work/nccl.log"; exit 1; }
