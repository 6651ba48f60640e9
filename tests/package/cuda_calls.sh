#!/usr/bin/env bash
# cuda_calls.sh SOURCE_DIR
# The library's CUDA errors are read from the call that made them: no launch whose result is only pending (<<<>>>), no
# look at what may be pending, and no call whose result goes nowhere, since its error would be the next caller's.
set -euo pipefail
cd "$1"
bad=0
complain() { # WHAT FINDINGS
  [ -n "$2" ] || return 0
  echo "$1:"
  echo "$2"
  bad=1
}
complain "use launchKernel() of kernels/launch.h" "$(grep -rnE '<<<|cudaPeekAtLastError' src kernels || true)"
# A call that begins a statement: the line before ends a statement or opens a block.
found=$(awk 'FNR == 1 { before = ";" }
  /^[[:space:]]*(if \([^()]*\) )?cu(da)?[A-Z][A-Za-z]*\(.*\);/ && (/^[[:space:]]*if/ || before ~ /[;{}]([[:space:]]*\/\/.*)?$/) &&
    !/cudaGridDependencySynchronize/ { print FILENAME ":" FNR ":" $0 }
  NF { before = $0 }' $(find src kernels -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h'))
complain "give the result to checkCuda(), or to noteCuda() where nothing can be thrown" "$found"
[ $bad = 0 ] && echo "ok"
exit $bad
