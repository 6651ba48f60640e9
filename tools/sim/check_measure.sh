#!/bin/sh
# check_measure.sh SEQPAR_SIM FILE: writes a machine file of this host and simulates ranks on it.
set -eu
sim=$1 file=$2
measure=$(dirname "$sim")/../perf/seqpar_measure
"$measure" --quick -o "$file" > /dev/null
"$sim" --machine "$file" --ranks 4 --gpus-per-node 2 --scan diag,64K
"$sim" --machine "$file" --ranks 4 --gpus-per-node 4 --scan matrix,128K
"$sim" --machine "$file" --ranks 2 --ring 64K
"$sim" --machine "$file" --ranks 2 --exchange reducescatter,64K
"$sim" --machine "$file" --ranks 2 --tokens 256 --model softmax:8x128 --type fp32
"$sim" --machine "$file" --ranks 2 --tokens 256 --model kda:8x128
grep -q '"source": "measured' "$file"
