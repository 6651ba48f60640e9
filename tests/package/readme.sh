#!/usr/bin/env bash
# readme.sh SOURCE_DIR
# The README's first C block is examples/all_scan.c, and its CUDA block examples/all_gather_gpu.c, from their first
# #include on.
set -euo pipefail
cd "$1"
bad=0
compare() { # LANGUAGE FILE
  local shown built
  shown=$(sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" README.md | sed '1d; /^```$/,$d')
  built=$(sed -n '/^#include/,$p' "$2")
  [ -n "$shown" ] || { echo "README.md has no block of $1"; bad=1; return; }
  diff <(echo "$shown") <(echo "$built") && return
  echo "README.md (<) and $2 (>) differ"
  bad=1
}
compare c examples/all_scan.c
compare cuda examples/all_gather_gpu.c
exit $bad
