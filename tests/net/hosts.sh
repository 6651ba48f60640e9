# shellcheck shell=bash
# Two hosts, "left" and "right", on one machine: sourced by net.sh. A host is a set of namespaces (network, host name,
# IPC, processes, mounts) that a sleeping process keeps alive. All of them are new namespaces of the test, invisible
# outside, so names cannot clash, and the end of the test's first process ends all others.

readonly kAddressWait=600  # seconds for anything that should take a moment
readonly kSkipped=77

skip() {
  echo "skipped: $*"
  exit $kSkipped
}

die() {
  echo "FAILED: $*"
  exit 1
}

# isolate SCRIPT ARGUMENT...: runs SCRIPT in new namespaces, with a temporary folder $NET_FOLDER; returns its exit
# status.
isolate() {
  local tool user=() inner=0
  for tool in ip ss unshare nsenter setpriv; do
    command -v $tool >/dev/null || skip "the program $tool is not installed"
  done
  [ "$(id -u)" -eq 0 ] || user=(--user --map-root-user)
  local enter=(unshare "${user[@]}" --net --mount --pid --fork --kill-child --mount-proc)
  local why
  why=$("${enter[@]}" true 2>&1) || skip "namespaces are not permitted: $why"
  NET_FOLDER=$(mktemp -d --tmpdir seqpar-net.XXXXXXXX)
  export NET_FOLDER
  # However this shell ends, the kernel ends the rest: --pdeathsig and --kill-child do not need the shell's help.
  setpriv --pdeathsig KILL "${enter[@]}" "$@" &
  local first=$!
  trap 'kill -KILL $first 2>/dev/null && wait $first || true; rm -rf "$NET_FOLDER"' EXIT
  trap 'exit 1' HUP INT TERM
  wait $first || inner=$?
  exit $inner
}

# await SECONDS WHAT COMMAND...: until COMMAND succeeds.
await() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" 2>/dev/null; do
    [ $SECONDS -lt $end ] || die "waited in vain for $what"
    sleep 0.02
  done
}

declare -A keeper  # of each host: the process that entered its namespaces

# makeHost HOST NAME
makeHost() {
  # UCX finds network interfaces in /sys, which shows those of the namespace that has mounted it.
  # shellcheck disable=SC2016
  unshare --net --uts --ipc --pid --mount --fork --kill-child --mount-proc bash -c '
    hostname "$1" && mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && touch "$2" &&
      exec sleep infinity' \
    - "$2" "$NET_FOLDER/host.$1" 2>"$NET_FOLDER/why.$1" &
  keeper[$1]=$!
  await "$kAddressWait" "host $1" eval "[ -e '$NET_FOLDER/host.$1' ] || ! kill -0 ${keeper[$1]}"
  [ -e "$NET_FOLDER/host.$1" ] || skip "no namespaces for a host: $(cat "$NET_FOLDER/why.$1")"
}

# makeHosts [NAME_OF_RIGHT]
makeHosts() {
  makeHost left left-host
  makeHost right "${1:-right-host}"
}

# onHost HOST COMMAND...
onHost() {
  local own=/proc/${keeper[$1]}/ns
  shift
  nsenter --net="$own/net" --uts="$own/uts" --ipc="$own/ipc" --mount="$own/mnt" --pid="$own/pid_for_children" "$@"
}

# address DEVICE PREFIX: PREFIX.1 on the left, PREFIX.2 on the right.
address() {
  local host number=0
  for host in left right; do
    number=$((number + 1))
    onHost $host ip address add "$2.$number/24" dev "$1"
    onHost $host ip link set "$1" up
  done
  # A moment passes before the system calls a new device running, and UCX takes no other.
  for host in left right; do await "$kAddressWait" "$1 on $host" running "$host" "$1"; done
}

running() { onHost "$1" ip -o link show dev "$2" | grep -Eq 'LOWER_UP.* state (UP|UNKNOWN)'; }

# joinByVeth DEVICE PREFIX
joinByVeth() {
  local why
  why=$(ip link add "$1" netns "${keeper[left]}" type veth peer name "$1" netns "${keeper[right]}" 2>&1) ||
    skip "no veth: $why"
  address "$1" "$2"
}

# joinByRelay PROGRAM DEVICE PREFIX DELAY_US LOSS_PERMILLE: relay COMMAND commands it afterwards.
joinByRelay() {
  ( : <>/dev/net/tun ) 2>/dev/null || skip "/dev/net/tun cannot be opened"
  coproc relayProcess { exec "$1" "${keeper[left]}" "${keeper[right]}" "$2" "$4" "$5" 2>&1; }
  relayAnswer
  [ "$answer" = ready ] || die "$answer"
  address "$2" "$3"
}

relayAnswer() {
  answer=
  read -r -t "$kAddressWait" answer <&"${relayProcess[0]}" || die "no answer from the relay"
}

# relay cut|heal
relay() {
  echo "$1" >&"${relayProcess[1]}"
  relayAnswer
  echo "relay: $answer"
}
