#!/bin/sh
# Runs a job with a rank 1 that differs, and searches seqpar.trace's report of the flight records for lines.
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
