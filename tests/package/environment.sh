#!/usr/bin/env bash
# environment.sh SOURCE_DIR
# Every SEQPAR_* variable that the sources read is in the table of docs/LAUNCH.md, and the reverse; the table lists as
# many values of SEQPAR_ALGO as the table of scan algorithms has rows, with the same names.
set -euo pipefail
cd "$1"
read_by_code=$({
  grep -rhoE "[\"']SEQPAR_[A-Z_]+[\"']" src --include='*.cpp' --include='*.h'
  grep -rhoE "environ[^\"']*[\"']SEQPAR_[A-Z_]+[\"']" python/seqpar --include='*.py'
} | grep -oE 'SEQPAR_[A-Z_]+' | sort -u)
documented=$(grep -oE '^\| `SEQPAR_[A-Z_]+`' docs/LAUNCH.md | grep -oE 'SEQPAR_[A-Z_]+' | sort -u)
[ -n "$read_by_code" ] && [ -n "$documented" ] || { echo "found no variables in src/, or none in docs/LAUNCH.md"; exit 1; }
bad=0
for name in $(comm -23 <(echo "$read_by_code") <(echo "$documented")); do
  echo "$name is read, but not in docs/LAUNCH.md's table: $(grep -rlE "[\"']${name}[\"']" src python/seqpar | tr '\n' ' ')"
  bad=1
done
for name in $(comm -13 <(echo "$read_by_code") <(echo "$documented")); do
  echo "$name is in docs/LAUNCH.md's table, but nothing reads it"
  bad=1
done
names=$(grep -oE '^     "[a-z0-9_]+",$' src/scan/registry.cpp | grep -oE '[a-z0-9_]+' | tr '\n' ' ')
values=$(grep -E '^\| `SEQPAR_ALGO`' docs/LAUNCH.md | cut -d'|' -f3 | grep -oE '[a-z0-9_]+' | tr '\n' ' ')
if [ "auto $names" != "$values" ]; then
  echo "docs/LAUNCH.md has for SEQPAR_ALGO: $values; src/scan/registry.cpp has the rows: auto $names"
  bad=1
fi
exit $bad
