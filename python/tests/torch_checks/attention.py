"""Attention and linear attention against the dense definitions."""

import contextlib
import io

import torch

import seqpar.torch as sp
from seqpar.testing import parity
from torch_checks import Skip, check, raises, same, whole


@check
def parity_of_all_algorithms(comm, seed):
    for line in (
            "--algorithm ring ring_pass_q zigzag striped burst double_ring allgather_kv ulysses auto "
            "--length 41 --kv-heads 2 --head-dim 8 --value-dim 12 --batch 2",
            "--algorithm ring burst allgather_kv ulysses --length 37 --full --head-dim 8 --softcap 3 --scale 0.5",
            "--algorithm ring allgather_kv ulysses --length 37 --head-dim 8 --window 9 --sinks",
            "--algorithm ring allgather_kv ulysses --layout zigzag --documents 1 2 17 20 --head-dim 8",
            "--algorithm ring --length 5 --head-dim 8 --heads 1", "--algorithm ulysses --length 1 --head-dim 8 --heads 3",
            "--algorithm zigzag ulysses --length 32 --head-dim 16 --dtype bfloat16",
            "--family gla --algorithm zeco lasp1 lasp2 auto --length 41 --batch 2 --head-dim 8 --kv-heads 2 --initial",
            "--family gla --algorithm zeco lasp2 --documents 1 2 17 20 --head-dim 8 --initial",
            "--family scalar --algorithm zeco --length 40 --head-dim 8 --value-dim 12",
            "--family fixed --algorithm zeco --length 40 --head-dim 8 --batch 2",
            "--family sum --algorithm zeco lasp1 --length 40 --head-dim 8",
            "--family gla --algorithm zeco --length 40 --head-dim 16 --dtype bfloat16"):
        lines, good = parity.run(parity.parse(line.split()), comm, seed)
        assert good, line + "\n" + "\n".join(lines)


@check
def parity_finds_errors(comm, seed):
    options = parity.parse("--length 20 --head-dim 8 --algorithm ring".split())
    original = parity.dense
    try:
        parity.dense = lambda *arguments: {name: x * 1.001 for name, x in original(*arguments).items()}
        assert not parity.run(options, comm, seed)[1]
    finally:
        parity.dense = original
    for line, text in {"--length 0": "--length: got 0, expected at least 1", "--kv-length -1": "--kv-length: got -1",
                       "--heads 3 --kv-heads 2": "--kv-heads: got 2, expected a divisor of 3", "--documents 3 -1 4": "--documents: got -1",
                       "--head-dim 0": "--head-dim: got 0", "--algorithm ring nope": "--algorithm: got 'nope', expected some of auto, ",
                       "--family gla --sinks": "--sinks: not an option of --family gla", "--scale 0": "--scale: got 0",
                       "--family gla --kv-length 9": "--kv-length: not an option of", "--initial": "--initial: not an option of",
                       "--kv-length 9 --documents 3 4": "--kv-length: not an option with --documents"}.items():
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            raises(SystemExit, "2", parity.parse, line.split())
        assert text in told.getvalue(), told.getvalue()


@check
def explanations(comm, seed):
    x = whole(seed, 1, 4, 2, 16)
    told = sp.explain(x, x, x, comm, causal=True)
    assert told["ranks"] == comm.size and told["algorithm"]
    decays = {"gla": -x.abs(), "simple_gla": -x[..., 0].abs(), "retention": -x[0, 0, :, 0].abs(), "linear_attention": None}
    for function, decay in decays.items():
        told = sp.explain(x, x, x, comm, function=function, log_decay=decay, algorithm="lasp2")
        assert told["ranks"] == comm.size and told["algorithm"] == "lasp2", told
    raises(ValueError, "expected one of attention, gla", sp.explain, x, x, x, comm, function="mamba")
    raises(ValueError, "gla: log_decay is None", sp.explain, x, x, x, comm, function="gla")
    for function in ("attention", "linear_attention"):
        raises(ValueError, "expected none", sp.explain, x, x, x, comm, function=function, log_decay=x)


@check
def later_calls_return_equal_results(comm, seed):
    """The first call of a form uses the operators, later ones are prepared: bitwise equal, for every caller."""
    qkv = whole(seed + comm.rank, 2, 6, 3, 2, 16)
    gate, grad = -whole(seed + 9, 2, 6, 2, 16).abs(), whole(seed + 7, 2, 6, 2, 16)
    functions = {
        "attention": lambda q, k, v: sp.attention(q, k, v, comm, causal=True, algorithm="ring", deterministic=True, return_lse=True),
        "attention by a layout": lambda q, k, v: sp.attention(
            q, k, v, comm, causal=True, algorithm="zigzag", deterministic=True,
            layout=sp.Layout("zigzag", 6 * comm.size, comm.size)),
        "gla": lambda q, k, v: sp.gla(q, k, v, gate, comm, output_final_state=True),
        "linear": lambda q, k, v: sp.linear_attention(q, k, v, comm)}

    def run(function, strided, hooks, grad=grad):
        x = qkv.clone().requires_grad_()
        parts = x.unbind(2) if strided else [y.contiguous() for y in x.unbind(2)]
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            out = function(*parts)
        out = out if isinstance(out, tuple) else (out,)
        out[0].backward(grad)
        with torch.no_grad():
            again = function(*parts)
        return (*out, x.grad, *(again if isinstance(again, tuple) else (again,)))

    as_it_is, copied = (lambda x: x, lambda x: x), (lambda x: x, lambda x: x.clone(memory_format=torch.contiguous_format))
    for name, function in functions.items():
        known = len(comm.prepared)
        for strided in (False, True):
            first = run(function, strided, as_it_is)
            for hooks in (as_it_is, copied):
                for one, other in zip(run(function, strided, hooks), first):
                    assert one.equal(other), (name, strided, hooks is copied)
        assert len(comm.prepared) > known, name
        one, other = (run(function, False, as_it_is, g)[-3] for g in (torch.ones(()).expand(grad.shape), torch.ones(grad.shape)))
        assert one.equal(other), name
    # Mutable options are checked in each call.
    q = qkv[:1, :, 0].contiguous()
    bounds = torch.tensor([0, 2, 6 * comm.size])
    for cut in (2, 3):
        bounds[1] = cut
        same(sp.attention(q, q, q, comm, causal=True, cu_seqlens=bounds, algorithm="ring"),
             sp.attention(q, q, q, comm, causal=True, cu_seqlens=(0, cut, 6 * comm.size), algorithm="ring"), 0)


@check
def options_in_tensors_are_read_in_each_call(comm, seed):
    """A tensor that changes in place is another option. One that requires a gradient would get none."""
    x = whole(seed, 1, 6, 2, 16)
    decay = -x.abs()
    calls = {"scale": {"attention": lambda value: sp.attention(x, x, x, comm, causal=True, scale=value),
                       "gla": lambda value: sp.gla(x, x, x, decay, comm, scale=value)},
             "softcap": {"attention": lambda value: sp.attention(x, x, x, comm, softcap=value)},
             "causal": {"attention": lambda value: sp.attention(x, x, x, comm, causal=value)}}
    for option, functions in calls.items():
        for name, function in functions.items():
            value = torch.tensor(0.5) if option != "causal" else torch.tensor(True)
            for _ in range(3):  # later calls are prepared
                same(function(value), function(value.item()))
            value.fill_(0 if option == "causal" else 2)
            same(function(value), function(value.item()))
            if option == "causal":
                continue
            learned = torch.nn.Parameter(value)
            raises(ValueError, f"{name}: {option} requires a gradient", function, learned)
            with torch.no_grad():
                same(function(learned), function(2.0))


@check
def workspaces_of_one_kernel_call(comm, seed):
    """On GPUs, a pass of one call of cuDNN has copies of its operands, and no sums in fp32."""
    for algorithm, tensors in (("local", 12), ("ulysses", 24)):
        q = whole(seed, 1, 2048 // comm.size, 8, 128, dtype=torch.bfloat16).requires_grad_()
        told = sp.explain(q, q, q, comm, causal=True, algorithm=algorithm)
        if told["block"] != "cuDNN":
            raise Skip(f"runs {told['block']}")
        assert told["workspaceBytes"] < tensors * q.numel() * q.element_size(), (algorithm, told["workspaceBytes"])
