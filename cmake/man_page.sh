#!/usr/bin/env bash
# man_page.sh HELP2MAN PROGRAM NAME VERSION SUMMARY PAGE
# Generates the man page of a program, installed as NAME, from its --help output.
set -euo pipefail
help2man=$1 program=$2 name=$3 version=$4 summary=$5 page=$6
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$page")"
ln -s "$program" "$work/$name"
# The program's help contains the target's name, not the installed name.
cat > "$work/include" << END
[author]
Made from what the program prints with \-\-help. More is in the documents of the sources: README.md, docs/ and perf/README.md.
END
LC_ALL=C "$help2man" --no-info --no-discard-stderr --section=1 --source="seqpar $version" --manual="seqpar" --version-string="$version" \
  --name="$summary" --include="$work/include" --output="$work/page" "$work/$name"
sed -E "s/(^|[^_[:alnum:]])$(basename "$program")([^_[:alnum:]]|\$)/\1$name\2/g" "$work/page" | gzip -9n > "$page"
