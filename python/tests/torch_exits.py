#!/usr/bin/env python3
"""Processes that end without sp.close(), by a return, an exception, sys.exit(), os._exit() or a signal:

    torch_exits.py [--device cuda] [--ranks N] [--timeout S] [SCENARIO...]

Rank r uses GPU r modulo the number of GPUs. In each scenario one rank, or all ranks, end while work is enqueued. Every
process must end with its expected status, and every other rank must raise an Error that names the rank that ended, at
most --bound seconds later. In `shrink...` the others continue with comm.shrink(), next to torch.distributed. Scenarios
with `graph` need GPUs. Prints a line per scenario, with the latest error, and exits with 1 if one failed."""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import venvs

STEPS = 12  # until a rank ends

# "all" ranks end or one; its status; whether the others shrink. No status is expected of a process with a thread in
# torch at the interpreter's end, since PyTorch alone ends some of these with SIGABRT.
SCENARIOS = {
    "return": ("all", 0, False), "return_group": ("all", 0, False), "sys_exit_all": ("all", 3, False),
    "exception_all": ("all", 1, False), "thread_all": ("all", None, False),
    "return_early": ("one", 0, False), "exception": ("one", 1, False), "sys_exit": ("one", 3, False),
    "os_exit": ("one", 4, False), "in_start": ("one", 3, False), "in_backward": ("one", 1, False),
    "thread": ("one", None, False), "sigterm": ("one", -signal.SIGTERM, False), "sigkill": ("one", -signal.SIGKILL, False),
    "sigstop": ("one", -signal.SIGKILL, False), "graph": ("one", -signal.SIGKILL, False),
    "graph_cold": ("all", 0, False), "graph_shared": ("all", 0, False),
    "shrink_kill": ("one", -signal.SIGKILL, True), "shrink_exit": ("one", 3, True),
    "shrink_exception": ("one", 1, True), "shrink_graph": ("one", -signal.SIGKILL, True),
}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("scenarios", nargs="*")
    p.add_argument("--device", default="cpu")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--timeout", type=float, default=10, help="seconds; of the communicators")
    p.add_argument("--bound", type=float, default=8, help="seconds until the others' errors")
    p.add_argument("--verbose", action="store_true", help="the ranks' output, also without a failure")
    p.add_argument("--limit", type=float, default=60, help="seconds of a scenario")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    p.add_argument("--folder", help=argparse.SUPPRESS)
    return p.parse_args()


def step(comm, torch, sp, device, number):
    """Collectives and a training step of attention; returns what its ranks can check without communication."""
    torch.manual_seed(number)
    tokens, heads, dim = 64 * comm.size, 4, 64
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    layout = sp.Layout("zigzag", tokens, comm.size)
    whole = [torch.randn(1, tokens, heads, dim, device=device, dtype=kind) for _ in range(3)]
    mine = [sp.shard(x, layout, comm, dim=1).requires_grad_() for x in whole]
    out = sp.attention(*mine, comm=comm, causal=True, layout=layout)
    out.float().square().sum().backward()
    every = sp.all_gather(torch.full((1, 1000), float(number + comm.rank), device=device), comm, dim=0)
    return whole, layout, out, every


def is_right(torch, sp, comm, result, number):
    whole, layout, out, every = result
    q, k, v = (x.transpose(1, 2).float() for x in whole)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    expected = sp.shard(expected, layout, comm, dim=1)
    rows = torch.arange(number, number + comm.size, device=out.device, dtype=torch.float32)
    return bool((out.float() - expected).abs().max() < 3e-2) and bool((every == rows[:, None]).all())


def rank_main(o):
    import faulthandler
    faulthandler.dump_traceback_later(o.limit - 8, exit=False)
    import torch
    import torch.distributed as dist

    import seqpar.torch as sp

    torch.set_num_threads(1)
    name = o.scenarios[0]
    who, _, shrinks = SCENARIOS[name]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{o.port}", rank=o.rank, world_size=o.ranks)
    device = torch.device("cuda", o.rank % torch.cuda.device_count()) if o.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    comm = sp.comm(device=device, timeout=o.timeout)
    victim = o.seed % o.ranks
    ends = who == "all" or o.rank == victim
    for number in range(2):
        result = step(comm, torch, sp, device, number)
    if not is_right(torch, sp, comm, result, 1):
        raise SystemExit("wrong before the end")
    if name in ("graph_cold", "graph_shared"):
        refuse_capture(name, o, torch, sp, comm, device)
        return
    graph = capture(torch, sp, comm, device) if name.endswith("graph") else None
    dist.barrier()
    try:
        for number in range(2, 1 << 30):
            if graph:
                graph[0].replay()
            else:
                result = step(comm, torch, sp, device, number)
            if number > STEPS and ends:
                end_rank(name, o, torch, sp, comm, dist, device, number)
                return
            if number % 4 == 0:  # up to 4 steps are enqueued
                if device.type == "cuda":
                    torch.cuda.synchronize()
                comm.check()
                if not graph and not is_right(torch, sp, comm, result, number):
                    comm.check()
                    raise SystemExit(f"wrong in step {number} with success")
    except sp.Error as error:
        report(o, {"text": str(error), "result": error.result, "at": time.time()})
    if device.type == "cuda":
        torch.cuda.synchronize()
    if not shrinks:
        os._exit(0)  # the end of these processes is no part of the scenario
    del graph
    began = time.time()
    comm = comm.shrink()
    report(o, {"shrunk": comm.size, "seconds": time.time() - began})
    for number in range(100, 104):
        if not is_right(torch, sp, comm, step(comm, torch, sp, device, number), number):
            raise SystemExit(f"wrong in step {number} after the shrink")
    if name.endswith("graph"):
        again = capture(torch, sp, comm, device)
        again[0].replay()
        torch.cuda.synchronize()
        if not is_right(torch, sp, comm, again[1], 1):
            raise SystemExit("the graph is wrong after the shrink")
    comm.check()
    report(o, {"right": True})


def capture(torch, sp, comm, device):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.manual_seed(1)
        tokens = 64 * comm.size
        layout = sp.Layout("zigzag", tokens, comm.size)
        whole = [torch.randn(1, tokens, 4, 64, device=device, dtype=torch.bfloat16) for _ in range(3)]
        mine = [sp.shard(x, layout, comm, dim=1) for x in whole]
        ones = torch.full((1, 1000), 1.0 + comm.rank, device=device)
        graph = torch.cuda.CUDAGraph()
        for _ in range(2):
            out = sp.attention(*mine, comm=comm, causal=True, layout=layout)
            every = sp.all_gather(ones, comm, dim=0)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            out = sp.attention(*mine, comm=comm, causal=True, layout=layout)
            every = sp.all_gather(ones, comm, dim=0)
    return graph, (whole, layout, out, every), mine, ones


def refuse_capture(name, o, torch, sp, comm, device):
    """A capture without a call before, or of ranks that share a GPU: an error that says so."""
    expected = "once before the capture" if name == "graph_cold" else "share a GPU"
    layout = sp.Layout("zigzag", 32 * comm.size, comm.size)
    mine = torch.zeros(1, 32, 2, 64, device=device, dtype=torch.bfloat16)
    if name == "graph_shared":
        sp.attention(mine, mine, mine, comm=comm, causal=True, layout=layout)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            sp.attention(mine, mine, mine, comm=comm, causal=True, layout=layout)
        raise SystemExit("the capture was not refused")
    except (RuntimeError, sp.Error) as error:
        print(type(error).__name__, error)
        if expected not in str(error):
            raise SystemExit("another error") from error
    report(o, {"ended": time.time()})
    if name == "graph_shared":
        return  # a refused attention call ends the communicator
    for number in range(50, 53):
        if not is_right(torch, sp, comm, step(comm, torch, sp, device, number), number):
            raise SystemExit("wrong after the refusal")
    comm.check()


def end_rank(name, o, torch, sp, comm, dist, device, number):
    """Ends this rank as the scenario says."""
    report(o, {"ended": time.time()})
    if name == "return_group":
        dist.destroy_process_group()
    if name in ("exception", "exception_all", "shrink_exception"):
        raise RuntimeError("the loader's files are gone")
    if name in ("sys_exit", "sys_exit_all", "shrink_exit"):
        sys.exit(3)
    if name == "in_start":
        started = sp.start_all_gather(torch.ones(1, 1000, device=device), comm)
        sys.exit(3 if started else 0)
    if name == "in_backward":
        class Stop(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise RuntimeError("no gradient today")
        x = torch.randn(1, 64, 4, 64, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
        layout = sp.Layout("zigzag", 64 * comm.size, comm.size)
        y = Stop.apply(x.requires_grad_())
        sp.attention(y, y, y, comm=comm, causal=True, layout=layout).float().sum().backward()
    if name in ("thread", "thread_all"):
        def forever(number):
            while True:
                number += 1
                step(comm, torch, sp, device, number)
        threading.Thread(target=forever, args=(number,), daemon=True).start()
        time.sleep(0.05 + 0.05 * random.random())
    if name == "os_exit":
        os._exit(4)
    if name == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if name == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if name in ("sigkill", "graph", "shrink_kill", "shrink_graph"):
        os.kill(os.getpid(), signal.SIGKILL)


def report(o, line):
    with open(pathlib.Path(o.folder) / f"rank{o.rank}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def run(o, name):
    """A scenario; returns the reasons of its failure and the latest error in seconds."""
    who, status, shrinks = SCENARIOS[name]
    victim = o.seed % o.ranks
    bound = o.bound + (1.5 * o.timeout if name == "sigstop" else 0)
    problems = []
    with tempfile.TemporaryDirectory() as folder, venvs.reserved_port() as port:
        began = time.time()
        outputs = [open(pathlib.Path(folder) / f"rank{rank}.txt", "w+") for rank in range(o.ranks)]
        ranks = [subprocess.Popen([sys.executable, __file__, name, "--device", o.device, "--ranks", str(o.ranks), "--timeout",
                                   str(o.timeout), "--limit", str(o.limit), "--seed", str(o.seed), "--rank", str(rank), "--port",
                                   str(port), "--folder", folder], stdout=outputs[rank], stderr=subprocess.STDOUT)
                 for rank in range(o.ranks)]
        statuses = [None] * o.ranks
        for rank in sorted(range(o.ranks), key=lambda rank: rank == victim):
            if name == "sigstop" and rank == victim:
                ranks[rank].kill()
            try:
                statuses[rank] = ranks[rank].wait(max(0.1, began + o.limit - time.time()))
            except subprocess.TimeoutExpired:
                pass
        for process in ranks:
            process.kill()
            process.wait()
        lines = []
        for rank in range(o.ranks):
            file = pathlib.Path(folder) / f"rank{rank}.jsonl"
            lines.append([json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [])
        ended = [line["ended"] for line in lines[victim] if "ended" in line]
        latest = 0
        for rank in range(o.ranks):
            ends = who == "all" or rank == victim
            found = {key: value for line in lines[rank] for key, value in line.items()}
            if statuses[rank] is None:
                problems.append(f"rank {rank} hangs")
            elif statuses[rank] != (status if ends else 0) and not (ends and status is None):
                problems.append(f"rank {rank} ended with {statuses[rank]}")
            if ends or not ended:
                if not ended:
                    problems.append("the rank did not reach its end")
                continue
            if "text" not in found:
                problems.append(f"rank {rank} has no error")
                continue
            latest = max(latest, found["at"] - ended[0])
            if f"rank {victim}" not in found["text"]:
                problems.append(f"rank {rank} names no rank {victim}: {found['text']}")
            if found["at"] - ended[0] > bound:
                problems.append(f"rank {rank}: error after {found['at'] - ended[0]:.1f} s")
            if shrinks and not found.get("right"):
                problems.append(f"rank {rank} did not compute after the shrink")
        if problems or o.verbose:
            for rank in range(o.ranks):
                outputs[rank].seek(0)
                print(f"-- rank {rank}: {lines[rank]}\n" + outputs[rank].read()[-2500:], flush=True)
        text = [found["text"] for rank in range(o.ranks) for found in lines[rank] if "text" in found][:1]
        shrink = max([found["seconds"] for rank in range(o.ranks) for found in lines[rank] if "seconds" in found], default=0)
        print(f"{name}, {o.ranks} ranks, victim {victim}: {'; '.join(problems) or 'ok'}, {time.time() - began:.1f} s, latest error "
              f"{latest:.2f} s, shrink {shrink:.2f} s {text}", flush=True)
    return problems


def main():
    o = options()
    if o.rank is not None:
        return rank_main(o)
    names = o.scenarios or [name for name in SCENARIOS if o.device == "cuda" or "graph" not in name]
    failed = []
    for name in names:
        o.seed += 1
        if run(o, name):
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
