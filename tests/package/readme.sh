#!/usr/bin/env bash
# readme.sh SOURCE_DIR
# The README's first C block is examples/all_scan.c, from its first #include on.
set -euo pipefail
cd "$1"
shown=$(sed -n '/^```c$/,/^```$/p' README.md | sed '1d; /^```$/,$d')
built=$(sed -n '/^#include/,$p' examples/all_scan.c)
[ -n "$shown" ] || { echo "README.md has no C block"; exit 1; }
diff <(echo "$shown") <(echo "$built") && exit 0
echo "README.md (<) and examples/all_scan.c (>) differ"
exit 1
