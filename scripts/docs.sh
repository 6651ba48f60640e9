#!/usr/bin/env bash
# docs.sh [OUTPUT]: builds the documentation site into OUTPUT (default: build/site). Warnings are errors.
# Uses the Python in SEQPAR_DOCS_VENV, or creates build/docs-venv with sphinx, myst-parser and furo.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(cd python/tests && python3 -c 'import venvs; print(venvs.interpreter("docs"))') || {
  echo "$python"
  exit 77
}
output=${1:-build/site}
"$python" -m sphinx -q -W --keep-going -d "$output/.doctrees" docs "$output"
rm -rf "$output/.doctrees"
echo "$output/index.html"
