#!/usr/bin/env bash
# consumers.sh CMAKE BUILD_DIR CONSUMER_DIR WORK_DIR C_COMPILER CXX_COMPILER
# Installs the build to a fresh prefix, moves that tree, and builds and runs the consumer project against it: by the
# CMake package, by pkg-config, and by plain compiler flags.
set -euo pipefail
cmake=$1 build=$2 consumer=$3 work=$4 cc=$5 cxx=$6
rm -rf "$work"
mkdir -p "$work"

for component in runtime development; do
  "$cmake" --install "$build" --prefix "$work/first" --component $component > "$work/install.log"
done
mv "$work/first" "$work/prefix"
prefix=$work/prefix
lib=$(dirname "$(find "$prefix" -name libseqpar.so)")
if grep -rlF -e "$build" -e "$work/first" "$prefix" --include='*.cmake' --include='*.pc' --include='*.h'; then
  echo "the installed files above name the build's or the install's own folders"
  exit 1
fi

for page in $(grep -rhoE '(docs|perf|examples)/[A-Za-z_/]+\.md' "$prefix/include" | sort -u) README.md docs/index.md examples/all_scan.c; do
  [ -f "$prefix/share/doc/seqpar/$page" ] || { echo "$page, which headers name, is not installed"; exit 1; }
done

echo "== CMake package"
"$cmake" -S "$consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF
"$cmake" --build "$work/cmake"
"$work/cmake/consumer_c"
"$work/cmake/consumer_cpp"
"$work/cmake/consumer_attn"

run_both() { # MODE FLAGS_FOR_SEQPAR FLAGS_FOR_ATTN
  echo "== $1"
  # shellcheck disable=SC2086
  "$cc" -std=c99 -Wall -Wextra -pedantic -Werror "$consumer/consumer.c" -o "$work/$1_c" $2 -pthread
  # shellcheck disable=SC2086
  "$cxx" -std=c++17 -Wall -Wextra -pedantic -Werror "$consumer/consumer.cpp" -o "$work/$1_cpp" $2 -pthread
  # shellcheck disable=SC2086
  "$cc" -std=c99 -Wall -Wextra -pedantic -Werror "$consumer/attn.c" -o "$work/$1_attn" $3
  for program in c cpp attn; do
    LD_LIBRARY_PATH=$lib "$work/$1_$program"
  done
}

if command -v pkg-config > /dev/null; then
  export PKG_CONFIG_PATH=$lib/pkgconfig
  run_both pkg-config "$(pkg-config --cflags --libs seqpar)" "$(pkg-config --cflags --libs seqpar_attn)"
else
  echo "== pkg-config: left out, there is none"
fi
run_both plain "-I$prefix/include -L$lib -lseqpar" "-I$prefix/include -L$lib -lseqpar_attn -lseqpar"
