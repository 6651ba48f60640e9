"""A virtual environment with PyTorch for the tests: build/torch-venv, or the folder that SEQPAR_TORCH_VENV names. Made at
first use, which takes minutes and 5 GB."""

import fcntl
import os
import pathlib
import subprocess
import sys

PACKAGES = ("torch", "numpy", "matplotlib", "transformers")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def interpreter():
    """The environment's Python. Exits with 77 and a reason where it is not there and cannot be made."""
    folder = pathlib.Path(os.environ.get("SEQPAR_TORCH_VENV") or ROOT / "build" / "torch-venv")
    python, complete = folder / "bin" / "python", folder / "complete"
    folder.parent.mkdir(exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            for command in ((sys.executable, "-m", "venv", folder),
                            (python, "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "20", *PACKAGES)):
                try:
                    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    text, failed = done.stdout, done.returncode
                except OSError as error:
                    text, failed = str(error), 1
                if failed:
                    print("skipped: no PyTorch:", (text.strip().splitlines() or ["?"])[-1][:300])
                    sys.exit(77)
            complete.touch()
    return python


def environment(**more):
    """What programs in the environment need to find the package and to stay within the machine."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", **more}


def run_ranks(ranks, arguments, timeout=900, **more):
    """Runs a Python program as so many ranks, with torchrun's variables. Returns the exit statuses, and all output."""
    import socket
    import tempfile
    python = interpreter()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile("w+") as output:
        processes = []
        try:
            for rank in range(ranks):
                variables = environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                                        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **more)
                processes.append(subprocess.Popen([python, *arguments], env=variables, stdout=output,
                                                  stderr=subprocess.STDOUT))
            statuses = [process.wait(timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
        output.seek(0)
        return statuses, output.read()
