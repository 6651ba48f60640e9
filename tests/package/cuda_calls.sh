#!/usr/bin/env bash
# cuda_calls.sh SOURCE_DIR
# The library reads CUDA errors from the failing call's result: no launch with a pending result (<<<>>>), no query of
# pending errors, and no call with an ignored result, since the next caller would get its error.
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
# A call at the start of a statement: the line before ends a statement or opens a block.
found=$(awk 'FNR == 1 { before = ";" }
  /^[[:space:]]*(if \([^()]*\) )?cu(da)?[A-Z][A-Za-z]*\(.*\);/ && (/^[[:space:]]*if/ || before ~ /[;{}]([[:space:]]*\/\/.*)?$/) &&
    !/cudaGridDependencySynchronize/ { print FILENAME ":" FNR ":" $0 }
  NF { before = $0 }' $(find src kernels -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h'))
complain "give the result to checkCuda(), or to noteCuda() where nothing can be thrown" "$found"
[ $bad = 0 ] && echo "ok"
exit $bad
