#!/usr/bin/env bash
# Brings the headers of cuDNN's frontend, which builds with CUDA use for softmax attention, into .deps/ (or into the
# folder given): from the wheel nvidia-cudnn-frontend on PyPI. Does nothing where they are.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.32.0
target=${1:-.deps/cudnn-frontend}
[ -f "$target/include/cudnn_frontend.h" ] && exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$folder" "nvidia-cudnn-frontend==$version" || {
  echo "cudnn_frontend: pip cannot bring nvidia-cudnn-frontend $version; set SEQPAR_CUDNN_FRONTEND_DIR instead" >&2
  exit 1
}
python3 -m zipfile -e "$folder"/*.whl "$folder/wheel"
mkdir -p "$target"
cp -r "$folder/wheel/include" "$target/"
echo "cudnn_frontend: headers of $version are in $target/include"
