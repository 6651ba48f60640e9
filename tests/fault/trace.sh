#!/bin/sh
# Runs a job in which rank 1 differs, and looks for lines in what seqpar.trace makes of the flight records.
# usage: trace.sh PYTHON TRACE.PY DIFFER CASE LINE...
set -u
python=$1 trace=$2 differ=$3 case=$4
shift 4
folder=$(mktemp -d) || exit
trap 'rm -rf "$folder"' EXIT
SEQPAR_TRACE_FILE=$folder/%r.json "$differ" "$case" || exit 1
answer=$("$python" "$trace" "$folder"/*.json)
status=$?
echo "$answer"
[ $status = 1 ] || { echo "exit status $status, expected 1"; exit 1; }
for line in "$@"; do
  echo "$answer" | grep -qF "$line" || { echo "lacks: $line"; exit 1; }
done
