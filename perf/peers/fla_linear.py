"""flash-linear-attention's gated linear attention and scalar decays beside seqpar's, on one GPU. Needs fla-core 0.6 and einops.

    fla_linear.py --warm I N    compiles every Nth kernel from the Ith on, without running any: N processes fill Triton's cache
    fla_linear.py               measures; every kernel is tuned over --configs configurations

Times are medians of CUDA graphs, both in turns in the same run; `apart` is the relative difference of the outputs. FLA
refuses the backward of scalar decays on Hopper with Triton 3.4 to 3.7.0, whose gradients of decays are wrong there (its
issue 640): the table says so.
"""
import argparse
import os
import time

os.environ.setdefault("FLA_CACHE_RESULTS", "0")

import torch  # noqa: E402
from fla_kernels import compile_only, few_configurations  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--shapes", nargs="*", default=["8192x32", "8192x16", "32768x32"], help="tokens x heads")
parser.add_argument("--families", nargs="*", default=["gla", "scalar"], choices=["gla", "scalar"])
parser.add_argument("--head-dim", type=int, default=128)
parser.add_argument("--configs", type=int, default=2)
parser.add_argument("--repeats", type=int, default=20)
parser.add_argument("--warm", type=int, nargs=2)
args = parser.parse_args()


def inputs(family, tokens, heads):
    """q, k, v and the logarithms of decays, drawn as FLA's own benchmarks do; a gradient of the output."""
    random = torch.Generator("cuda").manual_seed(tokens + heads)
    normal = lambda *shape: torch.randn(shape, generator=random, device="cuda")
    shape = (1, tokens, heads, args.head_dim)
    q, k, v, grad = (normal(*shape).bfloat16() for _ in range(4))
    g = torch.nn.functional.logsigmoid(normal(*(shape if family == "gla" else shape[:3]))) / 16
    return [x.requires_grad_() for x in (q, k, v, g)], grad


def fla(family):
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla
    if family == "gla":
        return lambda q, k, v, g: chunk_gla(q, k, v, g)[0]
    return lambda q, k, v, g: chunk_simple_gla(q, k, v, g=g)[0]


def seqpar(family):
    import seqpar.torch as sp
    comm = sp.comm(device="cuda")
    operator = sp.gla if family == "gla" else sp.simple_gla
    return lambda q, k, v, g: operator(q, k, v, g, comm)


def passes(operator, tensors, grad):
    def forward():
        with torch.no_grad():
            return operator(*tensors)

    def both():
        return torch.autograd.grad(operator(*tensors), tensors, grad)

    return {"forward": forward, "forward+backward": both}


def graph_of(function):
    """A CUDA graph of a call, after two that compile, tune and allocate; or why there is none."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = function()
        return graph, kept
    except Exception as error:  # what FLA refuses
        return str(error).strip().splitlines()[0][:100], None


def median_us(graph):
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(args.repeats)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in events)
    return 1e3 * times[len(times) // 2]


def measure(family, tokens, heads):
    tensors, grad = inputs(family, tokens, heads)
    ours, theirs = (passes(make(family), tensors, grad) for make in (seqpar, fla))
    for what in ours:
        graphs = {"seqpar": graph_of(ours[what]), "FLA": graph_of(theirs[what])}
        times, notes = {name: [] for name in graphs}, []
        for _ in range(3):  # in turn: clocks drift
            for name, (graph, _) in graphs.items():
                if not isinstance(graph, str):
                    times[name].append(median_us(graph))
        shown = {name: sorted(x)[len(x) // 2] if x else float("nan") for name, x in times.items()}
        for name, (graph, _) in graphs.items():
            if isinstance(graph, str):
                notes.append(f"{name}: {graph}")
        if not notes and what == "forward":
            a, b = (kept.float() for _, kept in graphs.values())
            notes.append(f"apart {((a - b).norm() / b.norm()).item():.1e}")
        print(f"{family:<7} {tokens:>6} {heads:>5} {what:<17} {shown['seqpar']:10.1f} {shown['FLA']:10.1f} "
              f"{shown['FLA'] / shown['seqpar']:7.2f}  {'; '.join(notes)}", flush=True)
        del graphs


def warm(share, shares):
    compile_only(share, shares)
    torch.cuda.set_device(share % torch.cuda.device_count())
    begin = time.perf_counter()
    for family in args.families:
        for heads in sorted({int(shape.split("x")[1]) for shape in args.shapes}):
            tensors, grad = inputs(family, 256, heads)
            for function in passes(fla(family), tensors, grad).values():
                try:
                    function()
                except Exception as error:  # what FLA refuses
                    if share == 0:
                        print(f"{family}: {str(error).strip().splitlines()[0][:100]}", flush=True)
    if share == 0:
        print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)


few_configurations(args.configs)
if args.warm:
    warm(*args.warm)
else:
    print(f"{'family':<7} {'tokens':>6} {'heads':>5} {'pass':<17} {'seqpar us':>10} {'FLA us':>10} {'times':>7}")
    for one in args.families:
        for shape in args.shapes:
            measure(one, *map(int, shape.split("x")))
