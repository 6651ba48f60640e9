#!/usr/bin/env bash
# readme.sh SOURCE_DIR
# The README's C and Python blocks are examples/all_scan.c and examples/quickstart_torch.py, and the C block of
# docs/attention.md is examples/attention.c, from their first #include or import on.
set -euo pipefail
cd "$1"
bad=0
compare() { # PAGE LANGUAGE FILE
  local shown built
  shown=$(sed -n "/^\`\`\`$2\$/,/^\`\`\`\$/p" "$1" | sed '1d; /^```$/,$d')
  built=$(sed -n -E '/^(#include|import )/,$p' "$3")
  [ -n "$shown" ] || { echo "$1 has no block of $2"; bad=1; return; }
  diff <(echo "$shown") <(echo "$built") && return
  echo "$1 (<) and $3 (>) differ"
  bad=1
}
compare README.md c examples/all_scan.c
compare README.md python examples/quickstart_torch.py
compare docs/attention.md c examples/attention.c
exit $bad
