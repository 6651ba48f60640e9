#!/bin/sh
# Starts N processes of a command with the variables that torchrun sets; fails if one of them does.
# usage: run_environment.sh N COMMAND...
set -u
export WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1
shift
MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MASTER_PORT
pids=
rank=0
while [ $rank -lt "$WORLD_SIZE" ]; do
  RANK=$rank "$@" &
  pids="$pids $!"
  rank=$((rank + 1))
done
status=0
for pid in $pids; do
  wait "$pid" || status=1
done
exit $status
