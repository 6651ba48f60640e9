"""One rank of the tests of seqpar.torch; test_torch.py starts two and three. Every check runs on all ranks alike."""

import sys
import traceback

import torch
import torch.distributed as dist
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import seqpar.torch as sp
from seqpar.testing import parity

CHECKS = []
EPS = 2.0 ** -23


def check(function):
    CHECKS.append(function)
    return function


def whole(seed, *shape, dtype=torch.float32):
    """Random numbers that are equal on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(a, b, terms=1):
    """Equal but for the rounding of sums of so many terms."""
    torch.testing.assert_close(a, b, rtol=4 * EPS * terms, atol=4 * EPS * terms)


def raises(error, text, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except error as caught:
        assert text in str(caught), f"{text!r} is not in {caught}"
        return
    raise AssertionError(f"{function.__name__} raised no {error.__name__}")


def summed(x, comm):
    return sp.all_gather(x[None].contiguous(), comm, dim=0).sum(0)


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
def parity_finds_what_is_wrong(comm, seed):
    options = parity.parse("--length 20 --head-dim 8 --algorithm ring".split())
    original = parity.dense
    try:
        parity.dense = lambda *arguments: {name: x * 1.001 for name, x in original(*arguments).items()}
        assert not parity.run(options, comm, seed)[1]
    finally:
        parity.dense = original


@check
def heads_and_sequence(comm, seed):
    lengths = [3 * r + 1 for r in range(comm.size)]
    x = whole(seed, 2, sum(lengths), 5, 4)
    mine = x.split(lengths, 1)[comm.rank].clone().requires_grad_()
    heads = sp.to_heads(mine, comm, tokens=lengths)
    every = [list(part) for part in torch.arange(5).tensor_split(comm.size)]
    same(heads, x[:, :, every[comm.rank]])
    back = sp.to_sequence(heads, comm, heads=5, tokens=lengths)
    same(back, mine)
    grad = whole(seed + 1, *x.shape).split(lengths, 1)[comm.rank]
    same(torch.autograd.grad(back, mine, grad)[0], grad)
    kv = whole(seed, 2, 2 * comm.size, 1, 4)  # one head for all ranks: gradients add up
    mine = sp.shard(kv, sp.Layout("contiguous", 2 * comm.size, comm.size), comm).requires_grad_()
    sp.to_heads(mine, comm, query_heads=6).sum().backward()
    same(mine.grad, torch.full_like(mine, comm.size))


@check
def gather_and_scatter(comm, seed):
    lengths = [2 * r for r in range(comm.size)]  # rank 0 has none
    x = whole(seed, 3, sum(lengths), 2)
    mine = x.split(lengths, 1)[comm.rank].clone().requires_grad_()
    full = sp.all_gather(mine, comm, tokens=lengths)
    same(full, x)
    (full * (comm.rank + 1)).sum().backward()
    same(mine.grad, torch.full_like(mine, comm.size * (comm.size + 1) / 2))
    part = whole(seed + comm.rank, 3, 2 * comm.size).requires_grad_()
    out = sp.reduce_scatter(part, comm, dim=-1)
    same(out, sum(whole(seed + r, 3, 2 * comm.size) for r in range(comm.size))[:, 2 * comm.rank:][:, :2], comm.size)
    out.sum().backward()
    same(part.grad, torch.ones_like(part))
    numbers = torch.arange(6, dtype=torch.int64).view(2, 3) + 100 * comm.rank
    assert sp.all_gather(numbers, comm, dim=1)[1, -1] == 5 + 100 * (comm.size - 1)


@check
def halos(comm, seed):
    tokens = 2 * comm.size + 1
    layout = sp.Layout("contiguous", tokens, comm.size)
    x = whole(seed, 2, tokens, 3)
    mine = sp.shard(x, layout, comm).requires_grad_()
    left, right = sp.halo(mine, comm, left=3, right=1, tokens=layout.lengths)
    begin = int(layout.positions(comm.rank)[0])
    padded = torch.cat([torch.zeros(2, 3, 3), x, torch.zeros(2, 1, 3)], 1)
    same(left, padded[:, begin:begin + 3])
    same(right, padded[:, begin + 3 + mine.shape[1]:][:, :1])
    grads = whole(seed + 1 + comm.rank, *left.shape), whole(seed + 9 + comm.rank, *right.shape)
    gradient, = torch.autograd.grad((left, right), mine, grads)
    # <halo(x), y> = <x, adjoint(y)>, summed over the ranks
    ours = torch.stack([(left * grads[0]).sum() + (right * grads[1]).sum(), (mine * gradient).sum()]).detach()
    total = summed(ours, comm)
    same(total[0], total[1], 50)


@check
def redistribution(comm, seed):
    bounds = (0, 1, 1, 9, 23)
    a, b = sp.Layout("contiguous", 23, comm.size), sp.Layout("zigzag", 23, comm.size, cu_seqlens=bounds)
    x, ids = whole(seed, 2, 23, 3), torch.arange(23).repeat(2, 1)
    moved, moved_ids = sp.redistribute((sp.shard(x, a, comm).requires_grad_(), sp.shard(ids, a, comm)), a, b, comm)
    same(moved, sp.shard(x, b, comm))
    assert moved_ids.equal(sp.shard(ids, b, comm))
    mine = sp.shard(x, a, comm).requires_grad_()
    grad = whole(seed + 1, *x.shape)
    sp.redistribute(mine, a, b, comm).backward(sp.shard(grad, b, comm))
    same(mine.grad, sp.shard(grad, a, comm))
    assert b.positions(comm.rank, cu_seqlens=bounds).max() < 14
    assert sp.unshard(moved_ids, b, comm).equal(ids)


def scan_reference(states, factors, initial, op, reverse, marks):
    """{rank: (prefix, total)}; marks[rank]: the flag of every head."""
    x, result = initial, {}
    for p in sorted(range(len(states)), reverse=reverse):
        a = factors[p]
        x = torch.where((marks[p] == 1)[:, None, None], 0.0, x)
        moved = {"sum": lambda: x, "scalar": lambda: a[:, None, None] * x, "diag": lambda: a[:, :, None] * x,
                 "matrix": lambda: (a.mT if reverse else a) @ x}[op]()
        total = torch.where((marks[p] > 0)[:, None, None], 0.0, moved) + states[p]
        result[p] = (x, total)
        x = total
    return result


@check
def scans(comm, seed):
    heads, dk, dv, size = 4, 3, 2, comm.size
    shapes = {"sum": (), "scalar": (heads,), "diag": (heads, dk), "matrix": (heads, dk, dk)}
    for op, shape in shapes.items():
        for reverse in (False, True):
            for decay in ("linear", "log", "log2") if op in ("scalar", "diag") else ("linear",):
                for packed in (False, True):
                    flags = [[(r + s) % 3 for s in range(2)] for r in range(size)] if packed else None
                    exact = [whole(seed + r, heads, dk, dv).double().requires_grad_() for r in range(size)]
                    raw = [(-whole(seed + 50 + r, *shape).abs() if decay != "linear" else whole(seed + 50 + r, *shape))
                           .double().requires_grad_() for r in range(size)]
                    factors = [{"linear": lambda a: a, "log": torch.exp, "log2": torch.exp2}[decay](a) for a in raw]
                    initial = whole(seed + 99, heads, dk, dv).double().requires_grad_()
                    marks = [torch.tensor(flags[r] if packed else [0, 0]).repeat_interleave(heads // 2)
                             for r in range(size)]
                    expected = scan_reference(exact, factors, initial, op, reverse, marks)
                    grads = [(whole(seed + 7 + r, heads, dk, dv), whole(seed + 8 + r, heads, dk, dv)) for r in range(size)]
                    loss = sum((o.double() * g.double()).sum() for r in range(size) for o, g in zip(expected[r], grads[r]))
                    inputs = [exact[comm.rank], initial] + ([raw[comm.rank]] if shape else [])
                    d_exact = torch.autograd.grad(loss, inputs, allow_unused=True)
                    mine = [x.detach().float().requires_grad_() for x in inputs]
                    out = sp.all_scan(mine[0], mine[2] if shape else None, comm, op=op, initial=mine[1], reverse=reverse,
                                      decay=decay, flags=flags and flags[comm.rank])
                    for one, other in zip(out, expected[comm.rank]):
                        same(one, other.float(), 200)
                    d_mine = torch.autograd.grad(out, mine, grads[comm.rank])
                    for i, (one, other) in enumerate(zip(d_mine, d_exact)):
                        if i == 1 and comm.rank != (size - 1 if reverse else 0):
                            continue  # the initial state's gradient is the first rank's
                        same(one, torch.zeros_like(one) if other is None else other.float(), 500)


@check
def batches(comm, seed):
    ids = torch.arange(1, 24).repeat(2, 1)
    layout = sp.Layout("zigzag", 23, comm.size)
    mine, labels, positions = sp.shard_batch(ids, layout, comm)
    assert (mine == positions + 1).all()
    assert (labels == torch.where(mine == 23, -100, mine + 1)).all()
    packed = sp.shard_batch({"input_ids": ids}, layout, comm, cu_seqlens=(0, 9, 23))
    assert (packed[1][packed[0] == 9] == -100).all()
    assert packed[2].max() < 14
    losses = mine.float()
    total = summed(sp.token_mean(losses, labels != -100, comm), comm)
    same(total, torch.tensor(11.5), 50)


@check
def operators_are_registered_well(comm, seed):
    ops, n, tests = torch.ops.seqpar, comm.name, ("test_schema", "test_faketensor")

    def opcheck(op, *arguments):
        torch.library.opcheck(op.default, arguments, test_utils=tests)

    size = comm.size
    x = whole(seed, 2, 3, 4, 8)
    opcheck(ops.to_heads, x, 4, [], n)
    opcheck(ops.to_heads, x.transpose(1, 2).contiguous().transpose(1, 2), 4, [3] * size, n)
    opcheck(ops.to_sequence, sp.to_heads(x, comm), 4, 0, [], n)
    opcheck(ops.all_gather, x, 1, [], n)
    opcheck(ops.reduce_scatter, whole(seed, 2, 2 * size), 1, [], n)
    opcheck(ops.halo, x, 1, 2, 1, False, [], n)
    opcheck(ops.halo_adjoint, x[:, :2], x[:, :1], 1, 3, False, [], n)
    keys = (sp.Layout("contiguous", 3 * size, size).key, sp.Layout("zigzag", 3 * size, size).key)
    opcheck(ops.redistribute, [x, x[0:1].to(torch.int64)], *keys, 1, n)
    opcheck(ops.all_scan, x[0], x[0, :, :, 0].contiguous(), None, "diag", False, "linear", "float32", [], "auto", n)
    spec = "family=softmax;training=1;algorithm=ring;causal=1"
    out, lse = ops.attention(x, x, x, None, spec, n)
    opcheck(ops.attention, x, x[:, :, :2], x[:, :, :2], None, spec, n)
    opcheck(ops.attention_backward, x, x, x, x, out, lse, None, spec, n)
    spec = "family=scalar;training=1;algorithm=zeco"
    gate = -x[..., 0].abs()
    opcheck(ops.linear_attention, x, x, x, gate, None, spec, n)
    saved = ops.linear_attention(x, x, x, gate, None, spec, n)[1]
    opcheck(ops.linear_attention_backward, x, None, x, x, x, gate, None, saved, spec, n)


@check
def compiled_graphs_are_whole_and_equal(comm, seed):
    layout = sp.Layout("zigzag", 8 * comm.size, comm.size)
    straight = sp.Layout("contiguous", 8 * comm.size, comm.size)

    def model(x, decay):
        o = sp.attention(x, x, x, comm, causal=True, algorithm="zigzag")
        o = sp.redistribute(o, layout, straight, comm)
        o = sp.gla(o, o, o, decay, comm)
        h = sp.to_heads(o, comm)
        y = torch.nn.functional.scaled_dot_product_attention(*(h.transpose(1, 2) for _ in range(3)), is_causal=True)
        o = sp.to_sequence(y.transpose(1, 2), comm, heads=4)
        left, _ = sp.halo(o, comm, left=1)
        return (torch.cat([left, o[:, :-1]], 1) * o).sum() + sp.all_gather(o, comm).sin().sum()

    results = []
    for run in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        x = whole(seed + comm.rank, 2, 8, 4, 8).requires_grad_()
        decay = (-whole(seed + 5 + comm.rank, 2, 8, 4, 8).abs()).requires_grad_()
        value = run(x, decay)
        value.backward()
        results.append((value.detach(), x.grad, decay.grad))
    for one, other in zip(*results):
        same(one, other, 50)


@check
def checkpointing_gives_equal_gradients(comm, seed):
    counts = {}

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            counts[function] = counts.get(function, 0) + 1
            return function(*arguments, **(named or {}))

    def block(x):
        o = sp.attention(x, x, x, comm, causal=True, algorithm="ring")
        return sp.to_sequence(sp.to_heads(o, comm).tanh(), comm, heads=4)

    def policy(context, op, *arguments, **named):
        return CheckpointPolicy.MUST_SAVE if op in sp.SAVE_OPS else CheckpointPolicy.PREFER_RECOMPUTE

    def selective():
        return create_selective_checkpoint_contexts(policy)

    grads, sent = [], []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=False),
                lambda x: checkpoint(block, x, use_reentrant=False, context_fn=selective)):
        x = whole(seed + comm.rank, 1, 6, 4, 8).requires_grad_()
        counts.clear()
        with Count():
            run(x).square().sum().backward()
        grads.append(x.grad)
        sent.append(sum(counts.get(op, 0) for op in sp.SAVE_OPS))
    same(grads[1], grads[0])
    same(grads[2], grads[0])
    assert sent[1] > sent[0] == sent[2], sent  # the selective policy sends nothing twice


@check
def drop_ins(comm, seed):
    q, kv = whole(seed, 2, 6 * comm.size, 4, 8), whole(seed + 1, 2, 6 * comm.size, 2, 2, 8)
    from seqpar.testing.reference import softmax
    expected = softmax(q, kv[:, :, 0], kv[:, :, 1], causal=True)
    for function, kind in ((sp.ring_flash_attn_kvpacked_func, "contiguous"),
                           (sp.zigzag_ring_flash_attn_kvpacked_func, "zigzag"),
                           (sp.stripe_flash_attn_kvpacked_func, "striped")):
        layout = sp.Layout(kind, 6 * comm.size, comm.size)
        out, lse, _ = function(sp.shard(q, layout, comm), sp.shard(kv, layout, comm), causal=True, return_attn_probs=True)
        same(out, sp.shard(expected, layout, comm), 50)
        assert lse.shape == (2, 4, 6)
    raises(ValueError, "dropout_p", sp.ring_flash_attn_func, q, q, q, dropout_p=0.1)
    raises(TypeError, "softcap", sp.ring_flash_attn_func, q, q, q, softcap=1.0)


@check
def models_of_transformers(comm, seed):
    try:
        import transformers
    except ImportError:
        print("skipped: no transformers")
        return
    from seqpar.torch.transformers import register
    shape = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=8, use_cache=False)
    ids = torch.randint(50, (2, 21), generator=torch.Generator().manual_seed(seed))
    for family, kind, algorithm, more in (("Llama", "zigzag", "zigzag", {}),
                                          ("Mistral", "contiguous", "ring", {"sliding_window": 5}),
                                          ("Gemma2", "contiguous", "allgather_kv", {"sliding_window": 5})):
        layout = sp.Layout(kind, 21, comm.size)
        registration = register(comm, layout=layout, algorithm=algorithm)
        models = []
        for name in ("eager", "seqpar"):
            config = getattr(transformers, family + "Config")(**shape, **more)
            models.append(getattr(transformers, family + "ForCausalLM")._from_config(config, attn_implementation=name))
        models[1].load_state_dict(models[0].state_dict())
        for parameter in (p for model in models for p in model.parameters()):
            dist.broadcast(parameter.data, 0)  # models are made from each rank's own random numbers
        exact = models[0](ids).logits
        mine, _, positions = sp.shard_batch(ids, layout, comm)
        logits = models[1](mine, position_ids=positions[None]).logits
        same(logits, sp.shard(exact, layout, comm), 100)
        exact.square().sum().backward()
        logits.square().sum().backward()
        for one, other in zip(models[1].parameters(), models[0].parameters()):
            scale = max(1.0, other.grad.abs().max().item())
            same(summed(one.grad, comm) / scale, other.grad / scale, 200)
        padded = torch.ones_like(mine)
        padded[:, 0] = 0
        raises(ValueError, "padding", models[1], mine, attention_mask=padded, position_ids=positions[None])
        raises(TypeError, "alibi", registration, models[1], exact, exact, exact, None, alibi=exact)


@check
def errors_say_what_is_wrong(comm, seed):
    x = whole(seed, 1, 4, 2, 8)
    raises(TypeError, "float64", sp.attention, x.double(), x.double(), x.double(), comm)
    raises(ValueError, "[batch]", sp.attention, x[0], x[0], x[0], comm)
    raises(ValueError, "expected one of", sp.attention, x, x, x, comm, algorithm="rings")
    raises(TypeError, "alibi", sp.attention, x, x, x, comm, alibi=1)
    raises(sp.Error, "striped", sp.attention, x, x, x, comm, algorithm="ring_self_attention")
    raises(ValueError, "expected 4", sp.attention, x[:, :3], x[:, :3], x[:, :3], comm,
           layout=sp.Layout("zigzag", 4 * comm.size, comm.size))
    raises(ValueError, "layout.ranks", sp.shard, x, sp.Layout("zigzag", 4, comm.size + 1), comm)
    raises(ValueError, "log_decay has the shape", sp.gla, x, x, x, x[..., 0], comm)
    longer = whole(seed, 1, 4 + comm.rank, 2, 8)
    raises(ValueError, "different plans", sp.attention, longer, longer, longer, comm)
    assert issubclass(sp.Error, dist.DistBackendError)
    assert sp.comm() is comm


@check
def explanations(comm, seed):
    x = whole(seed, 1, 4, 2, 8)
    told = sp.explain(x, x, x, comm, causal=True)
    assert told["ranks"] == comm.size and told["algorithm"]


@check
def groups_and_closing(comm, seed):
    group = dist.new_group([0, 1])
    if comm.rank < 2:
        with sp.comm(group) as part:
            assert (part.size, part.rank) == (2, comm.rank)
            same(sp.all_gather(torch.full((1,), float(part.rank)), part, dim=0), torch.tensor([0.0, 1.0]))
            x = whole(seed, 1, 4, 2, 8)
            sp.attention(x, x, x, part)
        raises(RuntimeError, "no open communicator", sp.all_gather, x, part)
    mesh = dist.device_mesh.init_device_mesh("cpu", (comm.size,), mesh_dim_names=("cp",))
    with sp.comm(mesh["cp"]) as other:
        assert other.size == comm.size


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seed = [torch.seed() % 2 ** 31]
    dist.broadcast_object_list(seed, 0)
    comm = sp.comm(timeout=300)
    failed = []
    for function in CHECKS:
        if len(sys.argv) > 1 and function.__name__ not in sys.argv[1:]:
            continue
        try:
            function(comm, seed[0])
            word = "ok"
        except BaseException:
            traceback.print_exc()
            failed.append(function.__name__)
            word = "FAILED"
        if comm.rank == 0 or word != "ok":
            print(f"{function.__name__} ... {word} (rank {comm.rank} of {comm.size}, seed {seed[0]})", flush=True)
        if word != "ok":
            sys.exit(1)  # the others learn of it from the communicators
    sp.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
