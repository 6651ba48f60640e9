"""Tests of seqpar.torch: torch_ranks.py as one, two and three processes, torch_fsdp.py as four, and seqpar.testing.parity and
matrix as commands."""

import pathlib
import re
import subprocess
import sys

import venvs

HERE = pathlib.Path(__file__).resolve().parent


def main():
    runs = [(ranks, [HERE / "torch_ranks.py", *sys.argv[1:]], 0) for ranks in (1, 2, 3)]
    runs.append((4, [HERE / "torch_fsdp.py"], 0))
    command = ["-m", "seqpar.testing.parity", "--head-dim", "8", "--length", "29"]
    runs += [(2, [*command, "--algorithm", "ring", "--window", "7", "--compile"], 0),
             (2, [*command, "--algorithm", "striped", "--window", "7", "--layout", "contiguous"], 1),
             (3, [*command, "--documents", "1", "2", "137", "60", "--algorithm", "ring", "ulysses"], 0),
             (4, ["-m", "seqpar.testing.matrix", venvs.ROOT / "docs" / "pytorch.md"], 0)]
    failures, ran, skipped = 0, set(), {}
    for ranks, arguments, expected in runs:
        statuses, output = venvs.run_ranks(ranks, arguments)
        print(f"==== {ranks} ranks: {' '.join(map(str, arguments))}: {statuses}\n{output}", flush=True)
        failures += any(status != expected for status in statuses)
        for name, reason in re.findall(r"^(\w+) \.\.\. (?:ok|skipped: (.*)) \(rank", output, flags=re.M):
            if reason:
                skipped[name] = reason
            else:
                ran.add(name)
    single = subprocess.run([venvs.interpreter(), *command], env=venvs.environment(), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    print(f"==== without a launcher: {single.returncode}\n{single.stdout}", flush=True)
    failures += single.returncode != 0 or "1 ranks, 29 tokens" not in single.stdout
    never = {name: reason for name, reason in skipped.items() if name not in ran}
    print(f"==== {len(ran)} checks, {len(never)} skipped for all numbers of ranks: {never or 'none'}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
