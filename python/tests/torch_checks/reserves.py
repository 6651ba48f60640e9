"""Data that forward passes leave for their backward passes."""

import contextlib
import ctypes
import functools
import itertools
import unittest.mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import seqpar.torch as sp
from seqpar import _abi
from seqpar.testing import reference
from seqpar.torch import _plans
from torch_checks import check, same, whole


def _moved(x):
    """A copy at an address where no reserve can be, if `x` is a reserve."""
    room = torch.empty(x.numel() + 3, dtype=x.dtype, device=x.device)
    return torch.as_strided(room, x.shape, x.stride(), 3).copy_(x) if x.dtype == torch.uint8 else x


@check
def plans_take_memory_without_pending_work(comm, seed):
    """PyTorch reuses freed memory in the order of a stream; a plan writes tables of packed sequences at once."""
    tokens = 128 * comm.size
    layout = sp.Layout("contiguous", tokens, comm.size)
    q, k, v, gate = (whole(seed + i, 1, tokens, 2, 32) for i in range(4))
    mine = [sp.shard(x, layout, comm) for x in (q, k, v, -gate.abs())]
    streams = [contextlib.nullcontext()]
    if comm.device.type == "cuda":  # a program may get the stream of workspaces, because PyTorch's streams are shared
        streams.append(torch.cuda.stream(_plans._idle_stream(comm.device)))
    for stream, bounds in zip(streams, ((0, 37, 90, tokens), (0, 38, 91, tokens))):
        expected, _ = reference.linear("gla", q, k, v, -gate.abs(), cu_seqlens=bounds)
        if comm.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        with stream:
            if comm.device.type == "cuda":
                block = torch.empty(1 << 28, dtype=torch.uint8, device=comm.device)
                torch.cuda._sleep(1 << 28)  # about 0.15 s
                block.fill_(255)
                del block
            out = sp.gla(*mine, comm, cu_seqlens=bounds)
        if comm.device.type == "cuda":
            torch.cuda.synchronize()
        same(out, sp.shard(expected, layout, comm), 200)


@check
def forward_reserves_private_memory(comm, seed):
    """Several forward passes before their backward passes, with hooks that move saved data: bitwise equal results."""
    sinks = whole(seed + 5, 4)
    xs = [whole(seed + 10 * comm.rank + i, 1, 6, 3, 4, 16) for i in range(2)]

    def run(reserve, algorithm, unpack=lambda x: x, attention=sp.attention, **options):
        leaves, outs = [x.clone().requires_grad_() for x in xs], []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            for x in leaves:
                outs.append(attention(*(y.contiguous() for y in x.unbind(2)), comm, causal=True, algorithm=algorithm,
                                      reserve=reserve, deterministic=True, **options))
        for out in outs:
            out.backward(torch.ones_like(out))
        return [*outs, *(x.grad for x in leaves)]

    q = xs[0][:, :, 0].clone().requires_grad_()
    for algorithm, some in (("ulysses", True), ("usp", True), ("megatron_sp", True), ("allgather_kv", True), ("ring", False)):
        told = [sp.explain(q, q, q, comm, causal=True, algorithm=algorithm, reserve=r)["reserveBytes"] for r in (False, True)]
        assert told[0] == 0 and (told[1] > 0) == (some and comm.size > 1), (algorithm, told)
        for options in ({}, {"sinks": sinks}):
            expected = run(False, algorithm, **options)
            for unpack in (lambda x: x, _moved):
                for one, other in zip(run(True, algorithm, unpack, **options), expected):
                    assert one.equal(other), (algorithm, unpack is _moved, list(options))
    compiled = torch.compile(sp.attention, backend="aot_eager", fullgraph=True)  # equal to eager
    for one, other in zip(run(True, "ulysses", attention=compiled), run(False, "ulysses")):
        assert one.equal(other)
    with torch.no_grad():
        one, other = (sp.attention(q, q, q, comm, algorithm="ulysses", reserve=reserve) for reserve in (True, False))
        assert one.equal(other)


class _Leaving:
    """A library with reserving plans that leave 64 bytes: each forward pass stores a number, which tells the backward
    pass the queries of that forward pass."""

    def __init__(self, library):
        self.library, self.plans, self.queries, self.found = library, set(), {}, 0

    def __getattr__(self, name):
        return getattr(self.library, name)

    def seqparAttnPlanCreate(self, plan, desc, comm):
        result = self.library.seqparAttnPlanCreate(plan, desc, comm)
        self.plans.discard(plan._obj.value)  # the address may be reused from a destroyed plan
        if desc._obj.reserve and desc._obj.training:
            self.plans.add(plan._obj.value)
        return result

    def seqparAttnPlanReserveSize(self, plan, size):
        size._obj.value = 64 if plan.value in self.plans else 0
        return 0

    def _arguments(self, kind, plan, arguments):
        """The arguments as a structure, and its queries."""
        structure = kind.from_buffer_copy(arguments) if isinstance(arguments, bytes) else arguments._obj
        assert bool(structure.reserve) == (plan.value in self.plans) and (structure.reserve or 0) % 16 == 0
        return structure, ctypes.string_at(structure.q.data, 4 * 16)

    def seqparAttnForward(self, plan, arguments, stream):
        structure, queries = self._arguments(_abi.AttnForwardArgs, plan, arguments)
        if structure.reserve:
            self.queries[len(self.queries)] = queries
            ctypes.memmove(structure.reserve, (len(self.queries) - 1).to_bytes(64, "little"), 64)
        return self.library.seqparAttnForward(plan, arguments, stream)

    def seqparAttnBackward(self, plan, arguments, stream):
        structure, queries = self._arguments(_abi.AttnBackwardArgs, plan, arguments)
        if structure.reserve:
            assert self.queries[int.from_bytes(ctypes.string_at(structure.reserve, 64), "little")] == queries
            self.found += 1
        return self.library.seqparAttnBackward(plan, arguments, stream)


def _tokens(comm):
    """Per rank. On GPUs enough for two segments: the states between them are kept."""
    return 40 if comm.device.type == "cpu" else 520


def _linear_functions(part, seed):
    """By name: a function of q, k, v and options, and whether its forward pass may leave data."""
    tokens = _tokens(part)
    gate, state = -whole(seed + 7, 1, tokens, 2, 16).abs(), whole(seed + 8, 1, 2, 16, 16)
    states = {"initial_state": state, "output_final_state": True}
    documents = {"cu_seqlens": (0, tokens * part.size), "initial_state": state}
    slow, beta = gate[..., 0].contiguous(), torch.sigmoid(whole(seed + 9, 1, tokens, 2))
    return {"gla": (lambda *t, **o: sp.gla(*t, gate, part, **o), True),
            "gla with states": (lambda *t, **o: sp.gla(*t, gate, part, **states, **o), True),
            "gla from packed states": (lambda *t, **o: sp.gla(*t, gate, part, **documents, **o), False),
            "simple_gla": (lambda *t, **o: sp.simple_gla(*t, slow, part, **o), True),
            "gated_delta_rule": (lambda *t, **o: sp.gated_delta_rule(*t, slow, beta, part, normalize=True, **o), False),
            "gated_delta_rule with reserve": (lambda *t, **o: sp.gated_delta_rule(
                *t, slow, beta, part, normalize=True, **{"reserve": True, **o}), part.device.type == "cpu"),  # not in fp32 on GPUs
            "linear_attention with its state": (lambda *t, **o: sp.linear_attention(*t, part, output_final_state=True, **o), True),
            "retention": (lambda *t, **o: sp.retention(*t, gate[0, 0, :, 0].contiguous(), part, **o), True),
            "linear_attention": (lambda *t, **o: sp.linear_attention(*t, part, **o), True)}


def _linear_passes(function, xs, unpack=lambda x: x, again=lambda function: function):
    """(outputs and gradients of forward passes that run before all backward passes, where each backward pass runs
    twice; the bytes saved as reserves)."""
    leaves, outs, sizes = [x.clone().requires_grad_() for x in xs], [], []

    def pack(x):
        sizes.extend([x.numel()] if x.dtype == torch.uint8 else [])
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        for x in leaves:
            outs.append(again(lambda x: function(*(y.contiguous() for y in x.unbind(2))))(x))
    outs = [out if isinstance(out, tuple) else (out,) for out in outs]
    for keep, out in itertools.product((True, False), outs):
        torch.autograd.backward(out, [torch.ones_like(x) for x in out], retain_graph=keep)
    return [*itertools.chain(*outs), *(x.grad for x in leaves)], sizes


def _check_linear(part, seed, leaves):
    """leaves: whether the library's forward pass does."""
    xs = [whole(seed + 10 * part.rank + i, 1, _tokens(part), 3, 2, 16) for i in range(2)]
    checkpointed = lambda function: functools.partial(checkpoint, function, use_reentrant=False)
    for name, (function, some) in _linear_functions(part, seed).items():
        without = functools.partial(function, reserve=False)
        expected, sizes = _linear_passes(without, xs)
        assert not sizes, (name, sizes)
        first, _ = _linear_passes(function, xs)  # by the operators; later calls are prepared
        for one, other in zip(first, expected):
            scale = other.abs().max()
            same(one / scale, other / scale, 100)
        for unpack, again in ((lambda x: x, None), (_moved, None), (lambda x: x.clone(), None), (lambda x: x, checkpointed)):
            found, sizes = _linear_passes(function, xs, unpack, again or (lambda function: function))
            if again is None:
                assert bool(sizes) == (leaves and some) and all(sizes), (name, sizes)
            for one, other in zip(found, first):
                assert one.equal(other), (name, unpack is _moved, again)
        with torch.no_grad():
            tensors = [y.contiguous() for y in xs[0].unbind(2)]
            for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (f(*tensors) for f in (function, without)))):
                assert one.equal(other), name
    q = xs[0][:, :, 0].contiguous()
    with FakeTensorMode() as mode:  # its tensors have no plans
        q = mode.from_tensor(q).requires_grad_()
        sp.linear_attention(q, q, q, part).sum().backward()
        assert q.grad.shape == q.shape


@check
def linear_attention_reserves_private_memory(comm, seed):
    """Forward passes before their backward passes, with hooks that move saved data: bitwise equal to passes without
    moves."""
    on_host, everyone = comm.device.type == "cpu", list(range(comm.size))
    q = whole(seed, 1, _tokens(comm), 2, 16).requires_grad_()
    for reserve, expected in ((False, False), (True, not on_host)):
        told = sp.explain(q, q, q, comm, function="gla", log_decay=-q.detach().abs(), reserve=reserve)["reserveBytes"]
        assert (told > 0) == expected, (reserve, told)
    with sp.comm(dist.new_group(everyone)) as part:
        _check_linear(part, seed, leaves=not on_host)
    if on_host:  # the library leaves nothing there
        library = _Leaving(_abi.attn_lib())
        with unittest.mock.patch.object(_abi, "attn_lib", lambda: library), sp.comm(dist.new_group(everyone)) as part:
            _check_linear(part, seed, leaves=True)
        assert library.found > 50, library.found
