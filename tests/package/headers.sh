#!/usr/bin/env bash
# headers.sh INCLUDE_DIR C_COMPILER CXX_COMPILER [MPI_FLAG...]
# Every public header compiles alone, twice in a row, as strict C99 and as C++17. seqpar_mpi.h needs MPI's flags.
set -euo pipefail
include=$1 cc=$2 cxx=$3
shift 3
warnings=(-Wall -Wextra -pedantic -Werror -fsyntax-only -I "$include")
for header in "$include"/seqpar/*.h; do
  name=seqpar/$(basename "$header")
  if [ "$name" = seqpar/seqpar_mpi.h ] && [ $# = 0 ]; then
    echo "$name: left out, this build has no MPI"
    continue
  fi
  text="#include <$name>"$'\n'"#include <$name>"$'\n'"int main(void) { return 0; }"
  "$cc" -std=c99 "${warnings[@]}" "$@" -x c - <<< "$text"
  "$cxx" -std=c++17 "${warnings[@]}" "$@" -x c++ - <<< "$text"
  echo "$name: ok"
done
