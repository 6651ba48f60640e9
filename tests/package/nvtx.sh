#!/bin/sh
# A profiler's view of a program's calls: a range each, and inside it one of the algorithm with the bytes, all closed.
# usage: nvtx.sh LISTENER PROGRAM
set -eu
seen=$(NVTX_INJECTION64_PATH=$1 "$2")
wanted="0 push seqparGetUniqueId
0 pop
0 push seqparCommInitRank
0 pop
0 push seqparAllScan
1 push doubling 512
1 pop
0 pop
0 push seqparAllScan
0 pop
0 push seqparCommCount
0 pop
0 push seqparCommDestroy
0 pop"
[ "$seen" = "$wanted" ] || { echo "seen:"; echo "$seen"; exit 1; }
