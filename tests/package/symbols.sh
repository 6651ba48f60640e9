#!/usr/bin/env bash
# symbols.sh LIBRARY HEADER...
# Fails unless the library exports exactly the functions that the headers declare with SEQPAR_API.
set -euo pipefail
library=$1
shift

exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u)
declared=$(cat "$@" | grep -v '^ *#' | tr '\n' ' ' | grep -oE 'SEQPAR_API[^;(]*\(' | sed -E 's/.*[ *]([A-Za-z0-9_]+)\($/\1/' | sort -u)
[ -n "$declared" ] || { echo "$*: no declaration with SEQPAR_API found"; exit 1; }

bad=0
for name in $(comm -23 <(echo "$exported") <(echo "$declared")); do
  echo "$library: exported, but not declared in a header: $name"
  bad=1
done
for name in $(comm -13 <(echo "$exported") <(echo "$declared")); do
  echo "$library: declared in a header, but not exported: $name"
  bad=1
done
if grep -v '^seqpar' <<< "$exported"; then
  echo "$library: exports the names above, which do not begin with seqpar"
  bad=1
fi
[ $bad = 0 ] && echo "$library: exports the $(wc -l <<< "$declared") declared functions and nothing else"
exit $bad
