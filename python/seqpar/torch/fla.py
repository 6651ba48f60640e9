"""The context-parallel interface of flash-linear-attention, with All-Scan instead of its gather.

    import seqpar.torch.fla as fla_sp
    context = fla_sp.build_cp_context(cu_seqlens, group, conv1d_kernel_size=4)     # of the whole batch, on every rank
    x, _ = fla_sp.causal_conv1d(x, weight, bias, activation="silu", cp_context=context)
    o, _ = fla_sp.chunk_gla(q, k, v, g, cp_context=context)

chunk_simple_gla, chunk_delta_rule, chunk_gated_delta_rule, chunk_gated_delta_product and chunk_kda run on hosts and GPUs, also with a
cp_context where FLA's functions take none. For the delta rules of FLA's kernels, patch() replaces the gather by an All-Scan. Tensors are
this rank's shards, the batch is 1, and the number of tokens is a multiple of the ranks, as in FLA. Options of FLA that are None or False
are accepted, others that are not named below are errors.
"""

import contextlib
import dataclasses
import functools
import sys

import torch

from .. import _shapes
from . import _linear_functions, _ops
from ._comm import Comm
from ._connect import comm as make_comm
from ._conv import short_conv
from ._delta_product import gated_delta_product
from ._fla_gates import beta_of, decay_of
from ._layout import Layout, bounds_of


@dataclasses.dataclass
class FLACPContext:
    """FLA's dataclass with seqpar's additional fields: the communicator, the packing of the whole, and its Layout."""

    group: object = None
    cu_seqlens: torch.Tensor = None
    cu_seqlens_cpu: torch.Tensor = None
    is_last_rank: bool = None
    pre_num_ranks: int = None
    is_first_rank: bool = None
    post_num_ranks: int = None
    conv1d_kernel_size: int = None
    pre_num_conv_tokens: int = None
    pre_num_ranks_dev: torch.Tensor = None
    post_num_ranks_dev: torch.Tensor = None
    layout: str = "contiguous"
    comm: Comm = None
    bounds: tuple = None
    shards: Layout = None

    def copy_for_backward(self):
        return dataclasses.replace(self, cu_seqlens=self.cu_seqlens.clone(), cu_seqlens_cpu=self.cu_seqlens_cpu.clone())

    @property
    def num_seqs(self):
        return 0 if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def is_cp_enabled(self):
        return self.group is not None


def build_cp_context(cu_seqlens, group, conv1d_kernel_size=None, cu_seqlens_cpu=None, use_tf32x3_affine_chain=True,
                     layout="contiguous"):
    """FLA's build_cp_context(): `cu_seqlens` of the whole batch, before it is sharded. Collective at a group's first
    use. FLA's zigzag layout is refused: a contiguous one is equally balanced for linear attention, and has half the
    chain. use_tf32x3_affine_chain, an argument of older releases, must be True."""
    if use_tf32x3_affine_chain is not True:
        raise ValueError(f"build_cp_context: use_tf32x3_affine_chain is {use_tf32x3_affine_chain}, expected True")
    if layout != "contiguous":
        raise ValueError(f"build_cp_context: layout is {layout!r}, expected 'contiguous'")
    comm = make_comm(group)
    bounds = bounds_of(cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu)
    if bounds is None:
        raise TypeError("build_cp_context: cu_seqlens is None, expected the bounds of the sequences in the whole batch")
    _shapes.require_bounds("build_cp_context", bounds, bounds[-1])
    if bounds[-1] % comm.size:
        raise ValueError(f"build_cp_context: got {bounds[-1]} tokens, expected a multiple of {comm.size}, the ranks")
    part = bounds[-1] // comm.size
    begin, end = part * comm.rank, part * (comm.rank + 1)
    here = [(s, e) for s, e in zip(bounds, bounds[1:]) if s < e and e > begin and s < end]
    first, last = here[0][0], here[-1][1]
    local = torch.tensor([max(s, begin) - begin for s, _ in here] + [part], dtype=torch.int32, device="cpu")
    before, behind = comm.rank - first // part, (last - 1) // part - comm.rank
    return FLACPContext(
        group=group, cu_seqlens=local.to(comm.device), cu_seqlens_cpu=local, is_last_rank=behind == 0, pre_num_ranks=before,
        is_first_rank=before == 0, post_num_ranks=behind, conv1d_kernel_size=conv1d_kernel_size,
        pre_num_conv_tokens=max(0, begin - first), comm=comm, bounds=bounds,
        shards=Layout("contiguous", bounds[-1], comm.size))


def _require(name, context):
    if context is None:
        raise ValueError(f"{name}: cp_context is None, expected build_cp_context()'s: without one FLA's own function serves")


_OF_CONTEXT = ("cu_seqlens", "cu_seqlens_cpu", "chunk_indices")  # which FLA takes from the context, too


def _require_no_more(name, rest):
    """Raises TypeError for options of FLA's functions that change the result; None and False do not."""
    unknown = sorted(option for option, x in rest.items() if option not in _OF_CONTEXT and x is not None and x is not False)
    if unknown:
        raise TypeError(f"{name}: got {', '.join(unknown)}, which it does not support")


def _run(function, name, q, k, v, rest, unknown, context, scale, initial_state, output_final_state, state_v_first=False,
         disable_recompute=False, **more):
    """rest: the arguments of `function` between v and comm. more: its other options."""
    _require_no_more(name, unknown)
    _require(name, context)
    if output_final_state and len(context.bounds) > 2:
        raise ValueError(f"{name}: got output_final_state with {len(context.bounds) - 1} sequences, expected one")
    if state_v_first and initial_state is not None:
        initial_state = initial_state.mT
    if disable_recompute:
        more["reserve"] = True
    rest = [x.float() if getattr(x, "dtype", None) == torch.float16 else x for x in rest]
    bounds = None if len(context.bounds) == 2 else context.bounds
    out = function(q, k, v, *rest, context.comm, scale=scale, initial_state=initial_state, cu_seqlens=bounds,
                   output_final_state=output_final_state, layout=context.shards, **more)
    if not output_final_state:
        return out, None
    return (out[0], out[1].mT) if state_v_first else out


def chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None,
              cu_seqlens_cpu=None, cp_context=None, **rest):
    """gla() with FLA's arguments, as chunk_delta_rule()."""
    return _run(_linear_functions.gla, "chunk_gla", q, k, v, (g,), rest, cp_context, scale, initial_state, output_final_state, state_v_first)


def chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, state_v_first=False,
                     cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None, **rest):
    """simple_gla() with FLA's arguments, as chunk_delta_rule(); with g_gamma [heads] instead of g retention(), with neither
    linear_attention()."""
    if g is not None and g_gamma is not None:
        raise ValueError("chunk_simple_gla: got g and g_gamma, expected at most one of them")
    function, gates = (_linear_functions.simple_gla, (g,)) if g is not None else (_linear_functions.retention, (g_gamma,))
    if g is None and g_gamma is None:
        function, gates = _linear_functions.linear_attention, ()
    return _run(function, "chunk_simple_gla", q, k, v, gates, rest, cp_context, scale, initial_state, output_final_state, state_v_first)


def chunk_delta_rule(q, k, v, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
                     cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None, **rest):
    """delta_rule() with FLA's arguments: (o, state). cu_seqlens is the context's. initial_state: of all sequences,
    equal on all ranks. output_final_state, for one sequence: the state after this rank's last token, so the last rank's
    is final; else None."""
    return _run(_linear_functions.delta_rule, "chunk_delta_rule", q, k, v, (beta,), rest, cp_context, scale, initial_state,
                output_final_state, normalize=use_qk_l2norm_in_kernel)


def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
                           use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None,
                           cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, *, use_gate_in_kernel=False, A_log=None, dt_bias=None,
                           chunk_size=64, **rest):
    """gated_delta_rule() with FLA's arguments, as chunk_delta_rule(). use_gate_in_kernel: the decays are
    -exp(A_log) softplus(g + dt_bias), with parameters [heads]. use_beta_sigmoid_in_kernel: beta are logits; allow_neg_eigval: twice
    their sigmoid. chunk_size has no effect."""
    name = "chunk_gated_delta_rule"
    gates = decay_of(name, g, use_gate_in_kernel, A_log, dt_bias), beta_of(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _run(_linear_functions.gated_delta_rule, name, q, k, v, gates, rest, cp_context, scale, initial_state, output_final_state,
                state_v_first, normalize=use_qk_l2norm_in_kernel)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
              use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=None,
              disable_recompute=False, return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
              cp_context=None, *, A_log=None, dt_bias=None, chunk_size=64, **rest):
    """kda() with FLA's arguments, as chunk_gated_delta_rule(). g: the logarithms of the decays; use_gate_in_kernel:
    -exp(A_log) softplus(g + dt_bias), or with lower_bound lower_bound sigmoid(exp(A_log) (g + dt_bias)), with A_log [heads] and dt_bias
    [heads * dk]. disable_recompute: kda()'s `reserve`."""
    name = "chunk_kda"
    gates = (decay_of(name, g, use_gate_in_kernel, A_log, dt_bias, safe_gate, lower_bound),
             beta_of(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval))
    return _run(_linear_functions.kda, name, q, k, v, gates, {**rest, "return_intermediate_states": return_intermediate_states}, cp_context,
                scale, initial_state, output_final_state, state_v_first, disable_recompute, normalize=use_qk_l2norm_in_kernel)


def chunk_gated_delta_product(q, k, v, g, beta, num_householder, scale=None, initial_state=None, output_final_state=False,
                              use_qk_l2norm_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None, **rest):
    """gated_delta_product() with FLA's arguments, as chunk_delta_rule(). The context's bounds are of tokens; k, v and
    beta have num_householder rows per token. g: None: no decay."""
    return _run(gated_delta_product, "chunk_gated_delta_product", q, k, v, (g, beta, num_householder), rest, cp_context, scale,
                initial_state, output_final_state, normalize=use_qk_l2norm_in_kernel)


def causal_conv1d(x, weight=None, bias=None, residual=None, initial_state=None, output_final_state=False, activation=None, backend="triton",
                  cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, **rest):
    """short_conv() with FLA's arguments: (y, None). cu_seqlens is the context's, backend has no effect."""
    _require_no_more("causal_conv1d", {"residual": residual, "initial_state": initial_state, "output_final_state": output_final_state, **rest})
    _require("causal_conv1d", cp_context)
    return short_conv(x, weight, cp_context.comm, bias=bias, activation=activation, cu_seqlens=cp_context.bounds,
                      layout=cp_context.shards), None


def exchange(hm, context, reverse=False):
    """The incoming state [heads][K][V] of this rank's first sequence, from every rank's hm [heads][K][V + K]: the state
    S and the transition M of its last sequence's part on the rank. In reverse, the incoming gradient of the last
    sequence, from those of the first: FLA gathers hm of all ranks and multiplies, All-Scan passes S along."""
    value_dim = hm.shape[2] - hm.shape[1]
    state, transition = hm[..., :value_dim].contiguous(), hm[..., value_dim:]
    several = context.num_seqs > 1
    flag = (1 if context.is_first_rank else 0) | (2 if several else 0)
    if reverse:
        flag = 2 if several or context.is_first_rank else 0
        state = state.zero_() if context.is_first_rank else state
        transition = transition.mT  # the reverse scan transposes it again
    return _ops.states_before(state, transition.contiguous(), reverse, [flag], context.comm.name)


def _merge(h, ag_hm, state_v_first=False, STATE_V_FIRST=False, **ignored):
    """Replaces FLA's multiplication of gathered states: the exchange has computed the state already."""
    h.copy_(ag_hm.mT if state_v_first or STATE_V_FIRST else ag_hm)


class _Kernel:
    """_merge() in the form of a Triton kernel, as in older releases."""

    def __getitem__(self, grid):
        return _merge


def _replace(old, new):
    """Replaces `old` by `new` in all modules of FLA: each imports it under a separate name."""
    for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "fla"]:
        for name in [name for name, value in vars(module).items() if value is old]:
            setattr(module, name, new)


@contextlib.contextmanager
def patch(module=None):
    """Inside, FLA's chunk_gated_delta_rule, chunk_kda and other functions that pass states by fla.ops.cp exchange them
    by All-Scan, for a cp_context of build_cp_context() above. Backward passes must run inside, too. `module`:
    fla.ops.cp.chunk_delta_h, or one with its functions."""
    if module is None:
        from fla.ops.cp import chunk_delta_h as module
    names = {"chunk_gated_delta_rule_fwd_h_pre_process": False, "chunk_gated_delta_rule_bwd_dhu_pre_process": True}
    originals = {name: getattr(module, name) for name in names}
    under_way = []

    def following(original, reverse):
        @functools.wraps(original)
        def pre_process(*arguments, context=None, **named):
            under_way.append((context, reverse))
            try:
                return original(*arguments, context=context, **named)
            finally:
                under_way.pop()

        return pre_process

    def gather(hm, group=None, **ignored):
        if under_way and isinstance(under_way[-1][0], FLACPContext):
            return exchange(hm, *under_way[-1]), None
        raise ValueError("seqpar.torch.fla.patch: got a cp_context of FLA's own, expected seqpar's build_cp_context()'s")

    merges = {"chunk_cp_merge": _merge, "merge_fwd_bwd_kernel": _Kernel()}  # the releases' names: since 0.6, before
    inner = {"all_gather_into_tensor": gather, **{name: f for name, f in merges.items() if hasattr(module, name)}}
    before = {name: getattr(module, name) for name in inner}
    wrapped = {name: following(originals[name], reverse) for name, reverse in names.items()}
    try:
        for name, function in {**wrapped, **inner}.items():
            setattr(module, name, function)
        for name, function in wrapped.items():
            _replace(originals[name], function)
        yield
    finally:
        for name, function in wrapped.items():
            _replace(function, originals[name])
        for name, function in {**originals, **before}.items():
            setattr(module, name, function)
