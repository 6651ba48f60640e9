#!/usr/bin/env bash
# Demonstration and benchmark: sets up the machine, builds, runs a text file through gated linear attention on several
# ranks, and measures All-Scan. Arguments are passed to scripts/run_text_example.sh (see --help).
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  -h | --help) exec scripts/run_text_example.sh --help ;;
esac

scripts/setup.sh
cmake --preset run > /dev/null
cmake --build --preset run --target gla_text attention_text all_scan_perf

SEQPAR_BUILD=build/run scripts/run_text_example.sh "$@"

echo
echo "All-Scan on host memory, 2 ranks, every algorithm:"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun --oversubscribe -n 2 build/run/perf/all_scan_perf -z 2 -b 8 -e 16M -f 8 --algo all
