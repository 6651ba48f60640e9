#!/bin/sh
# Runs a perf binary and checks its exit status and its JSON.
# usage: check_run.sh STATUS JSON COMMAND...   (JSON "-": none is written)
set -u
status=$1 json=$2
shift 2
[ "$json" = - ] || rm -f "$json"
if [ "$json" = - ]; then "$@"; else "$@" -J "$json"; fi
got=$?
if [ "$got" -ne "$status" ]; then
  echo "exit status $got, expected $status"
  exit 1
fi
[ "$json" = - ] || python3 - "$json" <<'PYTHON'
import json, sys
data = json.load(open(sys.argv[1]))
assert data["results"], "no results"
assert data["out_of_bounds"] == 0 and data["checked"], "results were not all checked and right"
for result in data["results"]:
    assert result["size"] > 0 and result["out_of_place"]["time"] > 0, result
    if result["computed"]:
        continue
    assert result["out_of_place"]["nwrong"] == 0, result
PYTHON
