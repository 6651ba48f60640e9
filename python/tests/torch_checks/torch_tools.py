"""Autocast, the FLOP counter, transforms of torch.func, DTensor; and errors on ranks that disagree."""

import warnings

import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import seqpar.torch as sp
from torch_checks import Skip, check, raises, same, whole


@check
def autocast_casts_as_for_sdpa(comm, seed):
    parts = [whole(seed + i, 1, 6, 4, 16).requires_grad_() for i in range(3)]
    decay, weight = -whole(seed + 3, 1, 6, 4, 16).abs(), whole(seed + 4, 64, 3).requires_grad_()
    calls = {"attention": lambda q, k, v: sp.attention(q, k, v, comm, causal=True, algorithm="ring"),
             "kernel": lambda q, k, v: sp.attention(q, k, v, comm, causal=True, kernel=sp.sdpa),
             "gla": lambda q, k, v: sp.gla(q, k, v, decay, comm), "linear_attention": lambda q, k, v: sp.linear_attention(q, k, v, comm),
             "short_conv": lambda q, k, v: sp.short_conv(q.flatten(2), weight, comm)}
    for name, call in calls.items():
        for mixed in (False, True):
            tensors = [x.bfloat16() if mixed and i == 1 else x for i, x in enumerate(parts)]
            for _ in range(2):  # also prepared calls
                with torch.autocast(comm.device.type, torch.bfloat16):
                    out = call(*tensors)
                assert out.dtype == torch.bfloat16, (name, out.dtype)
            cast = weight.bfloat16() if name == "short_conv" else None
            expected = (sp.short_conv(parts[0].bfloat16().flatten(2), cast, comm) if cast is not None else
                        call(*(x.bfloat16() for x in parts)))
            assert out.equal(expected), name
            grad, = torch.autograd.grad(out.float().square().sum(), parts[0])
            assert grad.dtype == torch.float32 and grad.abs().max() > 0, name
            with torch.autocast(comm.device.type, enabled=False):
                assert call(*parts).dtype == torch.float32


@check
def the_flop_counter_counts(comm, seed):
    q, k, v = (whole(seed + i, 2, 4, heads, 8).requires_grad_() for i, heads in enumerate((4, 2, 2)))
    tokens = 4 * comm.size

    def count(function, backward=True):
        with FlopCounterMode(display=False) as mode:
            out = function()
            if backward:
                out.sum().backward()
        return mode.get_total_flops()

    forward = 2 * 2 * 4 * 4 * tokens * 16
    for options in ({}, {"reserve": True, "algorithm": "ulysses"}, {"layout": sp.Layout("zigzag", tokens, comm.size)}):
        assert count(lambda: sp.attention(q, k, v, comm, causal=True, **options), False) == forward, options
        assert count(lambda: sp.attention(q, k, v, comm, causal=True, **options)) == forward + forward * 5 // 2, options
    x = [torch.randn(2, 4, tokens, 8, requires_grad=True) for _ in range(3)]  # PyTorch's own count of the whole, for equal heads
    theirs = count(lambda: torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True))
    assert theirs == comm.size * (forward + forward * 5 // 2), (theirs, forward)
    bounds, layout = (0, 1, 3, tokens), sp.Layout("contiguous", tokens, comm.size)
    packed = torch.tensor([count(lambda: sp.attention(*(t[:1] for t in (q, k, v)), comm, layout=layout, cu_seqlens=bounds), False)])
    dist.all_reduce(packed)
    assert packed == 2 * 4 * 16 * (1 + 4 + (tokens - 3) ** 2), packed
    mask = sp.Mask.shared_prefix(1, [tokens - 2, 1])
    for shards in (sp.solve_layout(mask, comm.size), layout):
        mine = [whole(seed + i, 1, shards.lengths[comm.rank], heads, 8) for i, heads in enumerate((4, 2, 2))]
        masked = torch.tensor([count(lambda: sp.attention(*mine, comm, layout=shards, mask=mask), False)])
        dist.all_reduce(masked)
        assert masked == 2 * 4 * 16 * int(mask.dense().sum()), masked
    assert count(lambda: sp.linear_attention(q, q, q, comm)) == (2 + 5) * 2 * 2 * 4 * 4 * 64
    y, weight = whole(seed, 2, 4, 6).requires_grad_(), whole(seed + 1, 6, 3)
    assert count(lambda: sp.short_conv(y, weight, comm)) == (2 + 4) * 2 * 4 * 6 * 3


@check
def traces_of_torch_jit(comm, seed):
    """torch.jit.trace records the calls, with and without gradients."""
    x, y = (whole(seed + i, 1, 4, 2 * comm.size, 8) for i in range(2))
    weight = whole(seed, 16 * comm.size, 3)
    calls = {"all_gather": lambda x: sp.all_gather(x, comm), "to_heads": lambda x: sp.to_heads(x, comm), "halo": lambda x: sp.halo(x, comm, left=1)[0],
             "short_conv": lambda x: sp.short_conv(x.flatten(2), weight, comm), "shift": lambda x: sp.shift(x, comm),
             "all_scan": lambda x: sp.all_scan(x[0], None, comm, op="sum")[1], "attention": lambda x: sp.attention(x, x, x, comm, causal=True),
             "gla": lambda x: sp.gla(x, x, x, -x.abs(), comm)}
    for call in calls.values():
        for gradient in (False, True):
            expected = call(y)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of constants in the trace, and that it is deprecated
                traced = torch.jit.trace(call, x.clone().requires_grad_(gradient), check_trace=False)
            same(traced(y), expected)


@check
def transforms_are_refused_by_name(comm, seed):
    x = whole(seed, 2, 4, 2, 8)
    weight = whole(seed, 2, 3)
    calls = {"attention": lambda x: sp.attention(x, x, x, comm), "linear_attention": lambda x: sp.linear_attention(x, x, x, comm),
             "all_gather": lambda x: sp.all_gather(x, comm), "halo": lambda x: sp.halo(x, comm, left=1)[0],
             "shift": lambda x: sp.shift(x, comm), "short_conv": lambda x: sp.short_conv(x[..., 0], weight, comm)}
    mesh = dist.device_mesh.init_device_mesh(comm.device.type, (comm.size,))
    sharded = torch.distributed.tensor.DTensor.from_local(x, mesh, [torch.distributed.tensor.Shard(1)])
    for name, call in calls.items():
        raises(NotImplementedError, f"seqpar.torch.{name} is inside torch.vmap", torch.vmap(lambda x: call(x[None])), x)
        raises(NotImplementedError, f"seqpar.torch.{name} is inside", torch.func.jvp, call, (x,), (x,))
        raises(NotImplementedError, f"seqpar.torch.{name} got a DTensor", call, sharded)
        with forward_ad.dual_level():
            raises(NotImplementedError, f"seqpar.torch.{name} is inside forward-mode", call, forward_ad.make_dual(x, x))
    raises(NotImplementedError, "seqpar.torch.simple_gla got a DTensor", sp.simple_gla, *(sharded,) * 3, x[..., 0], comm)
    compiled = torch.compile(lambda x: torch.func.jvp(calls["all_gather"], (x,), (x,)), backend="eager")
    raises(NotImplementedError, "seqpar.torch.all_gather is inside", compiled, x)
    same(sp.all_gather(x, comm, dim=0), x.repeat(comm.size, 1, 1, 1))  # all ranks refused equally


@check
def ranks_that_disagree_get_an_error(comm, seed):
    if comm.size == 1:
        raise Skip("one rank")
    x, last = whole(seed, 1, 4, 2, 8), comm.rank == comm.size - 1
    rank = comm.size - 1
    raises(ValueError, f"halo: the ranks disagree: rank {rank} has left 2, rank 0 has 1. Expected", sp.halo, x, comm, left=1 + last)
    raises(ValueError, f"rank {rank} has tokens", sp.halo, x[:, :4 - last], comm, left=1)
    raises(ValueError, f"shift: the ranks disagree: rank {rank} has by 0, rank 0 has 1", sp.shift, x, comm, by=1 - int(last))
    raises(ValueError, f"rank {rank} has shape", sp.all_scan, x[0, :, :, :8 - last].contiguous(), None, comm, op="sum")
    raises(ValueError, f"rank {rank} has width 4, rank 0 has 3", sp.short_conv, x.flatten(2), whole(seed, 16, 3 + last), comm)
    source, target = (sp.Layout(kind, 4 * comm.size, comm.size) for kind in ("contiguous", "zigzag"))
    raises(ValueError, f"redistribute: the ranks disagree: rank {rank} has target", sp.redistribute, x, source, source if last else target,
           comm)
    raises(ValueError, f"different plans: rank {rank} has causal none, rank 0 has 1. Expected", sp.attention, x, x, x, comm, causal=not last)
    raises(ValueError, f"rank {rank} has head_dim 7, rank 0 has 8", sp.attention, *(x[..., :8 - last],) * 3, comm)
    for name, other in (("causal", False), ("window", (2, 0)), ("scale", 0.5), ("cu_seqlens", (0, 3, 4 * comm.size)), ("layout", target)):
        for algorithm in ("ulysses", "allgather_kv"):
            options = {"causal": True, "layout": source, "kernel": "sdpa", "algorithm": algorithm}
            raises(ValueError, f"attention: the ranks disagree: rank {rank} has {name} ", sp.attention, x, x, x, comm,
                   **{**options, "scale": 0.3, **({name: other} if last else {})})
    moved = {"all_gather": lambda x: sp.all_gather(x, comm), "all_gather, started": lambda x: sp.start_all_gather(x, comm).wait(),
             "reduce_scatter": lambda x: sp.reduce_scatter(torch.cat([x] * comm.size, 1), comm),
             "redistribute: tensor 1 of 2": lambda other: sp.redistribute((x, other), source, target, comm)[1]}
    for i, (name, call) in enumerate(moved.items()):
        odd = whole(seed, 1, 4, 22, 26 + i)  # shapes that were not compared before
        for other in (odd.flatten(2), odd.view(1, 4, 11, -1), odd.view(torch.int32)):  # as many bytes
            if other.dtype == x.dtype or name != "reduce_scatter":
                raises(ValueError, f"{name.partition(',')[0]}: the ranks disagree: rank {rank} has ", call, other if last else odd)
        assert call(odd).shape[2:] == odd.shape[2:]
    for _ in range(2):
        assert sp.halo(x, comm, left=1)[0].shape[1] == 1
    raises(ValueError, "expected one of contiguous", sp.context_parallel(
        comm, buffers=[torch.arange(8)], buffer_seq_dims=[0], layout=source).__enter__)
