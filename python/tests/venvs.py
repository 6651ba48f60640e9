"""Virtual environments for the tests, created at first use: build/torch-venv (minutes and 5 GB), build/jax-venv and
build/docs-venv (half a minute each), or the folders that SEQPAR_TORCH_VENV, SEQPAR_JAX_VENV and SEQPAR_DOCS_VENV
name.

    venvs.py NAME...        creates environments before a test needs them
"""

import atexit
import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

PACKAGES = {"torch": ("torch", "numpy", "matplotlib", "transformers", "accelerate", "trl", "peft"), "jax": ("jax", "numpy", "matplotlib"),
            "docs": ("sphinx", "myst-parser", "furo")}
# Their tests are skipped, with a reason, where they cannot be installed. Wheels only: no compiler is needed.
OPTIONAL = {"torch": ("megatron-core", "diffusers", "torchtitan")}
# Packages that an environment must not see, because they are incomplete: folders for one test.
SOURCES = {"transformer-engine": ("transformer_engine==2.20.2", "onnxscript", "onnx", "onnx-ir", "ml-dtypes")}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _install_wheels(python, name, *arguments):
    done = subprocess.run((python, "-m", "pip", "install", "--quiet", "--no-compile", "--retries", "1", "--timeout", "20", "--only-binary",
                           ":all:", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode:
        print(f"no {name}:", (done.stdout.strip().splitlines() or ["?"])[-1][:300], flush=True)


def sources(name):
    """The folder of SOURCES in the environment of this interpreter; None if it could not be installed."""
    folder = pathlib.Path(sys.prefix) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            _install_wheels(sys.executable, name, "--no-deps", "--target", str(folder), *SOURCES[name])
    return folder if any(folder.iterdir()) else None


def interpreter(name="torch"):
    """The environment's Python. Exits with 77 and a reason if it does not exist and cannot be created."""
    folder = pathlib.Path(os.environ.get(f"SEQPAR_{name.upper()}_VENV") or ROOT / "build" / f"{name}-venv")
    python, complete = folder / "bin" / "python", folder / "complete"
    folder.parent.mkdir(exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:  # tests run concurrently
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = " ".join([*PACKAGES[name], *OPTIONAL.get(name, ())])  # an environment of an older list is completed
        if not complete.exists() or complete.read_text() != packages:
            install = (python, "-m", "pip", "install", "--quiet", "--no-compile", "--retries", "1", "--timeout", "20", *PACKAGES[name])
            for command in (install,) if python.exists() else ((sys.executable, "-m", "venv", folder), install):
                try:
                    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    text, failed = done.stdout, done.returncode
                except OSError as error:
                    text, failed = str(error), 1
                if failed:
                    print(f"skipped: no environment for {name}:", (text.strip().splitlines() or ["?"])[-1][:300])
                    sys.exit(77)
            for package in OPTIONAL.get(name, ()):
                _install_wheels(python, package, package)
            complete.write_text(packages)
    return python


def environment(**more):
    """Environment variables for programs, so that they find the package and stay within the machine's limits. Modules are
    compiled once, at their first import: pip has not compiled them."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache"), "PYTHONPATH": str(ROOT / "python"),
            "OMP_NUM_THREADS": "1", **more}


def code_of(page):
    """The Python blocks of a page of docs, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), flags=re.M | re.S)
    assert len(blocks) > 3, page
    return "\n".join(blocks)


@contextlib.contextmanager
def reserved_port():
    """A port of 127.0.0.1 that no other program gets meanwhile: bound without listening. Programs that allow address
    reuse, such as torch, may listen on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


_forks = None  # the process of fork_ranks.py


def _end(process):
    with contextlib.suppress(BrokenPipeError):  # unsent input of a dead process
        process.stdin.close()
    process.wait()


def start(*command):
    """A process that answers each line of its standard input with a line. It ends at the exit of this process."""
    process = subprocess.Popen(command, env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(_end, process)
    return process


def answer(process, job):
    """The answer of a process to `job`, both JSON. A RuntimeError names the process and its exit status if it has died."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(job), file=process.stdin, flush=True)
    line = process.stdout.readline()
    if line.endswith("\n"):
        return json.loads(line)
    status = process.wait()
    end = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    command = " ".join(map(str, process.args))
    raise RuntimeError(f"process {process.pid} ({command}) {end} before it answered {json.dumps(job)}")


def run_ranks(ranks, arguments, timeout=900, **more):
    """Runs a Python program as `ranks` ranks, with torchrun's variables. Returns the exit statuses, and all output. The ranks
    are forked from a process that has imported torch and seqpar.torch, which takes 4 s of CPU time. If that process dies, its
    exit status is in a RuntimeError, the ranks' output is printed, and the next call starts another process."""
    global _forks
    if _forks is None:
        _forks = start(interpreter(), pathlib.Path(__file__).with_name("fork_ranks.py"))
    with reserved_port() as port, tempfile.NamedTemporaryFile("r") as output:
        environments = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": str(port), **more} for rank in range(ranks)]
        job = {"arguments": list(map(str, arguments)), "environments": environments, "output": output.name, "timeout": timeout}
        try:
            return answer(_forks, job), output.read()
        except RuntimeError:
            _forks = None
            print(output.read(), flush=True)
            raise


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        interpreter(wanted)
