# Types of seqpar.torch.fla; a test compares them with the module.
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Literal

from torch import Tensor
from torch.distributed import ProcessGroup

from . import Comm as Comm, Layout as Layout

class FLACPContext:
    group: ProcessGroup | None
    cu_seqlens: Tensor
    cu_seqlens_cpu: Tensor
    is_last_rank: bool
    pre_num_ranks: int
    is_first_rank: bool
    post_num_ranks: int
    conv1d_kernel_size: int | None
    pre_num_conv_tokens: int
    pre_num_ranks_dev: Tensor | None
    post_num_ranks_dev: Tensor | None
    layout: str
    comm: Comm
    bounds: tuple[int, ...]
    shards: Layout
    def copy_for_backward(self) -> FLACPContext: ...
    @property
    def num_seqs(self) -> int: ...
    @property
    def is_cp_enabled(self) -> bool: ...

def build_cp_context(cu_seqlens: Sequence[int] | Tensor, group: ProcessGroup | None, conv1d_kernel_size: int | None = None,
                     cu_seqlens_cpu: Sequence[int] | Tensor | None = None, use_tf32x3_affine_chain: bool = True,
                     layout: Literal["contiguous"] = "contiguous") -> FLACPContext: ...
def chunk_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
              output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: object = None, cu_seqlens_cpu: object = None,
              cp_context: FLACPContext | None = None, **rest: Any) -> tuple[Tensor, Tensor | None]: ...
def chunk_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None, scale: float | None = None,
                     initial_state: Tensor | None = None, output_final_state: bool = False, state_v_first: bool = False,
                     cu_seqlens: object = None, cu_seqlens_cpu: object = None, cp_context: FLACPContext | None = None,
                     **rest: Any) -> tuple[Tensor, Tensor | None]: ...
def chunk_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float | None = None,
                     initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
                     cu_seqlens: object = None, cu_seqlens_cpu: object = None, cp_context: FLACPContext | None = None,
                     **rest: Any) -> tuple[Tensor, Tensor | None]: ...
def chunk_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
                           initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
                           use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
                           cu_seqlens: object = None, cu_seqlens_cpu: object = None, chunk_indices: object = None,
                           cp_context: FLACPContext | None = None, *, use_gate_in_kernel: bool = False, A_log: Tensor | None = None,
                           dt_bias: Tensor | None = None, chunk_size: int = 64, **rest: Any) -> tuple[Tensor, Tensor | None]: ...
def chunk_gated_delta_product(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, num_householder: int,
                              scale: float | None = None, initial_state: Tensor | None = None, output_final_state: bool = False,
                              use_qk_l2norm_in_kernel: bool = False, cu_seqlens: object = None, cu_seqlens_cpu: object = None,
                              cp_context: FLACPContext | None = None, **rest: Any) -> tuple[Tensor, Tensor | None]: ...
def chunk_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
              initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
              use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
              safe_gate: bool = False, lower_bound: float | None = None, disable_recompute: bool = False,
              return_intermediate_states: Literal[False] = False, state_v_first: bool = False, cu_seqlens: object = None,
              cu_seqlens_cpu: object = None, cp_context: FLACPContext | None = None, *, A_log: Tensor | None = None,
              dt_bias: Tensor | None = None, chunk_size: int = 64, **rest: Any) -> tuple[Tensor, Tensor | None]: ...
def causal_conv1d(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, residual: None = None,
                  initial_state: None = None, output_final_state: Literal[False] | None = False,
                  activation: Literal["silu", "swish"] | None = None, backend: str | None = "triton",
                  cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None, chunk_indices: Tensor | None = None,
                  cp_context: FLACPContext | None = None, **rest: Any) -> tuple[Tensor, None]: ...
def exchange(hm: Tensor, context: FLACPContext, reverse: bool = False) -> Tensor: ...
def patch(module: ModuleType | None = None) -> AbstractContextManager[None]: ...
