"""The delta rule against the recurrence token by token: functions, drop-ins for flash-linear-attention, torch.compile."""

import torch
import torch.distributed as dist
from torch.library import opcheck

import seqpar.torch as sp
from seqpar._families import FUNCTIONS as FAMILIES, GATES
from seqpar.testing import reference
from seqpar.torch import fla
from torch_checks import Skip, check, raises, same, summed, whole

FUNCTIONS = {"delta_rule": None, "gated_delta_rule": "token", "kda": "channel"}


def _inputs(seed, batch, tokens, heads, key_heads, dk, dv):
    q, k = (whole(seed + i, batch, tokens, key_heads, dk) for i in range(2))
    v, grad = (whole(seed + i, batch, tokens, heads, dv) for i in (2, 3))
    gate = -whole(seed + 4, batch, tokens, heads, dk).abs()
    return q, k, v, gate, whole(seed + 5, batch, tokens, heads).sigmoid(), grad


def _gates(kind, gate):
    return () if kind is None else (gate if kind == "channel" else gate[..., 0].contiguous(),)


def _leaves(tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def _compare(comm, name, tensors, grad, layout, **options):
    """Outputs and gradients of all inputs."""
    exact = _leaves(x.double() for x in tensors)
    gates = exact[3:] if len(exact) == 5 else [None, exact[3]]
    reference.delta(*exact[:3], *gates, normalize=True, cu_seqlens=options.get("cu_seqlens"))[0].backward(grad.double())
    local = _leaves(sp.shard(x, layout, comm) for x in tensors)
    for _ in range(2):  # later calls are prepared
        for x in local:
            x.grad = None
        out = getattr(sp, name)(*local, comm, normalize=True, layout=layout, **options)
        out.backward(sp.shard(grad, layout, comm))
    for one, other in zip(local, exact):
        largest = max(1.0, other.grad.abs().max().item())
        same(one.grad / largest, sp.shard(other.grad.float(), layout, comm) / largest, 300)
    return out


@check
def the_delta_rule_of_all_ranks(comm, seed):
    layout = sp.Layout("contiguous", 37, comm.size)
    for name, kind in FUNCTIONS.items():
        for bounds in (None, (0, 5, 6, 30, 37)):
            batch = 1 if bounds else 2
            q, k, v, gate, beta, grad = _inputs(seed, batch, 37, 4, 2, 8, 6)
            tensors = (q, k, v, *_gates(kind, gate), beta)
            out = _compare(comm, name, tensors, grad, layout, cu_seqlens=bounds)
            gates = tensors[3:] if kind else (None, beta)
            exact, _ = reference.delta(*(None if x is None else x.double() for x in (*tensors[:3], *gates)), normalize=True,
                                       cu_seqlens=bounds)
            same(out, sp.shard(exact.float(), layout, comm), 200)
    x = whole(seed, 1, 4, 2, 8)
    raises(ValueError, "kda: beta has the shape", sp.kda, x, x, x, -x.abs(), x, comm)
    raises(TypeError, "gla() got an unexpected keyword argument 'normalize'", sp.gla, x, x, x, -x.abs(), comm, normalize=True)
    told = sp.explain(x, x, x, comm, function="delta_rule", beta=x[..., 0].sigmoid(), algorithm="zeco")
    assert told["family"] == "delta" and told["algorithm"] == "zeco", told


@check
def families_of_all_ranks_equal_one_rank(comm, seed):
    """Every function of linear attention: outputs and gradients of shards are those of the whole on one rank."""
    alone = [sp.comm(dist.new_group([rank])) if rank == comm.rank else dist.new_group([rank]) for rank in range(comm.size)][comm.rank]
    tokens = 5 * comm.size + 4
    layout = sp.Layout("contiguous", tokens, comm.size)
    q, k, v, gate, beta, grad = _inputs(seed, 2, tokens, 4, 2, 16, 16)
    k = k / k.norm(dim=-1, keepdim=True)
    for name, family in FAMILIES.items():
        shapes = {"Head": lambda x: x[0, 0, :, 0].contiguous(), "Token": lambda x: x[..., 0].contiguous(), "Channel": lambda x: x}
        gates = [shapes[shape](gate if one == "log_decay" else gate.exp()) for one, shape in GATES[family]]
        cut = [x if shape == "Head" else sp.shard(x, layout, comm) for (_, shape), x in zip(GATES[family], gates)]
        exact, local = _leaves((q, k, v, *gates)), _leaves((*(sp.shard(x, layout, comm) for x in (q, k, v)), *cut))
        expected, out = getattr(sp, name)(*exact, alone), getattr(sp, name)(*local, comm, layout=layout)
        same(out, sp.shard(expected, layout, comm), 200)
        expected.backward(grad)
        out.backward(sp.shard(grad, layout, comm))
        shared = [False] * 3 + [shape == "Head" for _, shape in GATES[family]]
        for one, other, of_heads in zip(local, exact, shared):
            mine = summed(one.grad, comm) if of_heads else one.grad
            of_one = other.grad if of_heads else sp.shard(other.grad, layout, comm)
            largest = max(1.0, of_one.abs().max().item())
            same(mine / largest, of_one / largest, 300)
    alone.close()


@check
def states_of_the_delta_rule(comm, seed):
    tokens = 8 * comm.size
    q, k, v, gate, beta, grad = _inputs(seed, 2, tokens, 2, 2, 8, 6)
    layout = sp.Layout("contiguous", tokens, comm.size)
    initial = whole(seed + 9, 2, 2, 8, 6)
    exact = _leaves((q, k, v, gate, beta, initial))
    out, final = reference.delta(*exact[:5], initial_state=exact[5], normalize=True)
    (out * grad).sum().add(final.square().sum()).backward()
    local = _leaves((*(sp.shard(x, layout, comm) for x in (q, k, v, gate, beta)), initial))
    mine, state = sp.kda(*local[:5], comm, initial_state=local[5], output_final_state=True, normalize=True)
    loss = (mine * sp.shard(grad, layout, comm)).sum()
    (loss + state.square().sum() * (comm.rank == comm.size - 1)).backward()
    same(mine, sp.shard(out, layout, comm), 300)
    if comm.rank == comm.size - 1:
        same(state, final, 300)
    for one, other in zip(local[:5], exact):
        same(one.grad, sp.shard(other.grad, layout, comm), 2000)
    same(summed(local[5].grad, comm), exact[5].grad, 2000)


@check
def the_delta_rule_compiled(comm, seed):
    q, k, v, gate, beta, grad = _inputs(seed + comm.rank, 1, 6, 2, 2, 8, 8)
    token = gate[..., 0].contiguous()
    plain, compiled = _leaves((q, k, v, token, beta)), _leaves((q, k, v, token, beta))
    function = lambda *x: sp.gated_delta_rule(*x, comm, normalize=True) * 2
    function(*plain).backward(grad)
    torch.compile(function, backend="aot_eager", fullgraph=True)(*compiled).backward(grad)
    for one, other in zip(compiled, plain):
        assert torch.equal(one.grad, other.grad)
    source, target = (sp.Layout(kind, 6 * comm.size, comm.size) for kind in ("contiguous", "zigzag"))
    of_two = {"delta": lambda x, y: function(x, x, x, token, y), "redistribute": lambda x, y: sp.redistribute((x, y), source, target, comm)[0],
              "shift": lambda x, y: sp.shift((x, y), comm)[0]}
    with torch.no_grad():
        for name, one in of_two.items():
            assert torch.equal(torch.compile(one, backend="aot_eager", fullgraph=True)(q, beta), one(q, beta)), name
    spec = "family=gated_delta;algorithm=auto;training=1;normalize=1"
    opcheck(torch.ops.seqpar.linear_attention, (*_leaves((q, k, v)), _leaves((token, beta)), None, spec, comm.name),
            test_utils=("test_schema", "test_faketensor"))
    torch.compiler.reset()


@check
def drop_ins_of_the_delta_rule(comm, seed):
    tokens, bounds = 8 * comm.size, (0, 3, 8 * comm.size)
    q, k, v, gate, beta, _ = _inputs(seed, 1, tokens, 4, 2, 8, 6)
    context = fla.build_cp_context(torch.tensor(bounds), None)
    mine = lambda *xs: tuple(sp.shard(x, context.shards, comm) for x in xs)
    token = gate[..., 0].contiguous()
    for function, gates in ((fla.chunk_delta_rule, ()), (fla.chunk_gated_delta_rule, (token,)), (fla.chunk_kda, (gate,))):
        o, state = function(*mine(q, k, v, *gates, beta), use_qk_l2norm_in_kernel=True, cp_context=context)
        exact, _ = reference.delta(q, k, v, *(gates or (None,)), beta, normalize=True, cu_seqlens=bounds)
        assert state is None
        same(o, sp.shard(exact, context.shards, comm), 200)
    whole_sequence = fla.build_cp_context(torch.tensor((0, tokens)), None)
    initial = whole(seed + 9, 1, 4, 8, 6)
    o, state = fla.chunk_gated_delta_rule(*mine(q, k, v, token, beta), initial_state=initial, output_final_state=True,
                                          use_qk_l2norm_in_kernel=True, cp_context=whole_sequence)
    exact, final = reference.delta(q, k, v, token, beta, initial_state=initial, normalize=True)
    same(o, sp.shard(exact, context.shards, comm), 200)
    if comm.rank == comm.size - 1:
        same(state, final, 200)
    raises(ValueError, "delta_rule: beta is None", fla.chunk_delta_rule, q, k, v, None, cp_context=context)
    raises(ValueError, "output_final_state", fla.chunk_kda, q, k, v, gate, beta, output_final_state=True, cp_context=context)
    raises(TypeError, "chunk_kda: got return_intermediate_states", fla.chunk_kda, q, k, v, gate, beta, return_intermediate_states=True,
           cp_context=context)


@check
def gates_that_fla_computes(comm, seed):
    """In its kernels: outputs, states and gradients, also of the gates' parameters."""
    tokens, layout = 8 * comm.size, sp.Layout("contiguous", 8 * comm.size, comm.size)
    q, k, v, gate, _, grad = _inputs(seed, 1, tokens, 4, 2, 16, 32)
    logits, rates, channels, heads = whole(seed + 1, 1, tokens, 4), 0.3 * whole(seed + 2, 4), whole(seed + 3, 4 * 16), whole(seed + 4, 4)
    context, state = fla.build_cp_context([0, tokens], None), whole(seed + 5, 1, 4, 32, 16)
    raw = {"g": whole(seed + 6, 1, tokens, 4, 16), "beta": logits}
    softplus = torch.nn.functional.softplus
    on = dict(use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, use_qk_l2norm_in_kernel=True, initial_state=state, state_v_first=True,
              output_final_state=True, chunk_size=32, cp_context=context)
    for function, bias, more, decay, betas in (
            (fla.chunk_kda, channels, {"disable_recompute": True}, lambda g, a, b: -a.exp()[:, None] * softplus(g + b.view(4, 16)), 1),
            (fla.chunk_kda, channels, {"lower_bound": -5.0, "safe_gate": True, "allow_neg_eigval": True},
             lambda g, a, b: -5 * torch.sigmoid(a.exp()[:, None] * (g + b.view(4, 16))), 2),
            (fla.chunk_gated_delta_rule, heads, {"allow_neg_eigval": True}, lambda g, a, b: -a.exp() * softplus(g + b), 2)):
        g = raw["g"] if function is fla.chunk_kda else raw["g"][..., 0].contiguous()
        exact = _leaves((q, k, v, g, logits, rates, bias))
        expected, final = reference.delta(*exact[:3], decay(exact[3], *exact[5:]), betas * exact[4].sigmoid(), initial_state=state.mT,
                                          normalize=True)
        expected.backward(grad)
        mine = _leaves([*(sp.shard(x, layout, comm) for x in (q, k, v, g, logits)), rates, bias])
        out, after = function(*mine[:5], A_log=mine[5], dt_bias=mine[6], **more, **on)
        out.backward(sp.shard(grad, layout, comm))
        same(out, sp.shard(expected.detach(), layout, comm), 300)
        if comm.rank == comm.size - 1:
            same(after, final.detach().mT, 300)
        for one, other in zip(mine[:5], exact):
            same(one.grad, sp.shard(other.grad, layout, comm), 2000)
        for one, other in zip(mine[5:], exact[5:]):
            same(summed(one.grad, comm), other.grad, 4000)
    same(fla.chunk_kda(*mine[:3], sp.shard(raw["g"], layout, comm), mine[4], lower_bound=-1.0, use_gate_in_kernel=True,
                       use_beta_sigmoid_in_kernel=True, cp_context=context)[0],
         sp.kda(*mine[:3], -torch.sigmoid(sp.shard(raw["g"], layout, comm)), mine[4].sigmoid(), comm, layout=layout), 100)
    refused = {"allow_neg_eigval is True, expected use_beta_sigmoid_in_kernel": {"allow_neg_eigval": True},
               "got A_log, expected use_gate_in_kernel=True": {"A_log": rates}, "got use_gate_in_kernel, expected A_log": {"use_gate_in_kernel": True},
               "got dt_bias, expected use_gate_in_kernel=True": {"dt_bias": heads},
               "dt_bias has 4 elements, expected 64": {"use_gate_in_kernel": True, "A_log": rates, "dt_bias": heads},
               "lower_bound is 0.5, expected a negative": {"use_gate_in_kernel": True, "lower_bound": 0.5},
               "got use_gate_in_kernel, expected a lower_bound with safe_gate": {"use_gate_in_kernel": True, "A_log": rates, "safe_gate": True}}
    for text, options in refused.items():
        raises(ValueError, f"chunk_kda: {text}", fla.chunk_kda, q, k, v, raw["g"], logits, **options,
               cp_context=context)


@check
def simple_gla_with_flas_arguments(comm, seed):
    tokens, layout = 8 * comm.size, sp.Layout("contiguous", 8 * comm.size, comm.size)
    q, k, v, gate, _, _ = _inputs(seed, 1, tokens, 4, 2, 16, 32)
    context, state, rates = fla.build_cp_context([0, tokens], None), whole(seed + 5, 1, 4, 16, 32), -whole(seed + 6, 4).abs()
    mine = [sp.shard(x, layout, comm) for x in (q, k, v)]
    token = sp.shard(gate[..., 0].contiguous(), layout, comm)
    for arguments, function, gates in (((token,), sp.simple_gla, (token,)), ((None, rates), sp.retention, (rates,)), ((), sp.linear_attention, ())):
        o, final = fla.chunk_simple_gla(*mine, *arguments, scale=0.5, initial_state=state.mT, output_final_state=True, state_v_first=True,
                                        cp_context=context)
        expected, after = function(*mine, *gates, comm, scale=0.5, initial_state=state, output_final_state=True, layout=layout)
        same(o, expected)
        same(final, after.mT)
    o, final = fla.chunk_gla(*mine, sp.shard(gate, layout, comm), 0.5, state, True, cp_context=context)
    expected, after = sp.gla(*mine, sp.shard(gate, layout, comm), comm, scale=0.5, initial_state=state, output_final_state=True, layout=layout)
    same(o, expected)
    same(final, after)
    raises(ValueError, "got g and g_gamma", fla.chunk_simple_gla, *mine, token, rates, cp_context=context)


@check
def the_gated_delta_rule_of_qwen3_next(comm, seed):
    """Outputs and gradients are those of the function in transformers' model."""
    try:
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule
    except ImportError:
        raise Skip("no qwen3_next in transformers")
    tokens = 70 + comm.size
    layout = sp.Layout("contiguous", tokens, comm.size)
    q, k, v, gate, beta, grad = _inputs(seed, 1, tokens, 4, 4, 16, 8)
    tensors = (q, k, v, gate[..., 0].contiguous(), beta)
    exact, local = _leaves(tensors), _leaves(sp.shard(x, layout, comm) for x in tensors)
    expected, _ = torch_chunk_gated_delta_rule(*exact[:3], g=exact[3], beta=exact[4], use_qk_l2norm_in_kernel=True)
    expected.backward(grad)
    out = sp.gated_delta_rule(*local, comm, normalize=True, layout=layout)
    out.backward(sp.shard(grad, layout, comm))
    same(out, sp.shard(expected.detach(), layout, comm), 200)
    for one, other in zip(local, exact):
        largest = max(1.0, other.grad.abs().max().item())
        same(one.grad / largest, sp.shard(other.grad, layout, comm) / largest, 300)
