#!/bin/sh
# Measures the host figures of docs/perf: on two processors, with mpirun, each table in one run.
# usage: perf/figures.sh BUILD_DIRECTORY NEW_DIRECTORY
set -eu
[ $# -eq 2 ] || { echo "usage: $0 BUILD_DIRECTORY NEW_DIRECTORY" >&2; exit 2; }
build=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir "$out"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# on RANKS NAME PROGRAM OPTIONS...: two ranks get a processor each; more ranks share both, and then MPI must yield
on() {
  ranks=$1 name=$2 program=$3
  shift 3
  bind=none yield=1
  [ "$ranks" -gt 2 ] || bind=core yield=0
  taskset -c 0,1 mpirun --oversubscribe --mca mpi_yield_when_idle $yield --bind-to $bind -n "$ranks" "$build/perf/$program" "$@" \
    -J "$out/$name.json" > "$out/$name.txt"
}

on 2 p2p sendrecv_perf --peers -b 8 -e 64M -f 2 --pattern all --repeats 7 -z 2 -l 0.2
for ranks in 2 4 8; do
  on $ranks scan$ranks all_scan_perf --algo all --peers -b 2M -e 2M -z 2 -B --repeats 7 -l 0.5
  on $ranks auto$ranks all_scan_perf --algo all -b 1K -e 64M -f 4 -z 2 -B -l 0.2
done
grep . /proc/loadavg
python3 "$here/summary.py" "$out"
