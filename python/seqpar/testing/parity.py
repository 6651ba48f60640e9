"""Compares attention over sharded sequences with the dense definition on your own shapes, gradients included.

    torchrun --nproc-per-node 2 -m seqpar.testing.parity --algorithm ring zigzag --length 2041 --window 512
    torchrun --nproc-per-node 3 -m seqpar.testing.parity --family gla --algorithm zeco lasp2 --documents 1 2 137 60

Prints a table of errors relative to the largest value (for gradients of decays: to the size of the summed terms); a
mismatch sets exit status 1. The reference is in float64, and every tensor may differ from it by its type's rounding
times the square root of the number of summed terms, times 8. seqpar.testing.matrix does so for every algorithm with
every feature.
"""

import argparse
import contextlib
import itertools
import os
import sys

import torch
import torch.distributed as dist

import seqpar.torch as sp
from seqpar import _abi
from seqpar.testing import reference

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ROUNDING = {torch.float32: 2.0 ** -24, torch.float16: 2.0 ** -11, torch.bfloat16: 2.0 ** -8}
LAYOUTS = {"zigzag": "zigzag", "striped": "striped"}
_OF_SOFTMAX = ("full", "window", "softcap", "sinks", "kv_length")  # options that the other families lack
_OF_LINEAR = ("initial",)


def documents_to_bounds(documents):
    return tuple(itertools.accumulate(documents, initial=0)) if documents else None


def inputs(o, seed):
    """Whole random inputs, equal on all ranks: q, k, v, gate, sinks, and the gradient of the output."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64, device="cpu").to(TYPES[o.dtype])

    linear = o.family != "softmax"
    kv, kv_length = o.kv_heads or o.heads, o.kv_length or o.length
    value_dim = o.value_dim or o.head_dim
    tensors = {"q": normal(o.batch, o.length, kv if linear else o.heads, o.head_dim),
               "k": normal(o.batch, kv_length, kv, o.head_dim),
               "v": normal(o.batch, kv_length, o.heads if linear else kv, value_dim)}
    gates = {"gla": (o.batch, o.length, o.heads, o.head_dim), "scalar": (o.batch, o.length, o.heads), "fixed": (o.heads,)}
    if o.family in gates:
        decay = torch.rand(*gates[o.family], generator=random, dtype=torch.float64, device="cpu")
        tensors["gate"] = (-0.01 - decay).float()
    if o.sinks:
        tensors["sinks"] = normal(o.heads).float()
    if linear and o.initial:
        sequences = len(o.documents) if o.documents else o.batch
        tensors["initial"] = normal(sequences, o.heads, o.head_dim, value_dim).float()
    return tensors, normal(o.batch, o.length, o.heads, value_dim)


def options_of(o):
    options = {"scale": o.scale, "cu_seqlens": documents_to_bounds(o.documents)}
    if o.family == "softmax":
        options |= {"causal": not o.full, "window": (o.window, -1 if o.full is False else o.window), "softcap": o.softcap}
    return options


def dense(o, tensors, grad):
    """Output and gradients of the definition, in float64 on the whole sequence."""
    exact = {name: x.double().requires_grad_() for name, x in tensors.items()}
    rest = options_of(o)
    if o.family == "softmax":
        out = reference.softmax(exact["q"], exact["k"], exact["v"], sinks=exact.get("sinks"), **rest)
    else:
        out, _ = reference.linear(o.family, exact["q"], exact["k"], exact["v"], exact.get("gate"),
                                  initial_state=exact.get("initial"), **rest)
    gradients = torch.autograd.grad((out * grad.double()).sum(), list(exact.values()), allow_unused=True)
    found = {"out": out.detach()}
    for (name, x), gradient in zip(exact.items(), gradients):
        found["d_" + name] = torch.zeros_like(x) if gradient is None else gradient
    return found


def decay_terms(o, tensors, grad):
    """The maximum sum of term sizes for a value of d_gate: the gradient of a token's decay is a sum of q dq - k dk over
    all later tokens, and RetNet's is a sum of those; the terms nearly cancel, so their size determines the rounding
    error."""
    exact = {name: x.double() for name, x in tensors.items()}
    leaves = [exact[name].repeat_interleave(o.heads // exact[name].shape[2], 2).requires_grad_() for name in "qk"]
    out, _ = reference.linear(o.family, *leaves, exact["v"], exact["gate"], initial_state=exact.get("initial"),
                              **options_of(o))
    terms = sum((x * dx).abs() for x, dx in zip(leaves, torch.autograd.grad((out * grad.double()).sum(), leaves)))
    terms = terms.detach() if o.family == "gla" else terms.detach().sum(3)
    behind = terms.flip(1).cumsum(1)
    return (behind.sum((0, 1)) if o.family == "fixed" else behind).max().item()


def sharded(o, algorithm, tensors, grad, comm):
    """The results of seqpar, gathered on every rank."""
    kind = o.layout or LAYOUTS.get(algorithm, "contiguous")
    layout = sp.Layout(kind, o.length, comm.size)
    layouts = dict.fromkeys("kv", sp.Layout(kind, o.kv_length, comm.size)) if o.kv_length else {}
    whole = {"sinks", "initial"} | ({"gate"} if o.family == "fixed" else set())
    local = {name: (x if name in whole else sp.shard(x, layouts.get(name, layout), comm)).to(comm.device).clone().requires_grad_()
             for name, x in tensors.items()}
    rest = options_of(o) | {"layout": layout, "algorithm": algorithm, "wire": o.wire and TYPES[o.wire]}
    if o.kv_length:
        rest["kv_layout"] = layouts["k"]
    if o.family == "softmax":
        call = lambda q, k, v, sinks=None: sp.attention(q, k, v, comm, sinks=sinks, **rest)
    else:
        function = {"gla": sp.gla, "scalar": sp.simple_gla, "fixed": sp.retention}.get(o.family)
        call = lambda q, k, v, gate=None, initial=None: (
            function(q, k, v, gate, comm, initial_state=initial, **rest) if function else
            sp.linear_attention(q, k, v, comm, initial_state=initial, **rest))
    if o.compile:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    out = call(**local)
    out.backward(sp.shard(grad, layout, comm).to(comm.device))
    found = {"out": sp.unshard(out.detach(), layout, comm)}
    for name, x in local.items():
        # A rank's share of a gradient that all ranks have, or its tokens' gradient.
        found["d_" + name] = (sp.all_gather(x.grad[None], comm, dim=0).sum(0) if name in whole
                              else sp.unshard(x.grad, layouts.get(name, layout), comm))
    return {name: x.cpu() for name, x in found.items()}


def compare(o, algorithm, comm, tensors, grad, exact):
    """Rows (algorithm, tensor, error, tolerance) of one algorithm; errors are relative to the largest exact value."""
    rows = []
    for name, x in sharded(o, algorithm, tensors, grad, comm).items():
        largest = max(1.0, exact[name].abs().max().item() if exact[name].numel() else 0.0)
        if name == "d_gate":
            largest = max(largest, decay_terms(o, tensors, grad))
        error = (x.double() - exact[name]).abs().max().item() / largest if x.numel() else 0.0
        terms = max(o.length, o.kv_length) + o.head_dim
        tolerance = 8 * (ROUNDING[TYPES[o.dtype]] + ROUNDING[torch.float32] * terms ** 0.5)
        coarse = [TYPES[kind] for kind in (o.dtype, o.wire) if kind and TYPES[kind] != torch.float32]
        if coarse:  # probabilities, outputs or partial results are rounded before they are summed
            tolerance = 8 * max(ROUNDING[kind] for kind in coarse)
        rows.append((algorithm, name, error, tolerance))
    return rows


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--family", choices=("softmax", "gla", "scalar", "fixed", "sum"), default="softmax")
    p.add_argument("--algorithm", nargs="+", default=["auto"])
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--length", type=int, default=257, help="tokens of the whole sequence")
    p.add_argument("--kv-length", type=int, default=0, help="cross-attention: tokens of the keys and values")
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=0)
    p.add_argument("--head-dim", type=int, default=32)
    p.add_argument("--value-dim", type=int, default=0)
    p.add_argument("--dtype", choices=TYPES, default="float32")
    p.add_argument("--full", action="store_true", help="no causal mask")
    p.add_argument("--window", type=int, default=-1, help="visible tokens before (and, with --full, after) a token")
    p.add_argument("--softcap", type=float, default=0.0)
    p.add_argument("--sinks", action="store_true")
    p.add_argument("--initial", action="store_true", help="linear attention: with an initial state")
    p.add_argument("--scale", type=float, default=None)
    p.add_argument("--documents", type=int, nargs="+", default=None, help="lengths of packed sequences; their sum is the "
                   "length")
    p.add_argument("--wire", choices=TYPES, default=None, help="type of partial results and states on the wire")
    p.add_argument("--layout", choices=("contiguous", "zigzag", "striped"), default=None, help="default: the algorithm's")
    p.add_argument("--compile", action="store_true", help="through torch.compile(fullgraph=True)")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--seed", type=int, default=None)
    return p


def parse(arguments=None):
    p = parser()
    o = p.parse_args(arguments)
    if o.documents:
        o.length = sum(o.documents)
    least = {"batch": 1, "length": 1, "kv_length": 0, "heads": 1, "kv_heads": 0, "head_dim": 1, "value_dim": 0}
    for name, bound in least.items():
        if getattr(o, name) < bound:
            p.error(f"argument --{name.replace('_', '-')}: got {getattr(o, name)}, expected at least {bound}")
    for name in o.algorithm:
        if name not in _abi.ATTN_ALGORITHMS:
            p.error(f"argument --algorithm: got {name!r}, expected some of {', '.join(_abi.ATTN_ALGORITHMS)}")
    for name in _OF_LINEAR if o.family == "softmax" else _OF_SOFTMAX:
        if getattr(o, name) != p.get_default(name):
            p.error(f"argument --{name.replace('_', '-')}: not an option of --family {o.family}")
    if o.kv_length and o.documents:
        p.error("argument --kv-length: not an option with --documents")
    if o.scale == 0:
        p.error("argument --scale: got 0, expected another number")
    if o.device == "cuda" and not torch.cuda.is_available():
        p.error("argument --device: PyTorch finds no GPU")
    if o.documents and min(o.documents) < 0:
        p.error(f"argument --documents: got {min(o.documents)}, expected lengths of at least 0")
    if o.kv_heads and o.heads % o.kv_heads:
        p.error(f"argument --kv-heads: got {o.kv_heads}, expected a divisor of {o.heads}, the number of heads")
    return o


def run(o, comm, seed):
    """All algorithms of the options; the table as lines, and whether all agree. Reports refused algorithms."""
    tensors, grad = inputs(o, seed)
    exact = dense(o, tensors, grad)
    lines, good = [], True
    for algorithm in o.algorithm:
        try:
            rows = compare(o, algorithm, comm, tensors, grad, exact)
        except sp.Error as error:
            lines.append(f"{algorithm:<14} refused: {error}")
            good = False
            continue
        for name, tensor, error, tolerance in rows:
            same = error <= tolerance
            good &= same
            lines.append(f"{name:<14} {tensor:<10} {error:10.2e} {tolerance:10.2e}  {'ok' if same else 'MISMATCH'}")
    return lines, good


@contextlib.contextmanager
def ranks_of(device, seed):
    """(the communicator of all ranks, a seed that is equal on them; None: a random one). One rank without torchrun."""
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", **alone)
    here = "cpu" if device == "cpu" else torch.device(device, dist.get_rank() % torch.cuda.device_count())
    comm = sp.comm(device=here)
    together = [seed if seed is not None else torch.seed() % 2 ** 31]
    dist.broadcast_object_list(together, 0)
    yield comm, together[0]
    sp.close()
    dist.destroy_process_group()


def main():
    o = parse()
    with ranks_of(o.device, o.seed) as (comm, seed):
        lines, good = run(o, comm, seed)
        if comm.rank == 0:
            print(f"{comm.size} ranks, {o.length} tokens, {o.dtype}, seed {seed}")
            print(f"{'algorithm':<14} {'tensor':<10} {'error':>10} {'tolerance':>10}")
            print("\n".join(lines), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
