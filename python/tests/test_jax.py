"""Tests of seqpar.jax: jax_checks.py with two CPU devices, and checks that depend on their number with three and one;
and examples/shard_map.py with losses that are independent of it; the code blocks of docs/jax.md;
examples/quickstart_jax.py.

    test_jax.py --gpu       the checks on one GPU and on two, with the interpreter that runs this, or SEQPAR_JAX_VENV's
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import venvs

CHECKS = pathlib.Path(__file__).resolve().parent / "jax_checks.py"
XLA_FLAGS = "--xla_backend_optimization_level=0"  # compiles in 0.7 of the time


def on_gpus():
    gpus = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
    python = venvs.interpreter("jax") if os.environ.get("SEQPAR_JAX_VENV") else sys.executable
    if not gpus or subprocess.run([python, "-c", "import jax; assert jax.devices('gpu')"], stderr=subprocess.DEVNULL).returncode:
        print("skipped: there is no GPU that JAX knows")
        sys.exit(77)
    failed = 0
    for devices in sorted({1, min(gpus, 2)}):
        failed |= subprocess.run([python, CHECKS, str(devices)], timeout=2400, env=venvs.environment(
            SEQPAR_TEST_DEVICE="cuda", XLA_PYTHON_CLIENT_PREALLOCATE="false")).returncode
    sys.exit(1 if failed else 0)


def main():
    if sys.argv[1:] == ["--gpu"]:
        on_gpus()
    python, failed = venvs.interpreter("jax"), 0
    with tempfile.TemporaryDirectory() as cache:  # compiles the handlers again
        for arguments in (["2"], ["3", "collectives", "errors"], ["1", "operators", "errors"]):
            failed |= subprocess.run([python, CHECKS, *arguments], env=venvs.environment(SEQPAR_CACHE=cache, XLA_FLAGS=XLA_FLAGS),
                                     timeout=2400).returncode
        losses = []
        for devices in ("1", "2"):
            done = subprocess.run([python, venvs.ROOT / "examples" / "shard_map.py", "--devices", devices, "--steps", "4",
                                   "--tokens", "64", "--plot", f"{cache}/losses.png"], env=venvs.environment(SEQPAR_CACHE=cache), timeout=2400, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            print(done.stdout)
            failed |= done.returncode or pathlib.Path(f"{cache}/losses.png").read_bytes()[:4] != b"\x89PNG"
            losses.append([float(x) for x in re.findall(r"loss ([\d.]+) +\d+ tokens/s +\d+ MiB", done.stdout)])
        for code in (venvs.code_of("jax.md"), (venvs.ROOT / "examples" / "quickstart_jax.py").read_text()):
            failed |= subprocess.run([python, "-c", code], env=venvs.environment(SEQPAR_CACHE=cache), timeout=2400).returncode
        unusable = f"{cache}/losses.png"  # no folder
        done = subprocess.run([python, "-c", "from seqpar.jax import _library; _library.library()"], timeout=2400, text=True,
                              env=venvs.environment(SEQPAR_CACHE=unusable), stderr=subprocess.PIPE)
        failed |= done.returncode == 0 or f"cannot store the compiled handlers in {unusable}" not in done.stderr
        one, two = losses
        failed |= len(one) != 4 or len(two) != 4 or not one[-1] < one[0]
        # The first loss differs by rounding, printed with six digits; later the curves differ by less than the training
        # progress.
        failed |= abs(one[0] - two[0]) > 16 * 2.0 ** -24 * one[0] * 8 + 1e-6
        failed |= max(abs(a - b) for a, b in zip(one, two)) > (one[0] - one[-1]) / 50
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
