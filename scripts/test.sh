#!/usr/bin/env bash
# Sets up the machine, builds every preset that can be built here and runs all tests. Ends with one line,
# "N passed, N failed, N skipped", and with a non-zero exit status if anything failed.
# Arguments: the phases to run (default: all), of: format host tidy asan tsan fuzz cuda.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

scripts/setup.sh || exit 1

jobs=$(nproc)
# Shares compiled objects between build folders and clones.
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
passed=0 failed=0 skipped=0
declare -a problems=()
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

problem() {
  failed=$((failed + 1))
  problems+=("$1")
}

# Adds the counts of a ctest run, read from its JUnit file. A failed run counts as at least one failure.
count() { # PHASE STATUS
  local suite tests failures disabled skips
  suite=$(grep -oE '(tests|failures|disabled|skipped)="[0-9]+"' "$work/$1.xml" 2> /dev/null | head -4)
  value() { sed -n "s/^$1=\"\([0-9]*\)\"$/\1/p" <<< "$suite"; }
  tests=$(value tests) failures=$(value failures) disabled=$(value disabled) skips=$(value skipped)
  if [ -z "$tests" ] || [ "$tests" = 0 ]; then
    problem "$1: ctest ran no test"
    return
  fi
  # A test whose program was not built fails in ctest, but is counted as skipped in the JUnit file.
  local missing
  missing=$(grep -c 'skipped message="Unable to find executable"' "$work/$1.xml")
  failures=$((failures + missing)) skips=$((skips - missing))
  if [ "$2" != 0 ] && [ "$failures" = 0 ]; then
    failures=1 skips=$((skips > 0 ? skips - 1 : 0))
  fi
  passed=$((passed + tests - failures - disabled - skips))
  failed=$((failed + failures))
  skipped=$((skipped + skips + disabled))
  [ "$failures" = 0 ] || problems+=("$1: $failures tests: $(cut -d: -f2- "build/$1/Testing/Temporary/LastTestsFailed.log" | paste -sd ';')")
}

# Builds the targets (default: all) and runs tests with matching names (default: all), except those in leave_out.
build_and_test() { # PRESET [NAMES [TARGET...]]
  local preset=$1 names=${2:-.} status=0
  shift $(($# > 1 ? 2 : 1))
  if ! cmake --preset "$preset" > "$work/configure.log" 2>&1; then
    cat "$work/configure.log"
    problem "$preset: could not be configured"
    return
  fi
  if ! cmake --build --preset "$preset" ${1:+--target "$@"} > "$work/build.log" 2>&1; then
    grep -vE '^\[[0-9]+/[0-9]+\]' "$work/build.log" | tail -60
    problem "$preset: could not be built"
    return
  fi
  echo "built after $((SECONDS - started)) s"
  # clang's thread sanitizer needs fixed addresses: disables address space randomization if that is allowed.
  local run=()
  if [ "$preset" = tsan ] && setarch "$(uname -m)" -R true 2> /dev/null; then run=(setarch "$(uname -m)" -R); fi
  # Twice as many jobs as processors: tests of failures mostly wait for timeouts.
  "${run[@]}" ctest --preset "$preset" --parallel "$((2 * jobs))" --tests-regex "$names" --exclude-regex "${leave_out:-^$}" \
    --output-junit "$work/$preset.xml" || status=$?
  # ctest prints which tests were skipped; their output has the reason.
  grep -hE '^skipped' "build/$preset/Testing/Temporary/LastTest.log" | sort | uniq -c
  count "$preset" "$status"
}

phase() { # NAME
  case $1 in
    format)
      if scripts/format.sh --check; then passed=$((passed + 1)); else problem "format: run scripts/format.sh"; fi
      ;;
    host)
      # Downloads overlap with compilation. Tests wait for the environments that they need, and report failures.
      python3 python/tests/venvs.py docs jax torch > /dev/null 2>&1 &
      build_and_test host
      ;;
    tidy)
      if cmake --preset host > "$work/configure.log" 2>&1 && cmake --build --preset host --target seqpar > "$work/build.log" 2>&1 &&
        QUICK=1 scripts/tidy.sh build/host > "$work/tidy.log" 2> /dev/null; then
        passed=$((passed + 1))
      else
        grep -A4 'error:' "$work/tidy.log" | head -60
        problem "tidy: see scripts/tidy.sh"
      fi
      ;;
    # Two of the rank counts, and no comparisons of bits: the others differ in results, not in memory accesses.
    asan) leave_out='_threads: [123467] ranks$|packed sequences apart' build_and_test asan ;;
    # Tests with threads. Pure functions and numbers cannot race. Random cases run every algorithm with the same thread
    # programs. Other tests run each kernel, with fewer values (tests/common/covering.h).
    tsan)
      local pure='solved layouts|arranged rectangles|rectangles halved|as many slices as possible|copy of a rank to itself'
      pure+='|unit_device_matrix:(The product|Infinity and NaN|Splitting a value|16-bit types)'
      pure+='|test_ring:(every form|a round may|a double ring|slices)'
      local numbers='packed sequences .*apart|keep (small|gradients|rows|the state)|round (queries|values|little)'
      numbers+='|norms for random|have small norms|launch records|at most another library|keys of 256, other decays'
      numbers+='|attn kernels:.* with random shapes|attn kernels:.* in fp16'
      leave_out="_threads: [124678] ranks\$|every algorithm with every feature|$pure|$numbers" build_and_test tsan \
        '^(test_(base|bootstrap|transport|api|ring)|unit_(device|exchange)|attn|fault|.*_threads)' \
        test_base test_bootstrap test_transport test_api test_ring unit_device_channels unit_device_matrix unit_exchange \
        unit_exchange_byte_fifos \
        attn_test attn_kernels_test emulated_race support_table fault campaign lifetimes at_exit shrink mp_threads mp_soak
      ;;
    fuzz) build_and_test fuzz '^fuzz' fuzz_wire fuzz_wire_seeds ;;
    cuda)
      if ! command -v nvcc > /dev/null; then
        echo "skipped: there is no nvcc"
        skipped=$((skipped + 1))
        return
      fi
      # The host path is the same code as in the preset host; this runs it as a whole, with CUDA hidden and visible.
      build_and_test cuda '^(package|gpu|python(_abi)?$|test_copy_ring|test_pending_sums)' \
        test_copy_ring test_pending_sums seqpar seqpar_attn foreign_symbol nvtx_listener nvtx_calls package_host_path gpu_tests block_wise_scan gla_text \
        micro_linear_forward micro_linear_backward micro_linear_delta
      ;;
    *) problem "unknown phase '$1', expected: format host tidy asan tsan fuzz cuda" ;;
  esac
}

[ $# -gt 0 ] || set -- format host tidy asan tsan fuzz cuda
for name in "$@"; do
  started=$SECONDS
  echo
  echo "==== $name"
  phase "$name"
  echo "==== $name: $((SECONDS - started)) s"
done

echo
# The end of a long log then has the reason of each failure.
[ "$failed" = 0 ] || for log in "$work"/*.xml; do
  [ ! -e "$log" ] || scripts/failed_tests.py "$(basename "$log" .xml)" "$log"
done
for text in "${problems[@]}"; do
  echo "failed: $text"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
