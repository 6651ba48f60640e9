#!/usr/bin/env bash
# Formats the C, C++ and CUDA sources, or with --check fails, naming those that are not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
format=$(command -v clang-format-14 || command -v clang-format) || { echo "format: there is no clang-format" >&2; exit 1; }
mode=(-i)
case "${1:-}" in
  --check) mode=(--dry-run -Werror) ;;
  '') ;;
  *) echo "format: unknown argument '$1', expected --check or none" >&2; exit 2 ;;
esac
folders=()
for folder in include src kernels perf tests examples tools; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
find "${folders[@]}" -regex '.*\.\(c\|h\|cpp\|cu\|cuh\)' -print0 | xargs -0 "$format" "${mode[@]}"
