"""flash-linear-attention's gated linear attention, scalar decays and delta rules against seqpar's, on one GPU. Needs
fla-core 0.6 and einops.

    fla_linear.py --warm I N    compiles every Nth kernel from the Ith on, without running any: N processes fill Triton's cache
    fla_linear.py               measures; Triton tunes every kernel over all of its configurations
    fla_linear.py --errors      errors against a recurrence in fp64, and the most memory of a forward and backward

Times are medians of CUDA graphs, both in turns in the same run; `apart` is the relative difference of the outputs. FLA
refuses the backward of scalar decays on Hopper with Triton 3.4 to 3.7.0, where the gradients of decays are wrong (its
issue 640): the table says so. Errors are norms of differences over the norm of the reference; memory excludes q, k, v,
the decays, the outputs and their gradient.
"""
import argparse
import os
import time

os.environ.setdefault("FLA_CACHE_RESULTS", "0")

import torch  # noqa: E402
from triton_tuning import compile_only, tune_quickly  # noqa: E402
from graphs import compare, header, passes  # noqa: E402

DELTA = ("delta", "gated_delta", "kda")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--shapes", nargs="*", default=["8192x32", "8192x16", "32768x32"], help="tokens x heads, or tokens x heads x length of a key x length of a value")
parser.add_argument("--families", nargs="*", default=["gla", "scalar"], choices=["gla", "scalar", *DELTA])
parser.add_argument("--repeats", type=int, default=20)
parser.add_argument("--errors", action="store_true")
parser.add_argument("--errors-shape", default="1024x4", help="shape of --errors: processed token by token in fp64")
parser.add_argument("--warm", type=int, nargs=2)
args = parser.parse_args()


def sizes_of(shape):
    """(tokens, heads, length of a key, length of a value)."""
    sizes = tuple(map(int, shape.split("x")))
    return sizes if len(sizes) == 4 else (*sizes, 128, 128)


def inputs(family, tokens, heads, key_dim=128, value_dim=128, divisor=16):
    """q, k, v, the logarithms of decays and beta (those that the family has), drawn as FLA's own benchmarks do; a
    gradient of the output."""
    random = torch.Generator("cuda").manual_seed(tokens + heads)
    normal = lambda *shape: torch.randn(shape, generator=random, device="cuda")
    shape = (1, tokens, heads, key_dim)
    q, k, v, grad = (normal(1, tokens, heads, dim) for dim in (key_dim, key_dim, value_dim, value_dim))
    if family in DELTA:
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    tensors = [x.bfloat16() for x in (q, k, v)]
    if family != "delta":
        gates = normal(*(shape if family in ("gla", "kda") else shape[:3]))
        tensors.append(torch.nn.functional.logsigmoid(gates) / divisor)
    if family in DELTA:
        tensors.append(normal(*shape[:3]).sigmoid().bfloat16())
    return [x.requires_grad_() for x in tensors], grad.bfloat16()


def fla(family):
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gla import chunk_gla
    from fla.ops.kda import chunk_kda
    from fla.ops.simple_gla import chunk_simple_gla
    if family == "scalar":
        return lambda q, k, v, g: chunk_simple_gla(q, k, v, g=g)[0]
    if family == "kda":  # its faster way, exact for decays as mild as these
        return lambda *tensors: chunk_kda(*tensors, safe_gate=True)[0]
    operator = {"gla": chunk_gla, "delta": chunk_delta_rule, "gated_delta": chunk_gated_delta_rule}[family]
    return lambda *tensors: operator(*tensors)[0]


def seqpar(family):
    import seqpar.torch as sp
    comm = sp.comm(device="cuda")
    operator = {"gla": sp.gla, "scalar": sp.simple_gla, "delta": sp.delta_rule, "gated_delta": sp.gated_delta_rule,
                "kda": sp.kda}[family]
    return lambda *tensors: operator(*tensors, comm)


def measure(family, shape):
    tensors, grad = inputs(family, *sizes_of(shape))
    compare(family, shape, "FLA", seqpar(family), fla(family), tensors, grad, args.repeats)


def warm(share, shares):
    compile_only(share, shares)
    torch.cuda.set_device(share % torch.cuda.device_count())
    begin = time.perf_counter()
    for family in args.families:
        for sizes in sorted({sizes_of(shape)[1:] for shape in [args.errors_shape, *args.shapes]}):
            tensors, grad = inputs(family, 256, *sizes)
            for function in passes(fla(family), tensors, grad).values():
                try:
                    function()
                except Exception as error:  # what FLA refuses
                    if share == 0:
                        print(f"{family}: {str(error).strip().splitlines()[0][:100]}", flush=True)
    if share == 0:
        print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)


def recurrence(family, q, k, v, *gates):
    """The definition, token by token."""
    beta = gates[-1] if family in DELTA else None
    decays = None if family == "delta" else gates[0].exp() if gates[0].dim() == 4 else gates[0].exp().unsqueeze(-1)
    state, outputs = torch.zeros(*q.shape[2:], v.shape[3], dtype=q.dtype, device=q.device), []
    for t in range(q.shape[1]):
        key, value = k[0, t], v[0, t]
        if decays is not None:
            state = decays[0, t].unsqueeze(-1) * state
        if beta is not None:
            value = beta[0, t].unsqueeze(-1) * (value - (key.unsqueeze(-2) @ state).squeeze(-2))
        state = state + key.unsqueeze(-1) * value.unsqueeze(-2)
        outputs.append((q[0, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs).unsqueeze(0) * q.shape[3] ** -0.5


def errors(family, shape, divisor):
    """Errors of the outputs and of the gradients of q, k, v and the gates."""
    tensors, grad = inputs(family, *sizes_of(shape), divisor)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out = recurrence(family, *exact)
    expected = [out.detach(), *torch.autograd.grad(out, exact, grad.double())]
    for name, make in (("seqpar", seqpar), ("FLA", fla)):
        found = passes(make(family), tensors, grad)
        results = [found["forward"]()]
        try:
            results += found["forward+backward"]()
        except Exception as error:  # what FLA refuses
            results += [torch.full((), float("nan"), device="cuda")] * len(tensors)
        shown = "".join(f" {((a.double() - b).norm() / b.norm()).item():9.1e}" for a, b in zip(results, expected))
        print(f"{family:<12} {shape:<18} / {divisor:<3} {name:<7}{shown}", flush=True)


def most_memory(family, shape):
    """GiB of a forward and backward beyond its inputs and outputs: PyTorch's, and a plan's own memory."""
    def beside_torch():
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    for name, make in (("seqpar", seqpar), ("FLA", fla)):
        small, small_grad = inputs(family, 256, *sizes_of(shape)[1:])
        tensors, grad = inputs(family, *sizes_of(shape))
        try:
            passes(make(family), small, small_grad)["forward+backward"]()  # loads kernels
            torch.cuda.synchronize()
            allocated, others = torch.cuda.memory_allocated(), beside_torch()
            torch.cuda.reset_peak_memory_stats()
            kept = passes(make(family), tensors, grad)["forward+backward"]()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - allocated - grad.numel() * grad.element_size()
            plan = beside_torch() - others
            print(f"{family:<12} {shape:<18} {name:<7} {(peak + plan) / 2**30:6.2f} GiB, "
                  f"of which {plan / 2**30:.2f} beside PyTorch's", flush=True)
            del kept
        except Exception as error:  # what FLA refuses
            print(f"{family:<12} {shape:<18} {name:<7} {str(error).strip().splitlines()[0][:100]}", flush=True)


tune_quickly()
if args.warm:
    warm(*args.warm)
elif args.errors:
    print(f"{'family':<12} {'shape':<18} decays      {'out':>9} {'dq':>9} {'dk':>9} {'dv':>9} {'gates':>9}")
    for one in args.families:
        for divisor in (16,) if one == "delta" else (16, 1):
            errors(one, args.errors_shape, divisor)
    for one in args.families:
        most_memory(one, args.shapes[0])
else:
    print(header("FLA"))
    for one in args.families:
        for shape in args.shapes:
            measure(one, shape)
