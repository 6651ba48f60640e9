#!/usr/bin/env bash
# The main job on real input, then the benchmark: sets up the machine, builds, runs a text file through gated linear
# attention on several ranks, and measures All-Scan. Arguments go to scripts/run_text_example.sh (--help tells them).
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  -h | --help) exec scripts/run_text_example.sh --help ;;
esac

scripts/setup.sh
cmake --preset host > /dev/null
cmake --build --preset host

scripts/run_text_example.sh "$@"

echo
echo "All-Scan on host memory, 2 ranks, every algorithm:"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun --oversubscribe -n 2 build/host/perf/all_scan_perf -z 2 -b 8 -e 16M -f 8 --algo all
