#!/usr/bin/env bash
# needed.sh LIBRARY SONAME NODE
# Fails if the library has another soname, has a symbol outside the version node, or needs more at load than the C and
# C++ runtimes (and libseqpar_attn, libseqpar).
set -euo pipefail
dynamic=$(readelf -d "$1")
bad=0
if ! grep -qF "Library soname: [$2]" <<< "$dynamic"; then
  echo "$1: expected the soname $2, found: $(grep SONAME <<< "$dynamic" || echo none)"
  bad=1
fi
allowed='libc|libm|libstdc\+\+|libgcc_s|ld-linux[-a-z0-9_]*'
case $2 in libseqpar_attn.*) allowed+='|libseqpar' ;; esac
if grep NEEDED <<< "$dynamic" | grep -vE "\[($allowed)\.so\.[0-9.]+\]"; then
  echo "$1: must not need the libraries above"
  bad=1
fi
if nm -D --defined-only "$1" | grep ' seqpar' | grep -vE "@@?$3\$"; then
  echo "$1: the symbols above are not of the version node $3"
  bad=1
fi
exit $bad
