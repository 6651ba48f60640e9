#!/bin/sh
# Starts a command as RANKS processes on this host, which appear as NODES hosts to the library and to NCCL.
# usage: ranks.sh RANKS NODES COMMAND...
set -eu
# Binds the ranks' port without listening while this script runs, so that no other program takes it before rank 0 does.
if [ "$1" != --port-held ]; then
  exec python3 -c '
import os, socket, sys
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("127.0.0.1", 0))
held.set_inheritable(True)
os.environ["MASTER_PORT"] = str(held.getsockname()[1])
os.execv(sys.argv[1], [sys.argv[1], "--port-held", *sys.argv[2:]])' "$0" "$@"
fi
ranks=$2 nodes=$3
shift 3
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
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
