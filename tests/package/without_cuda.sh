#!/usr/bin/env bash
# without_cuda.sh TOOLKIT_DIR PROGRAM [ARGUMENT...]
# Runs the program in a new mount namespace where the CUDA Toolkit, the driver and NCCL are hidden.
set -euo pipefail
toolkit=$(readlink -f "$1")
shift

if [ "${SEQPAR_HIDDEN:-}" != 1 ]; then
  namespace=(unshare --mount)
  [ "$(id -u)" = 0 ] || namespace=(unshare --user --map-root-user --mount)
  if ! why=$("${namespace[@]}" true 2>&1); then
    echo "skipped: a mount namespace is not permitted here: $why"
    exit 77
  fi
  SEQPAR_HIDDEN=1 exec "${namespace[@]}" "$0" "$toolkit" "$@"
fi

mapfile -t libraries < <(ldconfig -p | grep -oE '/[^ ]*/lib(cuda|cudart|nccl|nvidia-ml)\.so[^ ]*$' | sort -u)
mount -t tmpfs none "$toolkit"
for library in "${libraries[@]}"; do
  if [ -e "$library" ]; then mount --bind /dev/null "$library"; fi
done
if [ -e "$toolkit/bin/nvcc" ]; then
  echo "the toolkit is still visible in $toolkit"
  exit 1
fi
"$@"
