#!/usr/bin/env python3
"""Times sp.mamba2 on one GPU, and for comparison the product x * dt followed by sp.simple_gla.

    python perf/peers/mamba2_input_gate.py       docs/mamba.md: Nemotron-H 8B's layer, 8192 tokens, bf16
"""

import torch

import seqpar.torch as sp

HEADS, DIM, STATE, GROUPS, TOKENS = 128, 64, 128, 8, 8192


def inputs():
    d = {"device": "cuda"}
    tensors = (torch.randn(1, TOKENS, HEADS, DIM, **d).bfloat16(), torch.randn(1, TOKENS, HEADS, **d),
               -torch.rand(HEADS, **d) * 4 - 0.5, (torch.randn(1, TOKENS, GROUPS, STATE, **d) / STATE ** 0.5).bfloat16(),
               torch.randn(1, TOKENS, GROUPS, STATE, **d).bfloat16())
    return [x.requires_grad_() for x in tensors]


def timed(work, count=10):
    """Median of `count` calls, us."""
    times = []
    for i in range(count + 3):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[count // 2]


def main():
    comm = sp.comm(single=True, device=torch.device("cuda", 0))
    torch.manual_seed(1)
    tensors, grad = inputs(), torch.randn(1, TOKENS, HEADS, DIM, device="cuda").bfloat16()

    def product(multiply):
        def call(x, dt, a, b, c):
            steps = torch.nn.functional.softplus(dt)
            return sp.simple_gla(c, b, multiply(x, steps.unsqueeze(-1)), steps * a, comm, scale=1.0)
        return call

    ways = {"gate": lambda *given: sp.mamba2(*given, dt_softplus=True, comm=comm),
            "product": product(lambda x, steps: (x * steps).to(x.dtype)),
            "product in bf16": product(lambda x, steps: x * steps.to(x.dtype))}
    for name, way in [*ways.items()] * 2:
        def step():
            for x in tensors:
                x.grad = None
            way(*tensors).backward(grad)

        with torch.no_grad():
            forward = timed(lambda: way(*tensors))
        torch.cuda.reset_peak_memory_stats()
        both = timed(step)
        print(f"{name:16} forward {forward:.0f} us, forward and backward {both:.0f} us, "
              f"peak memory {torch.cuda.max_memory_allocated() / 2 ** 20:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
