"""PyTorch's use of the operators: opcheck, compiled graphs, checkpointing, groups, errors."""

import os
import pickle
import tempfile
import unittest.mock

import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import seqpar.torch as sp
import seqpar.torch._positions  # registers the operator of models of transformers
from torch_checks import Skip, check, raises, same, whole


@check
def operators_are_registered_well(comm, seed):
    ops, n, tests = torch.ops.seqpar, comm.name, ("test_schema", "test_faketensor")

    looked_at = set()

    def opcheck(op, *arguments):
        torch.library.opcheck(op.default, arguments, test_utils=tests)
        looked_at.add(str(op))

    size = comm.size
    x = whole(seed, 2, 3, 4, 16)
    opcheck(ops.to_heads, x, 4, [], n)
    opcheck(ops.to_heads, x.transpose(1, 2).contiguous().transpose(1, 2), 4, [3] * size, n)
    opcheck(ops.to_sequence, sp.to_heads(x, comm), 4, 0, [], n)
    opcheck(ops.all_gather, x, 1, [], n)
    opcheck(ops.reduce_scatter, whole(seed, 2, 2 * size), 1, [], n)
    opcheck(ops.halo, x, 1, 2, 1, False, [], n)
    opcheck(ops.halo_adjoint, x[:, :2], x[:, :1], 1, 3, False, [], n)
    keys = (sp.Layout("contiguous", 3 * size, size).key, sp.Layout("zigzag", 3 * size, size).key)
    opcheck(ops.redistribute, [x, x[0:1].to(torch.int64)], *keys, 1, n)
    opcheck(ops.shift, [x, x[0]], 1, n)
    opcheck(ops.merge, whole(seed, 1, 2 * size, 4, 3), whole(seed, 1, 4, 2 * size), [], n)
    for merge in (ops.all_reduce_lse, ops.reduce_scatter_lse):
        opcheck(merge, whole(seed, 2, 4, 3), whole(seed, 2, 4), torch.tensor([2], dtype=torch.int32, device=x.device), n)
    weight = whole(seed, 4, 3)
    opcheck(ops.short_conv, x[..., 0], weight, None, True, [], [], n)
    opcheck(ops.short_conv_backward, x[..., 0], x[..., 1], weight, weight[:, 0], False, [], [], n)
    opcheck(ops.layout_order, x, keys[1], True)
    opcheck(ops.token_runs, x, [3, 0], [2, 1], 3)
    opcheck(ops.documents_of_tokens, x, [3, 0, 2], [4, 0, 4], [0, 0, 1])
    opcheck(ops.copied, x.transpose(1, 2), list(x.transpose(1, 2).stride()))
    opcheck(ops.check_positions, sp.Layout.from_key(keys[1]).positions(comm.rank, device=x.device), x, keys[1], "", n)
    scan = (x[0], x[0, :, :, 0].contiguous(), None, "diag", False, "linear", "float32", [], "auto")
    for name, *arguments in (("to_heads", x, 4, []), ("to_sequence", sp.to_heads(x, comm), 4, 0, []), ("all_gather", x, 1, []),
                             ("reduce_scatter", whole(seed, 2, 2 * size), 1, []), ("halo", x, 1, 2, 1, False, []),
                             ("redistribute", [x], *keys, 1), ("shift", [x], 1), ("all_scan", *scan)):
        start, wait = (getattr(ops, f"{half}_{name}") for half in ("start", "wait"))
        opcheck(start, *arguments, n)
        for test in tests:  # waits once for each Work
            torch.library.opcheck(wait.default, (start(*arguments, n), *arguments, n), test_utils=test)
        looked_at.add(str(wait))
    opcheck(ops.all_scan, *scan, n)
    spec = "family=softmax;training=1;algorithm=ring;causal=1"
    out, lse, reserve = ops.attention(x, x, x, None, spec, n)
    opcheck(ops.attention, x, x[:, :, :2], x[:, :, :2], None, spec, n)
    opcheck(ops.attention_backward, x, x, x, x, out, lse, None, reserve, spec, n)
    spec = "family=softmax;training=1;algorithm=ulysses;causal=1;reserve=1"
    out, lse, reserve = ops.attention(x, x, x, None, spec, n)
    opcheck(ops.attention, x, x, x, None, spec, n)
    opcheck(ops.attention_backward, x, x, x, x, out, lse, None, reserve, spec, n)
    spec = "family=scalar;training=1;algorithm=zeco"
    gate = -x[..., 0].abs()
    opcheck(ops.linear_attention, x, x, x, [gate], None, spec, n)
    _, saved, _, reserve = ops.linear_attention(x, x, x, [gate], None, spec, n)
    opcheck(ops.linear_attention_backward, x, None, x, x, x, [gate], None, saved, reserve, spec, n)
    spec = "family=scalar;training=1;algorithm=zeco;reserve=1"
    _, saved, _, reserve = ops.linear_attention(x, x, x, [gate], None, spec, n)
    opcheck(ops.linear_attention, x, x, x, [gate], None, spec, n)
    opcheck(ops.linear_attention_backward, x, None, x, x, x, [gate], None, saved, reserve, spec, n)
    registered = {name.name.replace("::", ".") for name in torch._C._jit_get_all_schemas() if name.name.startswith("seqpar::")}
    assert looked_at == registered, looked_at ^ registered


@check
def compiled_graphs_are_whole_and_equal(comm, seed):
    layout = sp.Layout("zigzag", 8 * comm.size, comm.size)
    straight = sp.Layout("contiguous", 8 * comm.size, comm.size)
    weight = whole(seed + 3, 64, 3)

    def model(x, decay):
        o = sp.attention(x, x, x, comm, causal=True, algorithm="zigzag")
        o = sp.redistribute(o, layout, straight, comm)
        o = torch.nn.functional.normalize(sp.gla(o, o, o, decay, comm), dim=3)
        h = sp.to_heads(o, comm)
        y = torch.nn.functional.scaled_dot_product_attention(*(h.transpose(1, 2) for _ in range(3)), is_causal=True)
        o = sp.to_sequence(y.transpose(1, 2), comm, heads=4)
        left, _ = sp.halo(o, comm, left=1)
        o = sp.short_conv(o.flatten(2), weight, comm, activation="silu").view(x.shape)
        everyone, lse = sp.all_gather(o, comm), o.new_zeros(2, 4, 8 * comm.size) + comm.rank
        o = o + sp.merge(everyone.cos(), lse + everyone[..., 0].transpose(1, 2), comm)[0]
        for source, part in sp.ring(o, comm):
            o = o + part / (2 + source)
        return (torch.cat([left, o[:, :-1]], 1) * o).mean() + sp.all_gather(o, comm).sin().mean()

    results, backends = [], ["aot_eager"] + ["inductor"] * (comm.size == 2)  # inductor takes ten seconds
    for run in (model, *(torch.compile(model, fullgraph=True, backend=name) for name in backends)):
        x = whole(seed + comm.rank, 2, 8, 4, 16).requires_grad_()
        decay = (-whole(seed + 5 + comm.rank, 2, 8, 4, 16).abs()).requires_grad_()
        value = run(x, decay)
        value.backward()
        results.append((value.detach(), x.grad, decay.grad))
    value, *exact = results[0]
    for compiled, *gradients in results[1:]:
        same(compiled, value, 50)
        for one, other in zip(gradients, exact):  # sums of terms of the largest's size
            same(one / other.abs().max(), other / other.abs().max(), 50)


@check
def inductor_keeps_the_order_of_calls(comm, seed):
    """Independent exchanges of shards of unequal lengths, which Inductor would order by their sizes, differently on the ranks."""
    if comm.size != 2:
        raise Skip("compiles by Inductor, runs on two ranks")
    lengths, weight = [60, 2], whole(seed, 32, 32)

    def function(x):
        y = x @ weight
        gathered, heads = sp.all_gather(y, comm, tokens=lengths), sp.to_heads(y.view(1, -1, 4, 8), comm, tokens=lengths)
        return sp.to_sequence(heads, comm, heads=4, tokens=lengths).flatten(2) @ weight, gathered[0, :3] @ weight

    x = whole(seed + comm.rank, 1, lengths[comm.rank], 32)
    for found, expected in zip(torch.compile(function, fullgraph=True)(x), function(x)):
        same(found, expected, 1000)
    torch.compiler.reset()


@check
def compiled_with_dynamic_lengths(comm, seed):
    """One graph for all lengths; kernels of the caller may compile again."""
    if comm.size > 2:
        raise Skip("compiles for some seconds, runs on one and two ranks")
    weight, rates = whole(seed + 3, 64, 3), -whole(seed + 4, 4).abs()
    functions = {
        "attention": (2, lambda x: sp.attention(x, x, x, comm, causal=True)),
        "gated_delta_rule": (2, lambda x: sp.gated_delta_rule(x, x, x, -x[..., 0].abs(), x[..., 1].sigmoid(), comm, normalize=True)),
        "mamba2": (2, lambda x: sp.mamba2(x, x[..., 0], rates, x, x, dt_softplus=True, comm=comm)),
        "short_conv": (2, lambda x: sp.short_conv(x.flatten(2), weight, comm, activation="silu")),
        "sdpa, ulysses": (9, lambda x: sp.attention(x, x, x, comm, causal=True, kernel="sdpa", algorithm="ulysses")),
        "sdpa, allgather_kv": (9, lambda x: sp.attention(x, x, x, comm, causal=True, kernel="sdpa", algorithm="allgather_kv"))}
    for name, (most, function) in functions.items():
        torch.compiler.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
        for tokens in (6, 7, 10):
            one = whole(seed + comm.rank, 1, tokens, 4, 16).requires_grad_()
            other = one.detach().clone().requires_grad_()
            out, expected = compiled(one), function(other)
            same(out, expected, 50)
            out.square().sum().backward()
            expected.square().sum().backward()
            same(one.grad, other.grad, 500)
        assert counter.frame_count <= most, f"{name}: {counter.frame_count} graphs"
    torch.compiler.reset()


@check
def ranks_do_not_share_compiled_graphs(comm, seed):
    """Inductor stores graphs on disk, under their operators' arguments: other ranks, and runs with other numbers of ranks, have
    results of other sizes."""
    heads = 2 * comm.size - 1  # the last rank has fewer
    folder = [tempfile.mkdtemp() if comm.rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    x = whole(seed + comm.rank, 1, 2, heads, 3)
    with unittest.mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder[0]):
        for _ in range(2):  # the second graph is read from the disk
            torch.compiler.reset()
            own = torch.compile(lambda x: sp.to_heads(x, comm), fullgraph=True)(x)
            same(own, sp.to_heads(x, comm))


@check
def checkpointing_gives_equal_gradients(comm, seed):
    counts = {}

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            counts[function] = counts.get(function, 0) + 1
            return function(*arguments, **(named or {}))

    weight, layouts = whole(seed + 2, 64, 3), [sp.Layout(kind, 6 * comm.size, comm.size) for kind in ("contiguous", "zigzag")]

    def block(x):
        o = sp.attention(x, x, x, comm, causal=True, algorithm="ring")
        work = sp.start_redistribute(o, *layouts, comm)
        o = o + sp.short_conv(o.flatten(2), weight, comm, activation="silu").unflatten(2, (4, 16)) + work.wait()
        o = o + sp.attention(o, o, o, comm, causal=True, algorithm="ulysses", kernel=sp.sdpa)
        o = o + sp.attention(o, o, o, comm, causal=True, algorithm="ulysses", reserve=True)
        o = sp.linear_attention(o, o, sp.linear_attention(o, o, o, comm, reserve=False), comm)
        for _, part in sp.ring(o, comm):
            o = o + part / 4
        lse = torch.zeros(1, 4, 6 * comm.size) + comm.rank
        o = o + sp.merge(sp.all_gather(o, comm).sin(), lse, comm)[0]
        return sp.to_sequence(sp.to_heads(o, comm).tanh(), comm, heads=4)

    def policy(context, op, *arguments, **named):
        return CheckpointPolicy.MUST_SAVE if op in sp.SAVE_OPS else CheckpointPolicy.PREFER_RECOMPUTE

    def selective():
        return create_selective_checkpoint_contexts(policy)

    grads, sent = [], []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=False),
                lambda x: checkpoint(block, x, use_reentrant=False, context_fn=selective)):
        x = whole(seed + comm.rank, 1, 6, 4, 16).requires_grad_()
        counts.clear()
        with Count():
            run(x).square().sum().backward()
        grads.append(x.grad)
        sent.append(sum(count for op, count in counts.items() if op.namespace == "seqpar"))
    same(grads[1], grads[0], 50)
    same(grads[2], grads[0], 50)
    assert sent[1] > sent[0] == sent[2], sent  # the selective policy sends nothing twice


@check
def errors_name_the_argument(comm, seed):
    x = whole(seed, 1, 4, 2, 8)
    raises(TypeError, "float64", sp.attention, x.double(), x.double(), x.double(), comm)
    tokens = whole(seed, 1, 4 * comm.size, 2, 8).double()
    for name, adds in {"reduce_scatter": lambda: sp.reduce_scatter(tokens, comm), "halo": lambda: sp.halo(tokens, comm, left=1),
                       "to_heads": lambda: sp.to_heads(tokens, comm)}.items():
        raises(TypeError, f"{name}: got torch.float64", adds)
    gathered = sp.all_gather(tokens.requires_grad_(), comm)
    raises(TypeError, "the gradient of all_gather: got torch.float64", gathered.sum().backward)
    raises(ValueError, "[batch]", sp.attention, x[0], x[0], x[0], comm)
    raises(ValueError, "expected one of", sp.attention, x, x, x, comm, algorithm="rings")
    raises(TypeError, "alibi", sp.attention, x, x, x, comm, alibi=1)
    raises(sp.Error, "ring_self_attention", sp.attention, x, x, x, comm, algorithm="zigzag",
           layout=sp.Layout("contiguous", 4 * comm.size, comm.size))
    raises(ValueError, "expected 4", sp.attention, x[:, :3], x[:, :3], x[:, :3], comm,
           layout=sp.Layout("zigzag", 4 * comm.size, comm.size))
    raises(ValueError, "layout.ranks", sp.shard, x, sp.Layout("zigzag", 4, comm.size + 1), comm)
    raises(ValueError, "log_decay has the shape", sp.gla, x, x, x, x[..., 0], comm)
    if comm.size > 1:
        longer = whole(seed, 1, 4 + comm.rank, 2, 8)
        raises(ValueError, "different plans", sp.attention, longer, longer, longer, comm)
    assert issubclass(sp.Error, dist.DistBackendError)
    sent = pickle.loads(pickle.dumps(sp.Error("RemoteError", "rank 1 failed")))
    assert type(sent) is sp.Error and sent.result == "RemoteError" and str(sent) == "rank 1 failed"
    assert sp.comm() is comm


@check
def other_default_devices(comm, seed):
    layout = sp.Layout("zigzag", 3 * comm.size, comm.size)
    x = whole(seed, 1, 3 * comm.size, 2, 8)
    ids = torch.arange(3 * comm.size)[None]
    with torch.device("meta"):
        assert sp.shard_batch(ids, layout, comm, cu_seqlens=(0, 2, 3 * comm.size))[2].device == ids.device
        mine = sp.shard(x, layout, comm)
        out = sp.attention(mine, mine, mine, comm, causal=True, layout=layout, algorithm="ulysses", kernel=sp.sdpa)
        out = out + sp.start_shift(out, comm).wait() + sp.attention(mine, mine, mine, comm, layout=layout)
        assert sp.unshard(out, layout, comm).device == x.device
        assert layout.local_cu_seqlens(comm.rank, (0, 3 * comm.size)).tolist() == [0, mine.shape[1]]


@check
def groups_and_closing(comm, seed):
    members = list(range(min(2, comm.size)))
    group = dist.new_group(members)
    if comm.rank in members:
        with sp.comm(group) as part:
            assert (part.size, part.rank) == (len(members), comm.rank)
            same(sp.all_gather(torch.full((1,), float(part.rank)), part, dim=0), torch.tensor([0.0, 1.0])[:len(members)])
            x = whole(seed, 1, 4, 2, 8)
            sp.attention(x, x, x, part)
        raises(RuntimeError, "no open communicator", sp.all_gather, x, part)
    mesh = dist.device_mesh.init_device_mesh(comm.device.type, (comm.size,), mesh_dim_names=("cp",))
    other = sp.comm(mesh["cp"])
    assert other.size == comm.size
    if other is not comm:  # torch may use the world's group for the mesh
        other.close()
