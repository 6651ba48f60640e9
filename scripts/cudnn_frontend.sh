#!/usr/bin/env bash
# cudnn_frontend.sh FOLDER: downloads the headers of cuDNN's frontend from the wheel nvidia-cudnn-frontend on PyPI into
# FOLDER/include, unless they are there. CMake calls it when it configures a build with CUDA.
set -euo pipefail
version=1.32.0
target=${1:?expected the folder to write}
[ -f "$target/include/cudnn_frontend.h" ] && exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$folder" "nvidia-cudnn-frontend==$version"
python3 -m zipfile -e "$folder"/*.whl "$folder/wheel"
mkdir -p "$target"
cp -r "$folder/wheel/include" "$target/"
