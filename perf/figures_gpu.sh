#!/bin/sh
# Measures the GPU figures of docs/perf: text, JSON and plots into a new directory. Minutes, on 2 to 8 GPUs of one host.
# NAMES: an extended regular expression; only runs whose names match it are made.
# usage: perf/figures_gpu.sh BUILD_DIRECTORY NEW_DIRECTORY [GPUS [NAMES]]
set -eu
[ $# -ge 2 ] && [ $# -le 4 ] || { echo "usage: $0 BUILD_DIRECTORY NEW_DIRECTORY [GPUS [NAMES]]" >&2; exit 2; }
build=$1 out=$2 wanted=${4:-.}
here=$(cd "$(dirname "$0")" && pwd)
found=$(nvidia-smi --list-gpus | wc -l)
gpus=${3:-$found}
mkdir "$out"
programs=$build/perf
[ -d "$programs" ] || programs=$build
status=0
{ nvidia-smi --query-gpu=index,name,driver_version --format=csv; env | grep '^NCCL_' || :; } > "$out/machine.txt"

chosen() { printf '%s\n' "$1" | grep -qE "$wanted"; }

# run NAME COMMAND...: a failing or slow run must not stop the others
run() {
  name=$1
  shift
  chosen "$name" || return 0
  begin=$(date +%s)
  timeout -s KILL "${LIMIT:-60}" "$@" -T 20 -J "$out/$name.json" > "$out/$name.txt" 2>&1 ||
    { echo "$name: exit status $?: $(tail -1 "$out/$name.txt")"; status=1; }
  echo "$name: $(($(date +%s) - begin)) s"
}
scan=$programs/all_scan_perf
alone="-B -G --repeats 7 -l 0.1"

LIMIT=120 run scan$gpus "$scan" -g "$gpus" $alone --algo all --peers -b 1K -e 256M -f 4
run stream$gpus "$scan" -g "$gpus" -G --repeats 7 -l 0.1 --algo all --peers -b 64K -e 16M -f 4
run matrix$gpus "$scan" -g "$gpus" $alone --algo all --peers -o matrix -b 512K -e 8M -f 4
run types$gpus "$scan" -g "$gpus" $alone -o sum,scalar,diag -d all --direction all -b 2M -e 2M
ranks=2
while [ "$ranks" -lt "$gpus" ]; do
  run scan$ranks "$scan" -g $ranks $alone --algo all --peers -b 1K -e 256M -f 64
  ranks=$((ranks + 1))
done
run sendrecv "$programs/sendrecv_perf" -g "$gpus" --repeats 7 -l 0.1 --peers --pattern all -b 8 -e 256M -f 8
run sendrecv_alone "$programs/sendrecv_perf" -g "$gpus" $alone --peers --pattern all -b 8 -e 256M -f 8

run alltoall "$programs/alltoall_perf" -g "$gpus" $alone --peers --direction all -b 64K -e 64M -f 4
run gather "$programs/gather_perf" -g "$gpus" $alone --peers --operation all -b 64K -e 64M -f 4
run halo "$programs/halo_perf" -g "$gpus" $alone --peers --operation all -b 64K -e 64M -f 4
run ring "$programs/ring_perf" -g "$gpus" --repeats 5 -l 0.05 --peers -b 1M -e 64M -f 4
run mesh "$programs/mesh_perf" -g "$gpus" --repeats 5 -l 0.05 --peers -c 0 -b 1M -e 16M -f 4 --pass all
# A slow network: mesh and ring over NCCL's sockets, where bytes sent dominate ("by sent" is the ratio of these alone).
LIMIT=120 run mesh_sockets env NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 SEQPAR_TRANSPORT=network \
  "$programs/mesh_perf" -g "$gpus" --repeats 3 -l 0.1 --peers -c 0 -b 16M -e 16M --pass all

# Softmax attention: all lengths, packed documents, a window, errors; then PyTorch's context parallelism.
softmax="$programs/softmax_attn_perf -c 0 -w 2 --repeats 3"
attention="$softmax -n 5 -l 0.2 -g $gpus --pass forward,step"
# 32K and 128K tokens in all, as PyTorch's runs.
LIMIT=150 run softmax $attention -b $((256 / gpus))M -e $((1024 / gpus))M -f 4 --ideal \
  --algo auto,ring,zigzag,allgather_kv,ulysses
run softmax_128k $softmax -n 1 -g "$gpus" -b 512M -e 512M --pass step --algo auto
run softmax_packed $attention --ideal -b 256M -e 256M --mask causal --documents 8192 --algo auto,zigzag,ulysses
run softmax_packed_balanced $attention --ideal -b 256M -e 256M --mask causal --documents 8192 --algo ring --balance
run softmax_window $attention --ideal -b 128M -e 128M --mask causal --window 4096 --algo auto,ring
run softmax_errors $softmax -n 5 -l 0.1 -g "$gpus" -b 8M -e 8M --pass step --error 1 --algo auto,ring,zigzag,allgather_kv,ulysses
run softmax_error_of_one $softmax -n 5 -l 0.1 -t 1 -g 1 -b 16M -e 16M --pass step --error 1 --algo local
# A slow network: every rank is a separate host by name, and NCCL has only sockets. With two ranks per GPU, the mesh's
# advantage over the ring follows from the bytes sent.
slow="env NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 $here/ranks.sh"
apart="$softmax -n 1 -l 0.1 -B --device gpu --pass forward,backward,step"
run softmax_sockets $slow "$gpus" "$gpus" $apart -b 128M -e 128M --algo auto,ring,zigzag,ulysses,allgather_kv
run softmax_mesh_sockets $slow 4 4 $apart --gpus 2 -b 16M -e 16M --mask full --algo ring,mesh
peer() {
  name=$1
  shift
  chosen "$name" || return 0
  timeout -s KILL 120 "$@" > "$out/$name.txt" 2>&1 || { echo "$name: exit status $?"; status=1; }
}
if python3 -c 'import torch' 2> /dev/null; then
  python="python3 $here/peers/context_parallel.py"
  peer softmax_pytorch "$here/ranks.sh" "$gpus" 1 $python --tokens 8192,32768,131072
  peer softmax_pytorch_window "$here/ranks.sh" "$gpus" 1 $python --tokens 32768 --masks causal --window 4096
  peer softmax_pytorch_sockets $slow "$gpus" "$gpus" $python --tokens 32768 --repeats 2
fi

# One process per GPU; and two nodes in name, connected by sockets for NCCL and the library.
run processes$gpus "$here/ranks.sh" "$gpus" 1 "$scan" --device gpu $alone --peers -b 64K -e 16M -f 4
[ "$gpus" -lt 4 ] ||
  run nodes$gpus "$here/ranks.sh" "$gpus" 2 "$scan" --device gpu -B --repeats 3 -l 0.1 --algo all --peers -b 2M -e 16M -f 8
if python3 -c 'import matplotlib' 2> /dev/null; then
  for name in scan$gpus stream$gpus matrix$gpus sendrecv ring; do
    [ ! -s "$out/$name.json" ] || python3 "$here/plot.py" "$out/$name.json"
  done
else
  echo "no pictures: there is no matplotlib"
fi
python3 "$here/summary_gpu.py" "$out" | tee "$out/summary.md"
exit $status
