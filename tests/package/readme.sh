#!/usr/bin/env bash
# readme.sh SOURCE_DIR
# The README's first C block is examples/all_scan.c, its CUDA block examples/all_gather_gpu.c, and the C block of
# docs/attention.md examples/attention.c, from their first #include on.
set -euo pipefail
cd "$1"
bad=0
compare() { # PAGE LANGUAGE FILE
  local shown built
  shown=$(sed -n "/^\`\`\`$2\$/,/^\`\`\`\$/p" "$1" | sed '1d; /^```$/,$d')
  built=$(sed -n '/^#include/,$p' "$3")
  [ -n "$shown" ] || { echo "$1 has no block of $2"; bad=1; return; }
  diff <(echo "$shown") <(echo "$built") && return
  echo "$1 (<) and $3 (>) differ"
  bad=1
}
compare README.md c examples/all_scan.c
compare README.md cuda examples/all_gather_gpu.c
compare docs/attention.md c examples/attention.c
exit $bad
