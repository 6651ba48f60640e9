#!/usr/bin/env bash
# wheel_pkgconfig.sh CMAKE SOURCE_DIR LIBSEQPAR LIBSEQPAR_ATTN WORK_DIR C_COMPILER CXX_COMPILER
# The pkg-config files of a wheel, with the libraries as a wheel has them: programs are linked and run without more.
set -euo pipefail
cmake=$1 source=$2 library=$3 attn=$4 work=$5 cc=$6 cxx=$7
command -v pkg-config > /dev/null || { echo "skipped: there is no pkg-config"; exit 77; }
rm -rf "$work"
mkdir -p "$work/seqpar/lib/pkgconfig" "$work/seqpar/include"
"$cmake" -S "$source" -B "$work/build" -DSKBUILD=2 -DSEQPAR_TESTS=OFF -DSEQPAR_PERF=OFF -DCMAKE_INSTALL_LIBDIR=lib \
  -DCMAKE_INSTALL_PREFIX="$work/seqpar" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" > "$work/configure.log"
cp "$work/build/seqpar.pc" "$work/build/seqpar_attn.pc" "$work/seqpar/lib/pkgconfig"
cp -r "$source/include/seqpar" "$work/seqpar/include"
for file in "$library" "$attn"; do
  soname=$(readelf -d "$file" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
  cp "$file" "$work/seqpar/lib/$soname"
done
export PKG_CONFIG_PATH=$work/seqpar/lib/pkgconfig
unset LD_LIBRARY_PATH
# shellcheck disable=SC2046
"$cc" -std=c99 "$source/tests/consumer/consumer.c" -o "$work/c" $(pkg-config --cflags --libs seqpar) -pthread
# shellcheck disable=SC2046
"$cc" -std=c99 "$source/tests/consumer/attn.c" -o "$work/attn" $(pkg-config --cflags --libs seqpar_attn)
"$work/c"
"$work/attn"
