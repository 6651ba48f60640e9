#!/usr/bin/env bash
# campaign.sh CAMPAIGN_PROGRAM RELAY_PROGRAM [OPTION...]: the campaign of random faults with ranks on two hosts. Exit
# status 77 if the system does not permit them.
set -euo pipefail
# shellcheck source=hosts.sh
source "$(dirname "$0")/hosts.sh"
[ -n "${NET_FOLDER:-}" ] || isolate "$0" "$@"

readonly campaign=$1 relayProgram=$2
shift 2
makeHosts
joinByRelay "$relayProgram" cable 10.77.0 200 0
# Opened again, since Bash closes a coprocess's descriptors, and copies of them, when it starts a program.
readonly files=/proc/$$/fd
status=0
"$campaign" --hosts "${keeper[left]},${keeper[right]},3,4" "$@" 3>"$files/${relayProcess[1]}" \
  4<"$files/${relayProcess[0]}" || status=$?
exit $status
