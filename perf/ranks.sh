#!/bin/sh
# Starts a command as RANKS processes of this host, which count as NODES hosts to the library and to NCCL.
# usage: ranks.sh RANKS NODES COMMAND...
set -eu
ranks=$1 nodes=$2
shift 2
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MASTER_PORT
pids='' rank=0 status=0
while [ $rank -lt "$ranks" ]; do
  if [ "$nodes" -gt 1 ]; then
    host=node$((rank * nodes / ranks))
    export SEQPAR_HOSTID=$host NCCL_HOSTID=$host
  fi
  RANK=$rank LOCAL_RANK=$rank "$@" &
  pids="$pids $!"
  rank=$((rank + 1))
done
for pid in $pids; do
  wait "$pid" || status=1
done
exit $status
