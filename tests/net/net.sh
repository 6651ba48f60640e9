#!/usr/bin/env bash
# net.sh SCENARIO RANK_PROGRAM RELAY_PROGRAM
# Five ranks on two hosts. Exit status 77 if the system does not permit the scenario's requirements.
set -euo pipefail
# shellcheck source=hosts.sh
source "$(dirname "$0")/hosts.sh"
[ -n "${NET_FOLDER:-}" ] || isolate "$0" "$@"

readonly scenario=$1 rankProgram=$2 relayProgram=$3
# Durations are printed but not checked, since the machine may be busy: a timeout that must not occur is longer than the
# test runner's limit, and a timeout that must end a wait follows the measured startup time.
readonly kNoTimeout=3600  # seconds

# ---- ranks ----------------------------------------------------------------------------------------------------------

ranks=5
placement=(left left right right right)  # of each rank
meeting=environment
extra=()  # environment of all ranks
declare -A processes

# launch RANK ARGUMENT...: starts one rank in the background; its output is written to a file.
launch() {
  local rank=$1
  shift
  onHost "${placement[$rank]}" env RANK="$rank" WORLD_SIZE=$ranks MASTER_ADDR=10.77.0.1 MASTER_PORT=29400 \
    "${extra[@]}" "$rankProgram" "$meeting" "$@" >"$NET_FOLDER/output.$rank" 2>&1 &
  processes[$rank]=$!
}

# launchAll ARGUMENT...
launchAll() {
  local rank
  rm -f "$NET_FOLDER"/started.*
  for ((rank = 0; rank < ranks; rank++)); do launch $rank "$@"; done
}

# finish RANK: waits for it, shows what it said, and sets `status`.
finish() {
  status=0
  wait "${processes[$1]}" || status=$?
  sed "s/^/[$1] /" "$NET_FOLDER/output.$1"
}

# finishAll: all ranks end with status 0.
finishAll() {
  local rank failed=
  for ((rank = 0; rank < ranks; rank++)); do
    finish $rank
    [ $status -eq 0 ] || failed+=" $rank (status $status)"
  done
  [ -z "$failed" ] || die "ranks$failed"
}

allStarted() { [ "$(cat "$NET_FOLDER"/started.* 2>/dev/null | wc -l)" -eq $ranks ]; }

# started: waits until all ranks are at work; false, with what it said, if one ends before.
started() {
  local rank
  until allStarted; do
    for ((rank = 0; rank < ranks; rank++)); do
      kill -0 "${processes[$rank]}" 2>/dev/null || [ -e "$NET_FOLDER/started.$rank" ] || {
        finish $rank
        echo "rank $rank did not start"
        return 1
      }
    done
    sleep 0.05
  done
}

awaitStart() { started || die "not all ranks started"; }

# calibrate LEAST FACTOR: sets `seconds`, a timeout of FACTOR times the present duration of a whole job, and of at least
# LEAST.
calibrate() {
  local since=${EPOCHREALTIME/./}
  extra=(SEQPAR_TIMEOUT=$kNoTimeout)
  touch "$NET_FOLDER/stop"
  launchAll until-told "$NET_FOLDER" 0
  finishAll
  rm "$NET_FOLDER/stop"
  local took=$((${EPOCHREALTIME/./} - since))
  seconds=$(($2 * took / 1000000))
  seconds=$((seconds > $1 ? seconds : $1))
  echo "a start takes $((took / 1000)) ms; timeout $seconds s"
}

clock() { "$rankProgram" clock; }

# failedAfter RANK SINCE: it reported a failure; shows how long after SINCE.
failedAfter() {
  awk -v since="$2" '/^failed at / { took = $3 - since; found = 1 }
    END { printf "    after %.3f s\n", took; exit !found }' "$NET_FOLDER/output.$1" || die "rank $1 reported no failure"
}

# survivors SINCE RANK...: checks that they end with status 0 and report a failure.
survivors() {
  local since=$1 rank failed=
  shift
  for rank; do
    finish "$rank"
    [ $status -eq 0 ] || failed+=" $rank (status $status)"
    failedAfter "$rank" "$since"
  done
  [ -z "$failed" ] || die "ranks$failed"
}

# refused PATTERN RANK...: they end with status 1, and said PATTERN.
refused() {
  local pattern=$1 rank
  shift
  for rank; do
    finish "$rank"
    [ $status -eq 1 ] || die "rank $rank: status $status, expected 1"
    grep -q "$pattern" "$NET_FOLDER/output.$rank" || die "rank $rank did not say: $pattern"
  done
}

# suite CASES NODES HIER: the suite on all ranks; each must see the nodes and peers of the placement.
suite() {
  local rank seed other near node
  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  echo "seed $seed"
  for ((rank = 0; rank < ranks; rank++)); do
    near=-1
    for other in "${placement[@]}"; do [ "$other" != "${placement[$rank]}" ] || near=$((near + 1)); done
    node=0
    [ "$2" -eq 1 ] || [ "${placement[$rank]}" = left ] || node=1
    launch $rank suite "$seed" "$1" "$2" $node $near $((ranks - 1 - near)) "$3"
  done
  finishAll
}

# ---- scenarios ------------------------------------------------------------------------------------------------------

scenario-environment() {
  makeHosts
  joinByVeth cable 10.77.0
  suite 100 2 hier
}

scenario-id-file() {
  makeHosts
  joinByVeth cable 10.77.0
  meeting=$NET_FOLDER/id
  placement=(left right left right right)
  suite 100 2 no-hier
}

# Equal host names promise shared memory that is not there.
scenario-same-name() {
  makeHosts left-host
  joinByVeth cable 10.77.0
  suite 40 1 hier
}

scenario-slow-cable() {
  makeHosts
  joinByRelay "$relayProgram" cable 10.77.0 2000 10
  suite 24 2 hier
}

scenario-cut() {
  makeHosts
  joinByRelay "$relayProgram" cable 10.77.0 200 0
  local seconds since tries
  calibrate 3 4
  # On a machine that has become busier a start may last longer than that.
  for tries in 1 2 3 4; do
    extra=(SEQPAR_TIMEOUT="$seconds")
    launchAll until-failure "$NET_FOLDER"
    ! started || break
    [ $tries -lt 4 ] || die "not all ranks started within $seconds s"
    wait "${processes[@]}" || true  # they end by the failure of the one
    seconds=$((4 * seconds))
  done
  since=$(clock)
  relay cut
  survivors "$since" 0 1 2 3 4
}

# healed TIMEOUT CUT TASK...: a cut of CUT seconds must be survived, with this timeout or a longer one on a busy
# machine.
healed() {
  local least=$1 cut=$2 seconds
  shift 2
  makeHosts
  joinByRelay "$relayProgram" cable 10.77.0 200 0
  calibrate "$least" 10
  extra=(SEQPAR_TIMEOUT="$seconds")
  launchAll "$@"
  awaitStart
  relay cut
  sleep "$cut"
  relay heal
  sleep 1
  touch "$NET_FOLDER/stop"
  finishAll
}

# A scan that ends just at the cut shortens the pause a little.
scenario-heal() { healed 10 1 until-told "$NET_FOLDER" 0.8; }

# Long enough that keepalive probes and retransmissions would give up if their limits were shorter than the timeout.
scenario-heal-late() { healed 30 6 until-told "$NET_FOLDER" 5; }
scenario-heal-idle() { healed 30 6 rest "$NET_FOLDER"; }

# The cable is cut before the ranks meet.
scenario-unreachable() {
  makeHosts
  joinByRelay "$relayProgram" cable 10.77.0 200 0
  relay cut
  extra=(SEQPAR_TIMEOUT=3)
  local since
  since=$(clock)
  launchAll until-failure "$NET_FOLDER"
  refused 'seqparCommInitEnv: another rank failed' 0 1 2 3 4
  local rank
  for rank in 0 1 2 3 4; do failedAfter $rank "$since"; done
}

# One rank has no way for data to the other host; those that miss nothing themselves must not wait for the others.
scenario-no-path() {
  makeHosts
  joinByVeth cable 10.77.0
  extra=(SEQPAR_TIMEOUT=$kNoTimeout)
  local since rank
  since=$(clock)
  for rank in 0 1 2 3; do launch $rank until-failure "$NET_FOLDER"; done
  extra+=(UCX_NET_DEVICES=lo)
  launch 4 until-failure "$NET_FOLDER"
  refused 'ucp_ep_create(to rank [0-4]): Destination is unreachable' 0 1 2 3 4
  for rank in 0 1 2 3 4; do failedAfter $rank "$since"; done
}

scenario-kill() {
  makeHosts
  joinByVeth cable 10.77.0
  extra=(SEQPAR_TIMEOUT=$kNoTimeout)
  launchAll until-failure "$NET_FOLDER"
  awaitStart
  sleep 0.2
  local since
  since=$(clock)
  # shellcheck disable=SC2016
  onHost right bash -c 'kill -KILL "$1"' - "$(cat "$NET_FOLDER/started.3")"
  survivors "$since" 0 1 2 4
}

# connections HOST ADDRESS: from HOST to ADDRESS.
connections() { onHost "$1" ss -Htn state established dst "$2" | wc -l; }

scenario-interface() {
  makeHosts
  joinByVeth cable 10.77.0
  joinByVeth control 10.78.0
  local name used
  # Data uses the cable, so traffic on the other interface is control connections.
  for name in cable control; do
    extra=(SEQPAR_SOCKET_IFNAME="$name" UCX_NET_DEVICES=cable)
    meeting=$NET_FOLDER/id.$name
    rm -f "$NET_FOLDER/stop"
    launchAll until-told "$NET_FOLDER" 0
    awaitStart
    used="$(connections left 10.78.0.2) $(connections right 10.78.0.1)"
    touch "$NET_FOLDER/stop"
    finishAll
    echo "SEQPAR_SOCKET_IFNAME=$name: connections by the interface control: $used"
    case $name in
      cable) [ "$used" = "0 0" ] || die "the interface that was not chosen is used" ;;
      # Rank 0 is on the left, and three ranks are on the right.
      control) [ "$used" = "3 3" ] || die "expected 3 on each host" ;;
    esac
  done

  extra=(SEQPAR_SOCKET_IFNAME=nosuch0 SEQPAR_TIMEOUT=$kNoTimeout)
  meeting=environment
  local since rank
  since=$(clock)
  launchAll until-failure "$NET_FOLDER"
  refused 'nosuch0: no usable address; interfaces with one: .*cable' 0 1 2 3 4
  for rank in 0 1 2 3 4; do failedAfter $rank "$since"; done

  extra=(SEQPAR_SOCKET_IFNAME=lo SEQPAR_TIMEOUT=3)
  meeting=$NET_FOLDER/id.lo
  since=$(clock)
  launchAll until-failure "$NET_FOLDER"
  refused 'seqparCommInitRank: another rank failed' 0 1
  refused 'cannot connect to 127.0.0.1' 2 3 4
  for rank in 0 1 2 3 4; do failedAfter $rank "$since"; done

  # Inside one host it serves.
  ranks=2
  meeting=$NET_FOLDER/id.one
  rm -f "$NET_FOLDER/stop"
  launchAll until-told "$NET_FOLDER" 0
  awaitStart
  touch "$NET_FOLDER/stop"
  finishAll
}

[ "$(type -t "scenario-$scenario")" = function ] || die "unknown scenario $scenario"
"scenario-$scenario"
echo "all right"
