#!/usr/bin/env bash
# Runs clang-tidy over src/ and kernels/ with the compile commands of a configured build (default: build/host).
# Arguments after the build folder are files (default: all files of the build). QUICK=1 leaves out clang-analyzer, which
# takes half to two thirds of the time and needs a translation unit per file, and two checks of names and null pointers that
# take a tenth of the rest. Files that passed and did not change since are not checked again (scripts/tidy.py).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/host}
shift $(($# > 0 ? 1 : 0))
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || { echo "tidy: there is no clang-tidy" >&2; exit 1; }
[ -f "$build/compile_commands.json" ] || { echo "tidy: $build is not configured: cmake --preset host" >&2; exit 1; }
if [ $# = 0 ]; then
  mapfile -t files < <(grep -oE '"file": "[^"]*/(src|kernels)/[^"]*\.cpp"' "$build/compile_commands.json" | cut -d'"' -f4 | sort -u)
else
  files=("$@")
fi
checks=
[ "${QUICK:-0}" = 0 ] || checks=--checks=-clang-analyzer-*,-bugprone-reserved-identifier,-bugprone-stringview-nullptr
exec python3 scripts/tidy.py "$tidy" "$build" "$checks" "${files[@]}"
