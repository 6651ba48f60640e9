"""seqpar.torch as a whole on GPUs, in one call: python3 python/tests/gpu_torch.py [--part NAME...] [--fsdp-steps 10000]

Runs with one rank and, where there are two GPUs, with two, each part in processes of its own:

    checks     the checks of torch_ranks.py that no host is needed for
    parity     attention and linear attention of GPU shapes against the definition
    drop_ins   functions of ring-flash-attention, torch's context_parallel, transformers
    boundary   what a call costs the CPU beside the C call
    ulysses    to_heads, a kernel and to_sequence beside the C operator, 32K tokens
    fsdp       thousands of steps in which FSDP2's gathers run on another stream beside seqpar's collectives: no deadlock
    training   examples/train_gla.py, --sp 1 and --sp 2: the same losses

The interpreter is the one that runs this, or SEQPAR_TORCH_VENV's. SEQPAR_LIBRARY names a library that was built with CUDA.
Skipped (77) without a GPU.
"""

import argparse
import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import venvs

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = {
    "checks": ("heads_and_sequence", "gather_and_scatter", "halos", "redistribution", "scans", "batches",
               "merging_partial_attention", "shifts_and_rings", "work_in_two_halves", "short_convolutions",
               "kernels_of_the_caller", "plans_are_forgotten_in_turn", "other_default_devices", "explanations"),
    "drop_ins": ("drop_ins", "context_parallel_as_torch_has_it", "models_of_transformers"),
}
PARITY = (
    "--algorithm ring zigzag striped burst allgather_kv ulysses auto --length 517 --heads 8 --kv-heads 2 --head-dim 64 "
    "--dtype bfloat16",
    "--algorithm ring allgather_kv ulysses --length 512 --full --head-dim 128 --dtype float16",
    "--algorithm ring zigzag --documents 1 2 137 372 --head-dim 64 --dtype bfloat16",
    "--algorithm ring allgather_kv ulysses --length 512 --head-dim 64 --dtype bfloat16 --window 100 --sinks",
    "--family gla --algorithm zeco lasp1 lasp2 --length 600 --heads 4 --head-dim 64 --dtype bfloat16",
    "--family gla --algorithm zeco --length 512 --heads 4 --head-dim 128 --dtype bfloat16 --initial",
    "--family gla --algorithm zeco --documents 1 2 137 372 --heads 4 --head-dim 64 --dtype bfloat16",
    "--family scalar --algorithm zeco --length 512 --heads 4 --head-dim 64 --dtype bfloat16",
    "--family fixed --algorithm zeco --length 512 --heads 4 --head-dim 64 --dtype bfloat16")


def parts(o, ranks, folder):
    """(part, name, arguments of the ranks' program, environment)."""
    on_gpu = {"SEQPAR_TEST_DEVICE": "cuda"}
    for part, names in CHECKS.items():
        for name in names:  # each by itself, so that one that fails hides no other
            yield part, name, [HERE / "torch_ranks.py", name], on_gpu
    for line in PARITY:
        yield "parity", line, ["-m", "seqpar.testing.parity", "--device", "cuda", *line.split()], {}
    yield "boundary", "us a call", [HERE / "gpu_torch_rank.py", "boundary"], {}
    if ranks > 1:
        yield "ulysses", "ms a call", [HERE / "gpu_torch_rank.py", "ulysses"], {}
        yield "fsdp", f"{o.fsdp_steps} steps", [HERE / "gpu_torch_rank.py", "fsdp", o.fsdp_steps], {}
    for sp in {1, ranks}:
        yield ("training", f"--sp {sp}", [
            venvs.ROOT / "examples" / "train_gla.py", "--sp", sp, "--batch", 2 * sp // ranks, "--device", "cuda", "--dtype",
            "bfloat16", "--steps", 10, "--width", 256, "--heads", 4, "--tokens", 4096, "--log", folder / f"{ranks}.{sp}.csv"], {})


def same_losses(folder):
    """Of all ways to train the same sequences: rounding apart, in bfloat16."""
    curves = {}
    for path in sorted(folder.glob("*.csv")):
        with open(path) as file:
            curves[path.stem] = [float(row["loss"]) for row in csv.DictReader(file)]
    print("first and last losses (ranks.sp):", {name: (c[0], c[-1]) for name, c in curves.items()})
    first = [c[0] for c in curves.values()]
    return not first or max(first) - min(first) <= 2.0 ** -8 * first[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--part", nargs="+", choices=("checks", "parity", "drop_ins", "boundary", "ulysses", "fsdp",
                                                    "training"))
    p.add_argument("--ranks", type=int, nargs="+", help="default: 1, and 2 where there are two GPUs")
    p.add_argument("--fsdp-steps", type=int, default=10000)
    p.add_argument("--timeout", type=float, default=120, help="seconds of a part, but for fsdp")
    o = p.parse_args()
    if not list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        print("skipped: there is no GPU")
        sys.exit(77)
    if not os.environ.get("SEQPAR_TORCH_VENV"):  # the image's own PyTorch
        venvs.interpreter = lambda name="torch": sys.executable
    count = subprocess.run([venvs.interpreter(), "-c", "import torch; print(torch.cuda.device_count())"],
                           stdout=subprocess.PIPE, text=True, check=True)
    gpus = int(count.stdout)
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for ranks in o.ranks or ([1, 2] if gpus > 1 else [1]):
            for part, name, arguments, variables in parts(o, ranks, folder):
                if o.part and part not in o.part:
                    continue
                started = time.monotonic()
                try:
                    limit = o.timeout + (o.fsdp_steps / 10 if part == "fsdp" else 0)
                    statuses, output = venvs.run_ranks(ranks, [*map(str, arguments)], timeout=limit, **variables)
                except subprocess.TimeoutExpired:
                    statuses, output = ["timeout"], ""
                good = statuses == [0] * ranks
                print(f"==== {ranks} ranks, {part}: {name}: {'ok' if good else statuses} ({time.monotonic() - started:.0f} s)",
                      flush=True)
                if not good or part in ("boundary", "ulysses", "fsdp", "parity"):
                    print(output[-3000:], flush=True)
                if not good:
                    failed.append(f"{ranks} ranks, {part}: {name}")
        if not same_losses(folder):
            failed.append("training: losses differ")
    print(f"{len(failed)} failed", *failed, sep="\n  ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
