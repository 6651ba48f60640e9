#!/bin/sh
# Runs a perf binary and checks its exit status and its JSON.
# usage: check_run.sh STATUS JSON COMMAND...   (JSON: "json", or "-": none is written)
set -u
here=$(cd "$(dirname "$0")" && pwd)
status=$1 json=$2
shift 2
folder=$(mktemp -d) || exit
trap 'rm -rf "$folder"' EXIT
if [ "$json" = - ]; then "$@"; else "$@" -J "$folder/run.json"; fi
got=$?
if [ "$got" -ne "$status" ]; then
  echo "exit status $got, expected $status"
  exit 1
fi
[ "$json" = - ] || python3 "$here/check_json.py" "$folder/run.json"
