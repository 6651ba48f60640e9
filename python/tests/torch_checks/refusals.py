"""An error on one rank ends the calls of the ranks that wait for it; errors on all ranks end nothing."""

import ctypes
import random
import types
import unittest.mock

import torch
import torch.distributed as dist

import seqpar.torch as sp
from seqpar.torch import _agreement
from torch_checks import Skip, check, lost, raises, same, whole


def _apart(comm):
    """Another communicator of all ranks: a check may lose it."""
    return sp.comm(dist.new_group(list(range(comm.size))))


def until_lost(comm):
    """Waits for the notification that another rank has failed."""
    state = ctypes.c_int()
    while not state.value:
        comm.run("seqparCommGetAsyncError", comm.handle, ctypes.byref(state))
    comm.fail(state.value)


@check
def an_error_on_one_rank_reaches_the_others(comm, seed):
    if comm.size == 1:
        raise Skip("one rank")
    x = whole(seed, 1, 4, 1 + comm.size, 8)  # each rank has heads for a kernel
    def kernel(function):
        return lambda c: sp.attention(x, x, x, c, causal=True, kernel=function)

    def failing_kernel(q, k, v, call):
        raise ArithmeticError("in the middle of a call")

    calls = {  # the call of one rank, the error it gets, the call of the others
        "attention": (lambda c: sp.attention(x, x[..., :4], x, c), "k has the shape", lambda c: sp.attention(x, x, x, c)),
        "kernel": (kernel(failing_kernel), "in the middle of a call", kernel(sp.sdpa)),
        "gla": (lambda c: sp.gla(x, x, x, x[..., 0], c), "log_decay has the shape", lambda c: sp.gla(x, x, x, -x.abs(), c)),
        "known gla": (lambda c: sp.gla(x, x, x, x[..., 0], c), "log_decay has the shape", lambda c: sp.gla(x, x, x, -x.abs(), c)),
        "tokens": (lambda c: sp.all_gather(x, c, tokens=[5] * c.size), "which `tokens` gives rank",
                   lambda c: sp.all_gather(x, c)),
        "start": (lambda c: sp.start_to_heads(x[0], c), "expected [batch][tokens][heads][dim]",
                  lambda c: sp.start_to_heads(x, c).wait()),
        "library": (lambda c: sp.all_scan(x[0], None, c, op="sum", flags=[9]), "flags",
                    lambda c: sp.all_scan(x[0], None, c, op="sum", flags=[0])),
        "ring": (lambda c: list(sp.ring(None, c)), "ring: got no tensors", lambda c: list(sp.ring(x, c))),
        "operator": (lambda c: torch.ops.seqpar.all_gather(x, 1, [5] * c.size, c.name), "which `tokens` gives rank",
                     lambda c: torch.ops.seqpar.all_gather(x, 1, [], c.name)),
        "others": (lambda c: sp.attention(x[0], x, x, c), "q has the shape", lambda c: sp.shift(x, c))}
    for i, (name, (wrong, text, right)) in enumerate(calls.items()):
        one, failing = _apart(comm), (seed + i) % comm.size
        for _ in range(2):
            same(sp.all_gather(x, one, dim=0), x.expand(comm.size, *x.shape[1:]))
            if name.startswith("known"):  # has a plan, so that nothing is compared before its kernels
                right(one)
        dist.barrier()  # an error ends calls that other ranks have not finished
        if comm.rank == failing:
            try:
                wrong(one)
            except Exception as error:
                assert text in str(error), (name, error)
            else:
                raise AssertionError(f"{name} raised nothing")
        try:
            if comm.rank != failing:
                right(one)
            until_lost(one)  # a rank that needs no data of the failing one has finished the call
        except sp.Error as error:
            assert error.result == "RemoteError" and f"rank {failing} (" in str(error) and text in str(error), (name, error)
        else:
            raise AssertionError(f"{name}: no error")
        lost(one)


@check
def errors_on_all_ranks_leave_the_communicator(comm, seed):
    x = whole(seed, 1, 4, 2, 8)
    choose = random.Random(seed)
    one = _apart(comm)
    errors = (lambda: sp.attention(x, x[..., :4], x, one), lambda: sp.all_gather(x, one, tokens=[5] * comm.size),
              lambda: sp.attention(x, x, x, one, algorithm="ring", scale=0), lambda: sp.to_heads(x[0], one),
              lambda: sp.attention(x, x, x, one, algorithm="zigzag", layout=sp.Layout("contiguous", 4 * comm.size, comm.size)))
    for _ in range(60):
        wrong = choose.choice(errors)
        try:
            wrong()
        except (ValueError, sp.Error):
            pass
        if choose.random() < 0.7:
            same(sp.all_gather(x, one, dim=0), x.expand(comm.size, *x.shape[1:]))
    one.close()


@check
def an_exception_leaves_a_block_with_a_communicator(comm, seed):
    if comm.size == 1:
        raise Skip("one rank")
    x, failing = whole(seed, 1, 4, 2, 8), seed % comm.size
    try:
        with _apart(comm) as one:
            same(sp.all_gather(x, one, dim=0), x.expand(comm.size, *x.shape[1:]))
            if comm.rank == failing:
                raise KeyError("no such document")
            for _ in range(3):
                sp.all_gather(x, one)
    except KeyError:
        assert comm.rank == failing
    except sp.Error as error:
        assert comm.rank != failing and "KeyError: 'no such document'" in str(error) and f"rank {failing}" in str(error), error
    assert not one._handle


@check
def a_mask_on_one_rank_inside_context_parallel(comm, seed):
    """As models of transformers pass one if positions are not consecutive: in a zigzag layout on some ranks."""
    if comm.size == 1:
        raise Skip("one rank")
    one, positions = _apart(comm), torch.arange(4 * comm.size)
    q = whole(seed, 1, 2, 4, 8)

    def run():
        with sp.context_parallel(one, buffers=[positions], buffer_seq_dims=[0]):
            mask = torch.ones(4, 4, dtype=torch.bool) if comm.rank == 0 else None
            for _ in range(3):
                torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=mask is None)

    raises(ValueError if comm.rank == 0 else sp.Error, "attn_mask is given", run)
    assert len(positions) == 4 * comm.size
    lost(one)


@check
def captures_need_an_earlier_call(comm, seed):
    gpu = types.SimpleNamespace(device=torch.device("cuda", 0), size=2)
    with unittest.mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
        raises(RuntimeError, "once before the capture", lambda: _agreement.require_agreement(gpu, "attention", {}, "equal arguments"))


@check
def second_derivatives_are_refused(comm, seed):
    x = whole(seed, 1, 4, 2 * comm.size, 8)
    calls = {"attention": lambda x: sp.attention(x, x, x, comm, causal=True), "gla": lambda x: sp.gla(x, x, x, -x.square(), comm),
             "all_gather": lambda x: sp.all_gather(x, comm), "halo": lambda x: torch.cat(sp.halo(x, comm, left=1, right=1), 1),
             "all_scan": lambda x: sp.all_scan(x[0], -x[0].square().mean(2), comm, op="diag")[0],
             "short_conv": lambda x: sp.short_conv(x.flatten(2), x[0, 0].reshape(-1, 1).expand(-1, 3), comm)}
    for name, function in calls.items():
        first = x.clone().requires_grad_()
        function(first).sin().sum().backward()
        for penalty in (lambda loss, g: loss + g.square().sum(), lambda loss, g: g.square().sum()):
            for of in (lambda loss, y: torch.autograd.grad(loss, y), lambda loss, y: loss.backward()):
                y = x.clone().requires_grad_()
                loss = function(y).sin().sum()
                gradient, = torch.autograd.grad(loss, y, create_graph=True)
                same(gradient, first.grad, 8)
                raises(NotImplementedError, "has first derivatives only", of, penalty(loss, gradient), y)
        titles = {"attention": "Attention", "gla": "LinearAttention"}
        if name in titles:  # depend on their inputs, also if the loss is linear
            y = x.clone().requires_grad_()
            gradient, = torch.autograd.grad(function(y).sum(), y, create_graph=True)
            raises(NotImplementedError, f"{titles[name]} has first derivatives only", gradient.square().sum().backward)


@check
def batches_of_gradients_are_refused(comm, seed):
    """is_grads_batched of torch.autograd.grad(), at the first call with these arguments and at a later one."""
    x = whole(seed, 1, 4, 2 * comm.size, 8)
    calls = {"attention": lambda x: sp.attention(x, x, x, comm), "gla": lambda x: sp.gla(x, x, x, -x.abs(), comm),
             "all_gather": lambda x: sp.all_gather(x, comm), "short_conv": lambda x: sp.short_conv(x.flatten(2), x[0, 0].reshape(-1, 1), comm)}
    for _ in range(3):
        for function in calls.values():
            y = x.clone().requires_grad_()
            out = function(y)
            raises(NotImplementedError, "without is_grads_batched", torch.autograd.grad, out, y, torch.ones(2, *out.shape), is_grads_batched=True)


@check
def tensors_without_memory_are_refused(comm, seed):
    x = torch.zeros(1, 4, comm.size, 8, device="meta")
    raises(ValueError, "got a tensor on meta", sp.attention, x, x, x, comm)
    dense = whole(seed, 1, 4, comm.size, 12)
    raises(NotImplementedError, "got a nested or sparse tensor, expected a dense one", sp.attention, dense.to_sparse(), dense, dense, comm)
    raises(NotImplementedError, "seqpar.torch.gla got a nested or sparse tensor", sp.gla, dense, dense, torch.nested.nested_tensor([dense[0]]), dense, comm)
    raises(ValueError, "v has the shape (1, 4, 1, 0), expected a last dimension of at least 1", sp.gla, *(dense[:, :, :1],) * 2, dense[:, :, :1, :0],
           -dense[:, :, :1].abs(), comm)
    raises(ValueError, "got a tensor on meta", sp.gla, x, x, x, x, comm)
    raises(ValueError, "got a tensor on meta", sp.short_conv, x.flatten(2), x[0, 0].reshape(-1, 1), comm)


@check
def new_arguments_on_one_rank(comm, seed):
    """A rank compares new arguments while the other ranks run a call that they know: all of them get an error."""
    if comm.size == 1:
        raise Skip("one rank")
    one = sp.comm(dist.new_group(list(range(comm.size))), timeout=5)
    x, other = (whole(seed, 1, tokens, comm.size, 64, dtype=torch.bfloat16) for tokens in (64, 72))
    for _ in range(2):
        sp.attention(x, x, x, one, algorithm="ring")
    dist.barrier()
    mine = other if comm.rank == seed % comm.size else x
    try:
        sp.attention(mine, mine, mine, one, algorithm="ring")
        until_lost(one)
    except (sp.Error, RuntimeError) as error:
        texts = ("disagree", "is in another call", "failed", "refused a call", "waited")
        assert any(text in str(error) for text in texts), error
    else:
        raise AssertionError("no error")
    lost(one)
