"""Wrong shapes are refused before the library reads memory; shards without a layout; misuse of a Comm."""

import copy
import datetime
import functools
import pickle
import types
import unittest.mock

import torch
import torch.distributed as dist

import seqpar.torch as sp
from seqpar.torch import _define
from torch_checks import check, raises, same, whole


@check
def tensors_that_do_not_fit(comm, seed):
    x = whole(seed, 2, 4, 4, 8)
    attend = lambda *tensors, **options: sp.attention(*tensors, comm, **options)
    for k, v in ((x, x[:, :-1]), (x, x[:, :, :2]), (x[..., :4], x), (x[:1], x[:1]), (x[0], x)):
        raises(ValueError, "attention: ", attend, x, k, v)
    raises(ValueError, "v has the shape (2, 3, 4, 8), expected (2, 4, 4, 8)", attend, x, x, x[:, :-1])
    for heads in (0, 3):
        raises(ValueError, f"attention: k has {heads} heads, expected a divisor of the 4 heads of q", attend, x, *(x[:, :, :heads],) * 2)
        raises(ValueError, f"linear_attention: q has {heads} heads, expected a divisor of the 4 heads of v", sp.linear_attention,
               *(x[:, :, :heads],) * 2, x, comm)
    raises(ValueError, "got 4 queries and 3 keys, expected equally many with a layout", attend, x, x[:, :-1], x[:, :-1],
           layout=sp.Layout("contiguous", 4 * comm.size, comm.size))
    on_gpu = types.SimpleNamespace(device=torch.device("cuda", 1), name="n")
    raises(ValueError, "a tensor on cpu, expected one on cuda:1, where the communicator 'n' works, or a communicator of sp.comm(device='cpu')",
           _define.require_place, "f", on_gpu, torch.zeros(4, device="cpu"))
    elsewhere = torch.zeros(4, device="meta")
    raises(ValueError, "got a tensor on meta", attend, x, x, x, sinks=elsewhere)
    raises(ValueError, "got a tensor on meta", sp.linear_attention, x, x, x, comm, initial_state=torch.zeros(2, 4, 8, 8, device="meta"))
    for sinks in (torch.zeros(3), torch.zeros(2, 2)):
        raises(ValueError, "expected (4,), one per head", attend, x, x, x, sinks=sinks)
    for k, v in ((x[:, :-1], x), (x[:, :, :2], x), (x, x[:1]), (x[..., :4], x)):
        raises(ValueError, "linear_attention: ", sp.linear_attention, x, k, v, comm)
    raises(ValueError, "simple_gla: log_decay", sp.simple_gla, x, x, x, -x.abs(), comm)
    raises(TypeError, "expected torch.float32 or torch.bfloat16", sp.gla, x, x, x, -x.abs().half(), comm)
    state = torch.zeros(2, 3, 4)
    for transition in (None, torch.zeros(2), torch.zeros(2, 3, dtype=torch.bfloat16)):
        raises(ValueError, "all_scan: transition", sp.all_scan, state, transition, comm, op="diag")
    raises(ValueError, "all_scan: initial", sp.all_scan, state, torch.zeros(2, 3), comm, initial=torch.zeros(2, 3))
    raises(TypeError, "short_conv: bias", sp.short_conv, x[..., 0], torch.zeros(4, 3), comm, bias=torch.zeros(4).bfloat16())
    for lengths in ([5] * comm.size, [3] * comm.size):
        raises(ValueError, "which `tokens` gives rank", sp.all_gather, x, comm, tokens=lengths)
        raises(ValueError, "which `tokens` gives rank", sp.to_heads, x, comm, tokens=lengths)
        raises(ValueError, "which `tokens` gives rank", sp.halo, x, comm, left=1, tokens=lengths)
    for name in ("all_gather", "reduce_scatter", "to_heads", "halo"):
        call = {"halo": lambda *of, **named: sp.halo(*of, left=1, **named)}.get(name, getattr(sp, name))
        raises(TypeError, f"{name}: tokens: got ", call, x, comm, tokens=[float(x.shape[1])] * comm.size)
    gathered = sp.all_gather(x, comm, tokens=torch.tensor([x.shape[1]] * comm.size))
    assert gathered.equal(sp.all_gather(x, comm))
    raises(TypeError, "halo: left and right: got (1.0, 0), expected integers", sp.halo, x, comm, left=1.0)
    raises(ValueError, "merge: got the shape", sp.merge, x[0], x[0], comm)
    raises(ValueError, "expected [batch][tokens][heads][dim]", sp.to_heads, x[0], comm)
    raises(IndexError, "dim is 7", sp.all_gather, x, comm, dim=7)
    raises(IndexError, "dim is 7", sp.shard, x, sp.Layout("contiguous", 4, comm.size), comm, dim=7)
    raises(IndexError, "dim is -5", sp.unshard, x, sp.Layout("contiguous", 4 * comm.size, comm.size), comm, dim=-5)
    raises(ValueError, "got no tensors", sp.shift, (), comm)
    raises(TypeError, "shift: by: got (1.5,), expected integers", sp.shift, x, comm, by=1.5)
    raises(TypeError, "to_heads: query_heads: got ('8',)", sp.to_heads, x, comm, query_heads="8")
    raises(TypeError, "to_sequence: heads and query_heads: got ('4', 0)", sp.to_sequence, x, comm, heads="4")
    decay, beta = -x[..., 0].abs(), x[..., 0].sigmoid()
    raises(TypeError, "gla: got torch.float64", sp.gla, *(x.double(),) * 3, -x.abs(), comm)
    raises(TypeError, "simple_gla: q, k and v are ", sp.simple_gla, x, x.bfloat16(), x, decay, comm)
    raises(TypeError, "kda: initial_state is torch.bfloat16", sp.kda, x, x, x, -x.abs(), beta, comm,
           initial_state=torch.zeros(2, 4, 8, 8, dtype=torch.bfloat16))
    raises(TypeError, "attention: got torch.float64", attend, *(x.double(),) * 3)
    raises(TypeError, "attention: sinks is torch.float64", attend, x, x, x, sinks=torch.zeros(4).double())
    raises(TypeError, "mamba2: x is torch.float64", sp.mamba2, x.double(), decay, decay[0, 0], x.double(), x.double(), comm=comm)
    raises(ValueError, "halo: left and right are -1 and 0", sp.halo, x, comm, left=-1)


@check
def arguments_that_are_not_tensors(comm, seed):
    x = whole(seed, 1, 4, 2, 8)
    array, leaf, decay = x.cpu().numpy(), x.clone().requires_grad_(), -x.abs()
    for i, name in enumerate("qkv"):
        for others in (x, leaf):
            tensors = [array if j == i else others for j in range(3)]
            text = f"{name} is a numpy.ndarray, expected a torch.Tensor"
            raises(TypeError, f"attention: {text}", sp.attention, *tensors, comm)
            raises(TypeError, f"attention: {text}", sp.attention, *tensors, comm, kernel=sp.sdpa)
            raises(TypeError, f"gla: {text}", sp.gla, *tensors, decay, comm)
            raises(TypeError, f"linear_attention: {text}", sp.linear_attention, *tensors, comm)
            with torch.no_grad():
                raises(TypeError, f"attention: {text}", sp.attention, *tensors, comm)
                raises(TypeError, f"linear_attention: {text}", sp.linear_attention, *tensors, comm)
    raises(TypeError, "q is a builtins.NoneType", sp.attention, None, x, x, comm)
    for tensors in ((x, x, x), (leaf, x, x)):
        raises(TypeError, "sinks is a numpy.ndarray", sp.attention, *tensors, comm, sinks=array[0, 0, :, 0])
        raises(TypeError, "simple_gla: log_decay is a numpy.ndarray", sp.simple_gla, *tensors, -abs(array[..., 0]), comm)
        raises(TypeError, "initial_state is a builtins.list", sp.linear_attention, *tensors, comm, initial_state=[0.0])


@check
def invalid_options(comm, seed):
    x = whole(seed, 1, 4, 2, 16)  # kernels of linear attention for GPUs take multiples of 16
    attend, tokens = lambda **options: sp.attention(x, x, x, comm, **options), 4 * comm.size
    raises(TypeError, "attention() got an unexpected keyword argument 'casual'", attend, casual=True)
    raises(TypeError, "kernel, kv_layout, layout, mask, reserve, return_lse", attend, casual=True)
    raises(TypeError, "gla() got an unexpected keyword argument 'causal'", sp.gla, x, x, x, -x.abs(), comm, causal=True)
    for window in (5, (1, 2, 3)):
        raises(ValueError, "expected (left, right)", attend, window=window)
    raises(TypeError, "expected integers", attend, window=(2.5, 0))
    raises(ValueError, f"got {2 ** 64 + 3}, expected an integer of 64 bits", attend, window=(2 ** 64 + 3, 0))
    raises(ValueError, "expected an integer of 64 bits", attend, cu_seqlens=(0, 2 ** 64 + 4 * comm.size))
    raises(ValueError, "expected another number than 0", attend, scale=1e-50)
    for named in ({"inner": 2 ** 32}, {"layout": ("contiguous", 2 ** 64 + 4, 1)}, {"layout": ("contiguous", 4, 1, 1, 2 ** 32 + 1)}):
        raises(ValueError, "expected an integer of ", lambda layout=None, **rest: attend(layout=layout and sp.Layout(*layout), **rest), **named)
    raises(ValueError, "got 4294967296, expected an integer of 32 bits", sp.Layout, "pieces", 4, 1, bounds=(0, 4), owners=(2 ** 32,))
    if comm.size > 1:
        decay = -x[..., 0].abs().to(torch.bfloat16 if comm.rank else torch.float32)
        raises(ValueError, "rank 1 has gates", sp.simple_gla, x, x, x, decay, comm)
    raises(ValueError, "expected another number than 0", attend, scale=0.0)
    for other, text in (("x", "'x'"), ([0.5], "[0.5]"), (1j, "1j"), (x[0, 0, 0], "a Tensor of the shape (16,)")):
        for name in ("scale", "softcap"):
            raises(TypeError, f"attention: {name}: got {text}, expected a number", attend, **{name: other})
        raises(TypeError, f"linear_attention: scale: got {text}, expected a number", sp.linear_attention, x, x, x, comm, scale=other)
    for name in ("causal", "deterministic", "reserve"):
        raises(TypeError, f"attention: {name}: got 'no', expected True or False", attend, **{name: "no"})
    raises(TypeError, "attention: causal: got (False,), expected True or False", attend, kernel="sdpa", causal=(False,))
    raises(TypeError, "attention: kernel: got 3, expected a function or one of sdpa", attend, kernel=3)
    for algorithm in ("ulysses", "allgather_kv"):
        by = functools.partial(attend, kernel="sdpa", algorithm=algorithm, causal=True)
        for bounds in ((0, 3), (1, tokens), (0, tokens + 4), (-3, tokens), (0, 3, 2, tokens)):
            raises(ValueError, f"attention: cu_seqlens is {bounds}, expected ascending bounds from 0 to {tokens}", by, cu_seqlens=bounds)
        raises(ValueError, "attention: got cu_seqlens and a batch of 2, expected 1", sp.attention, *(x.repeat(2, 1, 1, 1),) * 3, comm,
               kernel="sdpa", algorithm=algorithm, cu_seqlens=(0, tokens))
        for window, text in ((5, "expected (left, right)"), ((3,), "expected (left, right)"), ((-2, 0), "expected numbers of tokens")):
            raises(ValueError, text, by, window=window)
        raises(TypeError, "attention() got an unexpected keyword argument 'casual'", by, casual=True)
        for name, value in {"wire": torch.bfloat16, "reserve": True, "deterministic": True, "inner": 1, "mask": sp.Mask.shared_prefix(2, [2])}.items():
            raises(ValueError, f"attention: {name} is ", by, **{name: value})
        same(by(wire=None, reserve=False, deterministic=False, inner=0, mask=None, kv_layout=None), attend(causal=True), 40)
        raises(ValueError, "attention: k has the shape", sp.attention, x, x[..., :8], x, comm, kernel="sdpa", algorithm=algorithm)
    for rank in (-1, comm.size):
        raises(ValueError, f"Layout: rank is {rank}, expected 0 to ", sp.Layout("zigzag", tokens, comm.size).positions, rank)
    raises(ValueError, "expected another number than 0", sp.linear_attention, x, x, x, comm, scale=0)
    raises(TypeError, "expected integers", attend, cu_seqlens=(0.0, float(tokens)))
    attend(cu_seqlens=(0, tokens), window=(2, 0), inner=1)  # equal to refused values, yet valid
    sp.linear_attention(x, x, x, comm, cu_seqlens=(0, tokens))
    for changed in ({"cu_seqlens": (0, float(tokens))}, {"window": (2.0, 0)}, {"inner": 1.0}):
        raises(TypeError, "expected integers", attend, **{"cu_seqlens": (0, tokens), "window": (2, 0), "inner": 1, **changed})
    raises(TypeError, "expected integers", sp.linear_attention, x, x, x, comm, cu_seqlens=(0.0, tokens))
    raises(ValueError, "expected at least 2", attend, cu_seqlens=())
    raises(TypeError, "expected a seqpar.torch.Layout", attend, layout="zigzag")
    raises(TypeError, "layout: got a Tensor of the shape (1, 4, 2, 16), expected a seqpar.torch.Layout", attend, layout=x)


@check
def other_values_than_communicators(comm, seed):
    """Every function with a parameter `comm` names the function and the type of another value."""
    x, layout, places = whole(seed, 1, 4, 2, 8), sp.Layout("contiguous", 4 * comm.size, comm.size), torch.arange(4)[None]
    lse = x[..., 0].contiguous()
    calls = {
        "attention": (x, x, x), "explain": (x, x, x), "linear_attention": (x, x, x), "all_gather": (x,), "reduce_scatter": (x,),
        "to_heads": (x,), "to_sequence": (x,), "halo": (x,), "shift": (x,), "merge": (x, lse), "token_mean": (lse, lse > 0),
        "all_reduce_lse": (x, lse), "reduce_scatter_lse": (x, lse), "decode": (x, lambda q: (q, lse)), "cached_attention": (x, x, x),
        "redistribute": (x, layout, layout), "shard": (x, layout), "unshard": (x, layout), "positions": (layout,),
        "shard_batch": (places, layout), "all_scan": (x[0], x[0, :, :, 0]), "start_halo": (x,), "short_conv": (x.flatten(2), x[0, :, 0]),
        "mamba2": (x, x[..., 0], x[0, 0, :, 0], x, x), "gated_delta_product": (x, x, x, None, x[..., 0], 1)}
    options = {"cached_attention": {"q_positions": places, "k_positions": places}, "to_sequence": {"heads": 2}}
    for name, tensors in calls.items():
        for other in (None, comm.group, comm.name):
            text = f"comm: got {type(other).__name__}, expected a seqpar.torch.Comm: create it with seqpar.torch.comm(group)"
            raises(TypeError, text, getattr(sp, name), *tensors, comm=other, **options.get(name, {}))
    raises(TypeError, "expected a seqpar.torch.Comm", lambda: next(sp.ring(x, None)))


@check
def communicators_are_created_from_groups(comm, seed):
    for other in (0, "cp", [0, 1], dist.ReduceOp.SUM):
        raises(TypeError, f"comm: got {type(other).__name__}, expected a ProcessGroup", sp.comm, other)
    first = dist.new_group([0])
    if comm.rank > 0:
        raises(ValueError, "comm: this rank is not in the group", sp.comm, first)
    group = dist.new_group(list(range(comm.size)))
    for timeout in ("5", (5,), 1j):
        raises(TypeError, f"comm: timeout: got {timeout!r}, expected a number of seconds", sp.comm, group, timeout=timeout)
    for timeout in (-1, float("nan"), float("inf"), 2 ** 32 / 1000):  # 2^32 ms were 0 in 32 bits, which is no timeout
        raises(ValueError, f"comm: timeout: got {timeout!r}, expected 0 to", sp.comm, group, timeout=timeout)
    raises(ValueError, "shrink: timeout: got -1", comm.shrink, timeout=-1)
    with sp.comm(group, timeout=datetime.timedelta(minutes=1)) as one:
        assert one.size == comm.size


@check
def other_values_than_tensors_and_kernels(comm, seed):
    x, places = whole(seed, 1, 4, 2, 8), torch.arange(4)[None]
    lse, array = x[..., 0].contiguous(), x.numpy(force=True)
    calls = {"all_gather": (), "to_heads": (), "halo": (), "all_scan": (None,), "short_conv": (x[0, :, 0],), "decode": (lambda q: (q, lse),)}
    for name, rest in calls.items():
        for other, kind in ((array, "numpy.ndarray"), (None, "builtins.NoneType"), (lse.tolist(), "builtins.list")):
            raises(TypeError, f"{name}: got a {kind}, expected a torch.Tensor", getattr(sp, name), other, *rest, comm)
    for kernel, text in ((lambda q: (q, lse, None), "returned 3 results, expected (out, lse)"), (lambda q: None, "returned a NoneType")):
        raises(ValueError, text, sp.decode, x, kernel, comm)
    raises(TypeError, "local_kernel is a NoneType, expected a function", sp.decode, x, None, comm)
    raises(ValueError, "k_positions is None", sp.cached_attention, x, x, x, comm, q_positions=places, k_positions=None)
    raises(ValueError, "algorithm: got None, expected one of auto, local", sp.attention, x, x, x, comm, algorithm=None)
    raises(ValueError, "algorithm: got None, expected one of auto, local", sp.gla, x, x, x, -x.abs(), comm, algorithm=None)
    raises(ValueError, "explain: got kernel, expected none", sp.explain, x, x, x, comm, kernel="sdpa")


@check
def shards_without_a_layout_are_contiguous(comm, seed):
    straight = sp.Layout("contiguous", 4 * comm.size, comm.size)
    q, k, v = (sp.shard(whole(seed + i, 1, straight.tokens, 4, 8), straight, comm) for i in range(3))
    expected = sp.attention(q, k, v, comm, causal=True, layout=straight, algorithm="ring")
    for algorithm in ("auto", "burst", "usp", "mesh", "ring"):
        same(sp.attention(q, k, v, comm, causal=True, algorithm=algorithm), expected, 20)


@check
def strides_of_states_and_windows(comm, seed):
    """A state that is a transposed view has its gradient in its own memory order; rows that overlap are copied."""
    q, k, v = (whole(seed + i, 2, 4, 2, 16) for i in range(3))
    found = []
    for transposed in (False, True):
        leaf = whole(seed + 5, 2, 2, 16, 16).requires_grad_()
        state = leaf.transpose(2, 3) if transposed else leaf.transpose(2, 3).contiguous()
        sp.linear_attention(q, k, v, comm, initial_state=state).square().sum().backward()
        found.append(leaf.grad)
    same(found[1], found[0])
    rows = whole(seed, 2, 4, 12).unfold(2, 8, 4)
    assert sp.attention(rows, rows, rows, comm).equal(sp.attention(*(rows.contiguous(),) * 3, comm))


@check
def a_communicator_without_a_process_group(comm, seed):
    with unittest.mock.patch.object(torch.distributed, "is_initialized", lambda: False):
        if comm.size > 1:
            raises(RuntimeError, f"WORLD_SIZE is {comm.size} and there is no process group", sp.comm)
        one = sp.comm(single=True)
        assert one is sp.comm(single=True)
    assert one is sp.comm(single=True) and (one.rank, one.size) == (0, 1) and sp.comm() is comm
    raises(ValueError, "single=True", sp.comm, comm.group, single=True)
    x = whole(seed, 1, 4, 2, 8)
    same(sp.attention(x, x, x, one, causal=True), torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2),) * 3, is_causal=True).transpose(1, 2), 20)
    one.close()


@check
def modules_with_a_communicator(comm, seed):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.comm, self.weight = comm, torch.nn.Parameter(torch.ones(3))

    module = copy.deepcopy(Module())
    assert module.comm is comm and copy.copy(comm) is comm
    raises(TypeError, "cannot be pickled", pickle.dumps, comm)
