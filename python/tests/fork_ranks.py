"""Forks ranks that run Python programs, so that packages are imported once: venvs.run_ranks() starts fork_ranks.py. Standard
input has a job per line, as JSON: {"arguments": [...], "environments": [{...} per rank], "output": path, "timeout": s}; the
answer is a line with the list of exit statuses."""

import contextlib
import json
import os
import runpy
import signal
import sys
import time
import traceback

import torch._dynamo  # noqa: F401  optimizers and checkpoints import it at their first use, which takes 1.6 s
import torch.distributed  # noqa: F401

import seqpar.torch  # noqa: F401

with contextlib.suppress(ImportError):
    from transformers import LlamaForCausalLM  # noqa: F401  2.3 s


def _run(arguments):
    """The exit status of `python3 ARGUMENTS`."""
    try:
        if arguments[0] == "-m":
            sys.argv, sys.path[0] = arguments[1:], os.getcwd()
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def _wait(children, timeout):
    """The exit statuses; after the timeout the children that still run are killed."""
    statuses, end = {}, time.monotonic() + timeout
    while len(statuses) < len(children):
        for child in children:
            if child in statuses:
                continue
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                statuses[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return [statuses[child] for child in children]


def main():
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        children = []
        for environment in job["environments"]:
            child = os.fork()
            if child == 0:
                sys.stdin.close()
                with open(job["output"], "a") as output:
                    os.dup2(output.fileno(), 1)
                    os.dup2(output.fileno(), 2)
                os.environ.update(environment)
                sys.exit(_run(job["arguments"]))
            children.append(child)
        print(json.dumps(_wait(children, job["timeout"])), flush=True)


if __name__ == "__main__":
    main()
