#!/usr/bin/env bash
# tools.sh CMAKE BUILD_DIR WORK_DIR PYTHON
# Installs libraries, programs and the Python package to a fresh prefix, moves that tree, and runs its contents.
set -euo pipefail
cmake=$1 build=$2 work=$3 python=$4
rm -rf "$work"
mkdir -p "$work"
for component in runtime tools python; do
  "$cmake" --install "$build" --prefix "$work/first" --component $component > "$work/install.log"
done
mv "$work/first" "$work/prefix"
prefix=$work/prefix

programs=(seqpar_info seqpar_measure mesh_schedule)
if [ -x "$build/tools/seqpar_sim" ]; then programs+=(seqpar_sim); fi  # not in builds with CUDA
for name in all_scan alltoall gather halo linear_attn merge mesh redistribute ring sendrecv softmax_attn; do
  programs+=("seqpar_${name}_perf")
done
[ "$(ls "$prefix/bin")" = "$(printf '%s\n' "${programs[@]}" | sort)" ] || { echo "installed are $(ls "$prefix/bin")"; exit 1; }
for program in "${programs[@]}"; do
  "$prefix/bin/$program" --help > "$work/help"
  grep -qi usage "$work/help" || { echo "$program --help says nothing of its usage"; exit 1; }
  if ldd "$prefix/bin/$program" | grep -E 'libseqpar|not found' | grep -vF "=> $prefix/"; then
    echo "$program: the libraries above are not those that are installed"
    exit 1
  fi
  page=$prefix/share/man/man1/$program.1.gz
  if command -v help2man > /dev/null && ! gzip -dc "$page" | grep -q "^$program "; then
    echo "$page: a man page that does not name $program"
    exit 1
  fi
done

"$prefix/bin/seqpar_info" -t 2
"$prefix/bin/mesh_schedule" a=2 b=2
if [ -x "$prefix/bin/seqpar_sim" ]; then (cd / && "$prefix/bin/seqpar_sim" --machine a100x8 --tokens 8K --algo auto); fi
"$prefix/bin/seqpar_all_scan_perf" -t 2 -b 4K -e 4K -n 1 -w 0
package=$(dirname "$(find "$prefix" -name seqpar -path '*/python/seqpar')")
module() {
  env -u SEQPAR_LIBRARY PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$package" "$python" -m seqpar "$@"
}
module info -t 2 --json | "$python" -m json.tool > /dev/null
module mesh_schedule a=2 b=2 > /dev/null
echo "${#programs[@]} programs run"
