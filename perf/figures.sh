#!/bin/sh
# Measures the host figures of docs/perf: with mpirun, each table in one run.
# usage: perf/figures.sh BUILD_DIRECTORY DIRECTORY [PART...]
# Parts (default: all): p2p scan auto: the tables of summary.py; collectives2 collectives4 collectives8 (or collectives): hosts_page.py;
# attention: softmax_attention_hosts.md, with PyTorch if PYTHON (default: python3) has it. A part takes at most two minutes.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 BUILD_DIRECTORY DIRECTORY [PART...]" >&2; exit 2; }
build=$1 out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
date -u +'%-d %B %Y' > "$out/day.txt"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# on RANKS NAME PROGRAM OPTIONS...: each rank gets a processor if there are enough; else they share two, and then MPI must
# yield
on() {
  ranks=$1 name=$2 program=$3
  shift 3
  bind=none yield=1 last=1
  [ "$ranks" -gt "$(nproc)" ] || bind=core yield=0 last=$((ranks - 1))
  rm -f "$out/$name.json"
  taskset -c "0-$last" mpirun --oversubscribe --mca mpi_yield_when_idle $yield --bind-to $bind -n "$ranks" "$build/perf/$program" "$@" \
    -J "$out/$name.json" > "$out/$name.txt"
}

# both RANKS NAME PROGRAM OPTIONS...: blocking with MPI, then through a stream
both() {
  ranks=$1 both=$2 program=$3
  shift 3
  set -- --repeats 5 -l 0.01 -n 1000 -w 20 "$@"
  on "$ranks" "$both$ranks" "$program" -z 2 --peers "$@"
  on "$ranks" "$both${ranks}_stream" "$program" -z 3 "$@"
}

collectives() {
  both "$1" p2p sendrecv_perf --pattern all -b 8 -e 8M -f 16
  both "$1" scan all_scan_perf --algo auto -b 64 -e 64M -f 16
  both "$1" gather gather_perf --operation allgather -b 256 -e 16M -f 16
  both "$1" heads alltoall_perf --direction all -b 4K -e 64M -f 4
  both "$1" ring ring_perf --pattern shift -b 512 -e 32M -f 16
}

attention() {
  python=${PYTHON:-python3}
  for type in float:8M bfloat16:4M; do
    for pass in forward backward; do
      taskset -c 1 "$build/perf/softmax_attn_perf" -z 2 -t 1 -n 6 -w 1 --repeats 5 -l 0.3 -c 0 --algo local --heads 8 \
        --mask full,causal --pass $pass -d ${type%:*} -b ${type#*:} -e ${type#*:} | grep 'local  ' || exit 1
    done
  done > "$out/attention.txt"
  taskset -c 1 "$python" "$here/peers/sdpa_host.py" >> "$out/attention.txt" || echo "figures: $python has no PyTorch" >&2
  cat "$out/attention.txt"
}

[ $# -gt 0 ] || set -- p2p scan auto collectives attention
for part in "$@"; do
  case $part in
    p2p) on 2 p2p sendrecv_perf --peers -b 8 -e 64M -f 2 --pattern all --repeats 7 -z 2 -l 0.2 ;;
    scan) for ranks in 2 4 8; do on $ranks scan$ranks-2M all_scan_perf --algo all --peers -b 2M -e 2M -z 2 -B --repeats 7 -l 0.5; done ;;
    auto) for ranks in 2 4 8; do on $ranks auto$ranks all_scan_perf --algo all -b 1K -e 64M -f 4 -z 2 -B -l 0.2; done ;;
    collectives) for ranks in 2 4 8; do [ "$ranks" -eq 8 ] && [ "$(nproc)" -lt 8 ] || collectives $ranks; done ;;
    collectives[248]) collectives "${part#collectives}" ;;
    attention) attention ;;
    *) echo "figures: unknown part '$part', expected: p2p scan auto collectives collectives2 collectives4 collectives8 attention" >&2; exit 2 ;;
  esac
done
grep . /proc/loadavg
python3 "$here/summary.py" "$out"
