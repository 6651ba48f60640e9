#!/usr/bin/env bash
# subdirectory.sh CMAKE SOURCE_DIR WORK_DIR C_COMPILER CXX_COMPILER CXX_FLAGS
# The library as a folder of another project: built and linked by add_subdirectory(), nothing of it installed or tested.
set -euo pipefail
# Uses the flags of the build under test, and a build folder at the depth of presets' folders, since paths relative to it
# are part of a compiler cache's keys: the cache can reuse the results of the build under test.
cmake=$1 source=$2 work=$3 cc=$4 cxx=$5 flags=${6-}
rm -rf "$work"
mkdir -p "$work/project"
cat > "$work/project/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(host C CXX)
enable_testing()
find_package(Threads REQUIRED)
add_subdirectory("$source" seqpar)
add_executable(program "$source/tests/consumer/consumer.c")
target_link_libraries(program PRIVATE seqpar::seqpar Threads::Threads)
END
"$cmake" -S "$work/project" -B "$work" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="$flags" > "$work/configure.log" || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work" --target program > "$work/build.log" || { cat "$work/build.log"; exit 1; }
"$work/program"
tests=$(cd "$work" && ctest -N | tail -1)
[ "$tests" = "Total Tests: 0" ] || { echo "the library adds its tests to a project that uses it: $tests"; exit 1; }
