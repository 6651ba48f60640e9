#!/bin/sh
# A second run with the same -J writes FILE.0, a third FILE.1, as nccl-tests does; the first stays as it is.
# usage: check_again.sh FILE COMMAND...
set -eu
file=$1
shift
rm -f "$file" "$file.0" "$file.1"
"$@" -J "$file" > /dev/null
before=$(cksum < "$file")
"$@" -J "$file" > /dev/null
said=$("$@" -J "$file")
echo "$said" | grep -x "# Writing JSON output to $file.1"
[ -s "$file.0" ] && [ -s "$file.1" ] && [ "$(cksum < "$file")" = "$before" ]
