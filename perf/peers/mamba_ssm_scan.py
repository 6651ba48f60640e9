"""mamba_ssm's mamba_chunk_scan_combined against sp.mamba2, on one GPU. Needs mamba_ssm and einops.

    mamba_ssm_scan.py --warm I N    compiles every Nth kernel from the Ith on, without running any: N processes fill Triton's cache
    mamba_ssm_scan.py               measures; Triton tunes every kernel over all of its configurations

Times are medians of CUDA graphs, both in turns in the same run; `apart` is the relative difference of the outputs. A is
from -1 to -16 and dt from 0.001 to 0.1, as layers are initialized.
"""
import argparse
import math
import time

import torch
from triton_tuning import compile_only, tune_quickly
from graphs import compare, header, passes

# heads, values, state, groups
MODELS = {"nemotron-h-8b": (128, 64, 128, 8), "mamba2-2.7b": (80, 64, 128, 1), "nemotron-nano-v2": (128, 80, 128, 8),
          "nemotron-h-47b": (256, 64, 256, 8), "falcon-h1-7b": (24, 128, 256, 1), "zamba2-7b": (112, 64, 64, 2)}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
parser.add_argument("--tokens", type=int, default=8192)
parser.add_argument("--chunk", type=int, default=256, help="tokens of a chunk of mamba_ssm")
parser.add_argument("--repeats", type=int, default=20)
parser.add_argument("--warm", type=int, nargs=2)
args = parser.parse_args()


def inputs(model, tokens):
    """x, dt, A, B and C, and a gradient of the output."""
    heads, values, state, groups = MODELS[model]
    random = torch.Generator("cuda").manual_seed(heads + values)
    normal = lambda *shape: torch.randn(shape, generator=random, device="cuda")
    uniform = lambda *shape: torch.rand(shape, generator=random, device="cuda")
    dt = torch.exp(math.log(0.001) + uniform(1, tokens, heads) * math.log(100))
    a = -(1 + 15 * uniform(heads))
    x, grad = (normal(1, tokens, heads, values).bfloat16() for _ in range(2))
    b, c = (normal(1, tokens, groups, state).bfloat16() for _ in range(2))
    return [t.requires_grad_() for t in (x, dt, a, b, c)], grad


def mamba_ssm():
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    return lambda *tensors: mamba_chunk_scan_combined(*tensors, args.chunk)


def seqpar():
    import seqpar.torch as sp
    comm = sp.comm(device="cuda")
    return lambda *tensors: sp.mamba2(*tensors, comm=comm)


def warm(share, shares):
    compile_only(share, shares)
    torch.cuda.set_device(share % torch.cuda.device_count())
    begin = time.perf_counter()
    for model in args.models:
        tensors, grad = inputs(model, 2 * args.chunk)
        for function in passes(mamba_ssm(), tensors, grad).values():
            function()
    if share == 0:
        print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)


tune_quickly()
if args.warm:
    warm(*args.warm)
else:
    print(header("mamba_ssm"))
    for one in args.models:
        given, gradient = inputs(one, args.tokens)
        compare("mamba2", one, "mamba_ssm", seqpar(), mamba_ssm(), given, gradient, args.repeats)
