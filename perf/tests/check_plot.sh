#!/bin/sh
# Plots the JSON of an All-Scan with the first Python that has matplotlib, and searches the picture for a line.
# usage: check_plot.sh FILE.json PICTURE.svg    (77: there is no matplotlib)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rm -f "$2"
for python in python3 /usr/bin/python3; do
  "$python" -c 'import matplotlib' 2> /dev/null || continue
  "$python" "$here/../plot.py" "$1" -o "$2"
  grep -q '<!-- oneshot -->' "$2"
  exit
done
echo "skipped: there is no matplotlib"
exit 77
