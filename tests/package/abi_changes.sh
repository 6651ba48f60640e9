#!/usr/bin/env bash
# abi_changes.sh PYTHON TESTS HEADERS C_COMPILER
# The test of abi.py: a function that went, a parameter of another type and a field in the middle of a structure are
# found; a new function is welcome.
set -euo pipefail
python=$1 tests=$2 headers=$3 cc=$4
command -v abidiff > /dev/null || { echo "skipped: there is no abidiff"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check WHAT EXPECTED_STATUS SED_EXPRESSION FILE
check() {
  rm -rf "$work/include"
  mkdir -p "$work/include"
  cp -r "$headers" "$work/include/seqpar"
  rm "$work/include/seqpar/seqpar_mpi.h"
  sed -i -E "$3" "$work/include/seqpar/$4"
  if cmp -s "$headers/$4" "$work/include/seqpar/$4"; then
    echo "$1: '$3' changes nothing in $4"
    exit 1
  fi
  local status=0
  "$python" "$tests/abi.py" "$tests/libseqpar.abi" "$cc" "$work"/include/seqpar/*.h > "$work/output" 2>&1 || status=$?
  if [ $status != "$2" ]; then
    cat "$work/output"
    echo "$1: status $status, expected $2"
    exit 1
  fi
  echo "$1: ok"
}

check "a function that went" 1 's/seqparGetVersion\(/seqparTellVersion(/' types.h
check "a parameter of another type" 1 's/seqparGetVersion\(int\*/seqparGetVersion(long*/' types.h
check "a field in a structure" 1 's/^( *)int heads;/\1int lines, heads;/; s/^( *)(size_t|int64_t) heads/\1\2 lines, heads/' scan.h
check "a new function" 0 's/^(SEQPAR_API seqparResult_t )seqparGetVersion\(/\1seqparNew(int x);\n\1seqparGetVersion(/' types.h
