#!/usr/bin/env bash
# without_ucx.sh LIBRARY INFO_PROGRAM
# In a mount namespace where UCX is hidden: ranks that share memory run, and other ranks get an error that names UCX.
set -euo pipefail
if [ "${SEQPAR_HIDDEN:-}" != 1 ]; then
  namespace=(unshare --mount)
  [ "$(id -u)" = 0 ] || namespace=(unshare --user --map-root-user --mount)
  if ! why=$("${namespace[@]}" true 2>&1); then
    echo "skipped: a mount namespace is not permitted here: $why"
    exit 77
  fi
  SEQPAR_HIDDEN=1 exec "${namespace[@]}" "$0" "$@"
fi
library=$1 info=$2
output=$(mktemp)
trap 'rm -f "$output"' EXIT
hidden=0
for file in $(ldconfig -p | grep -oE '/[^ ]*/libuc[pst]\.so[^ ]*$' | sort -u); do
  mount --bind /dev/null "$file"
  hidden=$((hidden + 1))
done
echo "hidden: $hidden files of UCX"

"$info" -t 3 | grep -F 'shared memory'
if SEQPAR_TRANSPORT=network "$info" -t 2 > "$output" 2>&1; then
  cat "$output"
  echo "messages without UCX: expected an error"
  exit 1
fi
cat "$output"
grep -E 'rank [01] reaches rank [01] only through UCX \(only messages were asked for\), but there is no libucp.so.0 \(' "$output"
if ldd "$library" | grep -E 'libuc[pst]'; then
  echo "$library: needs UCX at load"
  exit 1
fi
