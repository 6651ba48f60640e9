#!/usr/bin/env bash
# Runs a text through attention on several ranks and compares the results with the definition in fp64: gated linear
# attention, or softmax attention by every algorithm.
set -euo pipefail

usage() {
  cat << 'END'
usage: scripts/run_text_example.sh [--softmax [--tokens N]] [FILE] [--ranks N] [--repeat N] [--threads]
                                    [--gpu]
  --softmax   softmax attention, algorithm after algorithm, of the first N bytes (default 1500)
  FILE        any file; its bytes are the tokens (default /usr/share/common-licenses/GPL-3)
  --ranks N   number of ranks (default 4)
  --repeat N  how often to run; the fastest run counts (default 5)
  --threads   ranks are threads of one process, also where there is mpirun
  --gpu       ranks compute on GPUs (gated linear attention, SEQPAR_BUILD with CUDA)
SEQPAR_BUILD names the build folder (default build/host); it is made where it is missing.
Exit status: 0 all outputs within the bound, 1 some not, 2 bad arguments or file, 3 a call failed.
END
}

here=$(pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
ranks=4 threads=0 example=gla_text
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --softmax) example=attention_text ;;
    --ranks | --repeat | --tokens)
      [ $# -gt 1 ] || { echo "$1 needs a number" >&2; exit 2; }
      [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || { echo "$1 is $2, expected a positive number" >&2; exit 2; }
      if [ "$1" = --ranks ]; then ranks=$2; else arguments+=("$1" "$2"); fi
      shift
      ;;
    --threads) threads=1 ;;
    --gpu) arguments+=(--gpu) ;;
    -*)
      usage >&2
      exit 2
      ;;
    /*) arguments+=("$1") ;;
    *) arguments+=("$here/$1") ;;
  esac
  shift
done

build=${SEQPAR_BUILD:-$root/build/host}
program=$build/examples/$example
if [ ! -x "$program" ]; then
  cmake -S "$root" -B "$build" -G Ninja > /dev/null
  cmake --build "$build" --target "$example"
fi

# A rank is a process under mpirun only if the program was built with MPI.
if [ $threads = 0 ] && command -v mpirun > /dev/null && grep -q '^SEQPAR_MPI:BOOL=ON' "$build/CMakeCache.txt"; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  exec mpirun --quiet --oversubscribe --bind-to none -n "$ranks" "$program" "${arguments[@]}"
fi
exec "$program" --ranks "$ranks" "${arguments[@]}"
