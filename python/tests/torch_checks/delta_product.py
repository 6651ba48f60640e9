"""Gated DeltaProduct against matrices in float64, token by token: results, gradients of all inputs, states, refusals."""

import torch
import torch.distributed as dist
from torch.library import opcheck
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import seqpar.torch as sp
from seqpar.torch import fla
from torch_checks import check, lost, raises, same, summed, whole

HEADS, KEYS, DK, DV = 4, 2, 8, 6


def _reference(q, k, v, log_decay, beta, updates, scale=None, initial=None, bounds=None, normalize=True):
    """(out, last state): S_t = A_t S_(t-1) + B_t, with the product A_t of a token's matrices."""
    if normalize:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    bounds, rows, state = list(bounds or (0, q.shape[1])), [], None
    one = torch.eye(q.shape[3], dtype=q.dtype, device=q.device)
    for t in range(q.shape[1]):
        for number in (i for i, start in enumerate(bounds[:-1]) if start == t):
            state = q.new_zeros(len(q), v.shape[2], q.shape[3], v.shape[3])
            if initial is not None:
                state = initial if len(bounds) == 2 else initial[number:number + 1]
        map_, add = one.expand(len(q), v.shape[2], -1, -1), torch.zeros_like(state)
        if log_decay is not None:
            map_ = map_ * log_decay[:, t].exp()[..., None, None]
        for row in range(t * updates, (t + 1) * updates):
            key, factor = k[:, row, :, :, None], beta[:, row, :, None, None]
            householder = one - factor * key @ key.mT
            map_, add = householder @ map_, householder @ add + factor * key @ v[:, row, :, None, :]
        state = map_ @ state + add
        rows.append((q[:, t, :, None, :] @ state)[..., 0, :] * (q.shape[3] ** -0.5 if scale is None else scale))
    return (torch.stack(rows, 1) if rows else v[:, :0]), state


def _naive(q, k, v, log_decay, beta, updates):
    """The formula of FLA's naive_recurrent_gated_delta_product: every update corrects what the state recalls of a key."""
    state, rows = q.new_zeros(len(q), q.shape[2], q.shape[3], v.shape[3]), []
    for t in range(q.shape[1]):
        state = state if log_decay is None else torch.exp(log_decay[:, t])[:, :, None, None] * state
        for row in range(t * updates, (t + 1) * updates):
            error = v[:, row] - torch.einsum("bhk,bhkv->bhv", k[:, row], state)
            state = state + torch.einsum("bh,bhk,bhv->bhkv", beta[:, row], k[:, row], error)
        rows.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(rows, 1)


def _inputs(seed, batch, tokens, updates, decays=True, keys=KEYS, strong=False):
    """float64; every rank's are equal."""
    make = lambda i, *shape: whole(seed + i, batch, *shape, dtype=torch.float64)
    log_decay = -make(3, tokens, HEADS).abs()
    if strong:  # e^-300 is 0 in fp32
        log_decay = log_decay * torch.tensor([0.0, 1.0, 20.0, 300.0], dtype=torch.float64)
    rows = updates * tokens
    return [make(0, tokens, keys, DK), make(1, rows, keys, DK), make(2, rows, HEADS, DV), log_decay if decays else None,
            2 * make(4, rows, HEADS).sigmoid()]


def _cut(x, tokens, layout, comm):
    """This rank's rows of a tensor with one or several rows of each token, as float32."""
    if x is None:
        return None
    begin, of_token = sum(layout.lengths[:comm.rank]), x.shape[1] // tokens
    return x[:, of_token * begin:of_token * (begin + layout.lengths[comm.rank])].float().clone(memory_format=torch.contiguous_format)


def _leaves(tensors):
    return [None if x is None else x.detach().clone().requires_grad_() for x in tensors]


def _gradients_agree(local, exact, tokens, layout, comm, terms=400):
    for one, other in zip(local, exact):
        if other is None:
            continue
        expected = _cut(other.grad, tokens, layout, comm)
        largest = max(1.0, other.grad.abs().max().item())
        same(one.grad / largest, expected / largest, terms)


@check
def delta_products_of_all_ranks(comm, seed):
    """Lengths with empty and uneven shards, and more updates than a chunk has."""
    for i, tokens in enumerate((1, comm.size + 1, 5 * comm.size + 2, 44)):
        layout = sp.Layout("contiguous", tokens, comm.size)
        cut = sorted({0, tokens // 3, tokens // 3 + 1, tokens})
        for updates in (1, 2, 3):
            for decays, bounds, strong in ((True, None, False), (False, None, False), (True, (*cut, tokens), False), (False, cut, False),
                                           (True, None, True)):
                batch = 1 if bounds else 2
                exact = _leaves(_inputs(seed + i, batch, tokens, updates, decays, strong=strong))
                grad = whole(seed + 9, batch, tokens, HEADS, DV, dtype=torch.float64)
                expected, _ = _reference(*exact, updates, bounds=bounds)
                expected.backward(grad)
                local = _leaves(_cut(x, tokens, layout, comm) for x in exact)
                for _ in range(2):  # later calls are prepared
                    for x in (x for x in local if x is not None):
                        x.grad = None
                    out = sp.gated_delta_product(*local, updates, comm, layout=layout, cu_seqlens=bounds, normalize=True)
                    out.backward(_cut(grad, tokens, layout, comm))
                    same(out, _cut(expected.detach(), tokens, layout, comm), 200)
                    _gradients_agree(local, exact, tokens, layout, comm)
                with torch.no_grad():
                    alone = sp.gated_delta_product(*local, updates, comm, layout=layout, cu_seqlens=bounds, normalize=True)
                same(alone, out.detach(), 20)


@check
def states_of_delta_products(comm, seed):
    tokens, updates = 3 * comm.size + 1, 3
    layout, last = sp.Layout("contiguous", tokens, comm.size), comm.rank == comm.size - 1
    for bounds in (None, (0, 2, 2, tokens)):
        batch, sequences = (1, 3) if bounds else (2, 2)
        exact = _leaves(_inputs(seed, batch, tokens, updates))
        initial, = _leaves([whole(seed + 8, sequences, HEADS, DK, DV, dtype=torch.float64)])
        grad = whole(seed + 9, batch, tokens, HEADS, DV, dtype=torch.float64)
        expected, final = _reference(*exact, updates, 0.7, initial, bounds)
        (expected * grad).sum().add(final.square().sum()).backward()
        local = _leaves([*(_cut(x, tokens, layout, comm) for x in exact), initial.float()])
        out, state = sp.gated_delta_product(*local[:5], updates, comm, layout=layout, cu_seqlens=bounds, scale=0.7, normalize=True,
                                            initial_state=local[5], output_final_state=True)
        ((out * _cut(grad, tokens, layout, comm)).sum() + state.square().sum() * last).backward()
        same(out, _cut(expected.detach(), tokens, layout, comm), 300)
        if last:
            same(state, final.float(), 300)
        _gradients_agree(local[:5], exact, tokens, layout, comm, 2000)
        largest = max(1.0, initial.grad.abs().max().item())
        same(summed(local[5].grad, comm) / largest, initial.grad.float() / largest, 2000)


@check
def delta_products_are_delta_rules_of_updates(comm, seed):
    """Equal bits: of one update with the gated delta rule, of several with its tokens in a loop of updates."""
    tokens = 3 * comm.size
    straight = sp.Layout("contiguous", tokens, comm.size)
    for updates, decays in ((1, True), (1, False), (2, True), (3, False)):
        given = _leaves(_cut(x, tokens, straight, comm) for x in _inputs(seed, 1, tokens, updates, decays))
        other = _leaves(given)
        q, k, v, log_decay, beta = other
        rows = q.new_zeros(1, 3, updates, KEYS, DK)
        rows[:, :, -1] = q
        gates = (beta,)
        if decays:
            times = log_decay.new_zeros(1, 3, updates, HEADS)
            times[:, :, 0] = log_decay
            gates = (times.flatten(1, 2), beta)
        rule = sp.gated_delta_rule if decays else sp.delta_rule
        expected = rule(rows.flatten(1, 2), k, v, *gates, comm, normalize=True)[:, updates - 1::updates]
        out = sp.gated_delta_product(*given, updates, comm, normalize=True)
        assert out.equal(expected) and out.is_contiguous()
        grad = whole(seed + 9, *out.shape)
        out.backward(grad)
        expected.backward(grad)
        assert all(x is None or x.grad.equal(y.grad) for x, y in zip(given, other))


@check
def explained_delta_products(comm, seed):
    """explain() reports the plan of a delta rule with a token for each update."""
    q, k, v, log_decay, beta = (x.float() for x in _inputs(seed, 1, 3, 2, True))
    for family, decay in (("gated_delta", log_decay), ("delta", None)):
        told = sp.explain(q, k, v, comm, function="gated_delta_product", log_decay=decay, beta=beta, num_householder=2,
                          algorithm="zeco", normalize=True)
        rows = q.repeat_interleave(2, 1)
        gates = {"beta": beta} if decay is None else {"log_decay": decay.repeat_interleave(2, 1), "beta": beta}
        rule = sp.explain(rows, k, v, comm, function=f"{family}_rule", algorithm="zeco", normalize=True, **gates)
        assert told["family"] == family and told == rule, (told, rule)
    raises(TypeError, "gated_delta_product: num_householder", sp.explain, q, k, v, comm, function="gated_delta_product", beta=beta)
    raises(ValueError, "explain: num_householder was given, expected none with gla", sp.explain, q, q, q, comm, function="gla",
           log_decay=-q.abs(), num_householder=2)
    raises(ValueError, "explain: num_householder was given, expected none with attention", sp.explain, q, q, q, comm, num_householder=1)


@check
def delta_products_with_flas_arguments(comm, seed):
    tokens, updates = 4 * comm.size, 2
    q, k, v, log_decay, beta = _inputs(seed, 1, tokens, updates, keys=HEADS)
    q, k = (F.normalize(x, dim=-1) for x in (q, k))
    context = fla.build_cp_context([0, tokens], None)
    mine = [_cut(x, tokens, context.shards, comm) for x in (q, k, v, log_decay, beta)]
    for decay in (log_decay, None):
        arguments = [x if x is not mine[3] else decay if decay is None else x for x in mine]
        o, state = fla.chunk_gated_delta_product(*arguments, updates, 1.0, cu_seqlens=None, cp_context=context)
        assert state is None
        same(o, _cut(_naive(q, k, v, decay, beta, updates), tokens, context.shards, comm), 200)
    named = dict(zip(("q", "k", "v", "g", "beta"), mine), num_householder=updates, cp_context=context, output_final_state=True)
    initial = whole(seed + 8, 1, HEADS, DK, DV)
    o, state = fla.chunk_gated_delta_product(**named, use_qk_l2norm_in_kernel=True, initial_state=initial, cu_seqlens_cpu=None)
    expected, final = _reference(q, k, v, log_decay, beta, updates, initial=initial.double())
    same(o, _cut(expected, tokens, context.shards, comm), 200)
    if comm.rank == comm.size - 1:
        same(state, final.float(), 200)
    bounds = (0, 1, 3, tokens)
    packed = fla.build_cp_context(torch.tensor(bounds), None)
    o, _ = fla.chunk_gated_delta_product(*mine, updates, use_qk_l2norm_in_kernel=True, cp_context=packed)
    same(o, _cut(_reference(q, k, v, log_decay, beta, updates, bounds=bounds)[0], tokens, packed.shards, comm), 200)
    raises(ValueError, "chunk_gated_delta_product: got output_final_state with 3 sequences", fla.chunk_gated_delta_product,
           **{**named, "cp_context": packed})
    raises(ValueError, "chunk_gated_delta_product: cp_context is None", fla.chunk_gated_delta_product, *mine, updates)
    raises(TypeError, "chunk_gated_delta_product: got chunk_size", fla.chunk_gated_delta_product, **named, chunk_size=64)


@check
def delta_products_compiled_checkpointed_and_in_16_bits(comm, seed):
    tokens, updates = 6 * comm.size, 2
    layout = sp.Layout("contiguous", tokens, comm.size)
    given = [_cut(x, tokens, layout, comm) for x in _inputs(seed, 1, tokens, updates)]
    grad, bounds = whole(seed + 9, 1, 6, HEADS, DV), (0, 4, tokens)
    run = lambda *x: sp.gated_delta_product(*x, updates, comm, layout=layout, cu_seqlens=bounds, normalize=True)
    plain = _leaves(given)
    expected = run(*plain)
    expected.backward(grad)
    others = {"compiled": torch.compile(run, backend="aot_eager", fullgraph=True),
              "checkpointed": lambda *x: checkpoint(run, *x, use_reentrant=False),
              "reserving": lambda *x: sp.gated_delta_product(*x, updates, comm, layout=layout, cu_seqlens=bounds, normalize=True, reserve=True)}
    for name, function in others.items():
        leaves = _leaves(given)
        function(*leaves).backward(grad)
        for one, other in zip(leaves, plain):
            same(one.grad, other.grad, 50)
    torch.compiler.reset()
    spec = f"family=gated_delta;algorithm=auto;layout={layout.key};training=1;normalize=1;num_householder=2"
    q, k, v, log_decay, beta = given
    wide = lambda x, before: F.pad(x.unsqueeze(2), (0, 0) * (x.dim() - 2) + ((1, 0) if before else (0, 1))).flatten(1, 2)
    opcheck(torch.ops.seqpar.linear_attention, (*_leaves((wide(q, True), k, v)), _leaves((wide(log_decay, False), beta)), None, spec, comm.name),
            test_utils=("test_schema", "test_faketensor"))
    for dtype, bits in ((torch.bfloat16, 8), (torch.float16, 11)):
        rounded = [*(x.to(dtype) for x in given[:3]), *given[3:]]
        out, exact = run(*rounded), run(*(x.float() for x in rounded))
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), exact, rtol=2.0 ** -bits * 8, atol=2.0 ** -bits * 8)
    with torch.autocast(comm.device.type, dtype=torch.bfloat16):
        assert run(*given).dtype == torch.bfloat16


@check
def delta_products_are_refused(comm, seed):
    tokens, n = 4 * comm.size, 2
    layout = sp.Layout("contiguous", tokens, comm.size)
    given = dict(zip(("q", "k", "v", "log_decay", "beta"), (_cut(x, tokens, layout, comm) for x in _inputs(seed, 1, tokens, n))),
                 num_householder=n)
    k, v, log_decay, beta = (given[name] for name in ("k", "v", "log_decay", "beta"))
    wrong = {"k has the shape (1, 4, 2, 8), expected (1, 8, 2, 8)": {"k": k[:, :4]},
             "v has the shape (1, 7, 4, 6), expected (1, 8, 4, 6)": {"v": v[:, :7]},
             "log_decay has the shape (1, 8, 4), expected (1, 4, 4)": {"log_decay": torch.cat((log_decay,) * 2, 1)},
             "beta is None, expected (1, 8, 4)": {"beta": None},
             "beta has the shape (1, 8, 3)": {"beta": beta[..., :3]},
             "q has the shape (4, 2, 8), expected [batch]": {"q": given["q"][0]},
             "num_householder is 0, expected at least 1": {"num_householder": 0},
             "num_householder is -2, expected at least 1": {"num_householder": -2},
             "k has the shape (1, 8, 2, 8), expected (1, 12, 2, 8)": {"num_householder": 3},
             "layout is Layout(kind='zigzag'": {"layout": sp.Layout("zigzag", tokens, comm.size)},
             "layout: got 4 tokens": {"layout": sp.Layout("contiguous", tokens + comm.size, comm.size)},
             f"cu_seqlens is (0, {n * tokens}), expected ascending bounds from 0 to {tokens}": {"cu_seqlens": (0, n * tokens)},
             "initial_state has the shape (1, 4, 6, 8), expected (1, 4, 8, 6)": {"initial_state": torch.zeros(1, 4, 6, 8)},
             "scale is 0.0, expected another number than 0": {"scale": 0.0}}
    for text, more in wrong.items():
        raises(ValueError, f"gated_delta_product: {text}", sp.gated_delta_product, **{**given, **more}, comm=comm)
    types = {"num_householder: got (2.0,), expected integers": {"num_householder": 2.0},
             "log_decay is torch.float16, expected torch.float32": {"log_decay": log_decay.half()},
             "q is a builtins.NoneType, expected a torch.Tensor": {"q": None}, "beta is a builtins.int": {"beta": 1},
             "q, k and v are ": {"k": k.bfloat16()}, "initial_state is torch.bfloat16": {"initial_state": torch.zeros(1, 4, 8, 6).bfloat16()}}
    for text, more in types.items():
        raises(TypeError, f"gated_delta_product: {text}", sp.gated_delta_product, **{**given, **more}, comm=comm)
    raises(TypeError, "unexpected keyword argument 'causal'", sp.gated_delta_product, **given, comm=comm, causal=True)
    sp.gated_delta_product(**given, comm=comm)  # the communicator lives
    if comm.size == 1:
        return
    times = 3 if comm.rank else 2  # lengths that no rank has a plan for
    longer = {name: x if name == "num_householder" else torch.cat((x,) * times, 1) for name, x in given.items()}
    raises(ValueError, f"gated_delta_product: the ranks ask for different plans: rank 1 has tokens {3 * tokens}, rank 0 has {2 * tokens}",
           sp.gated_delta_product, **longer, comm=comm)
    one, failing = sp.comm(dist.new_group(list(range(comm.size)))), seed % comm.size
    mine = dict(given, beta=beta[:, 1:]) if comm.rank == failing else given
    try:
        for _ in range(3):  # ranks that need no data of the failing one finish a call
            sp.gated_delta_product(**mine, comm=one)
            sp.all_gather(k, one)
    except (ValueError, sp.Error) as error:
        assert "gated_delta_product: beta has the shape (1, 7, 4)" in str(error), error
        assert comm.rank == failing or f"rank {failing} (" in str(error), error
    else:
        raise AssertionError("no error")
    lost(one)
