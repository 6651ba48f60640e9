# Type stubs of seqpar.jax for type checkers and editors. A test compares them with the functions (jax_checks.py).
from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from jax import Array
from jax.sharding import Mesh

from .._abi import Error as Error
from .._names import Kind as _Kind, Linear as _Linear, Scan as _Scan, Softmax as _Softmax

_Bounds = Sequence[int] | None
_Type = Literal["float32", "float16", "bfloat16"] | None

class Comm:
    size: int
    def __init__(self, mesh: Mesh, axis: str) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Comm: ...
    def __exit__(self, *ignored: object) -> None: ...

class Layout:
    kind: str
    tokens: int
    ranks: int
    stripe: int
    def __init__(self, kind: _Kind, tokens: int, ranks: int, stripe: int = 1) -> None: ...
    @property
    def order(self) -> np.ndarray[Any, Any]: ...

@overload
def attention(q: Array, k: Array, v: Array, comm: Comm, *, sinks: Array | None = None,
              return_lse: Literal[False] = False, causal: bool = False, window: tuple[int, int] = (-1, -1), scale: float | None = None,
              softcap: float = 0.0, cu_seqlens: _Bounds = None, layout: Layout | None = None,
              algorithm: _Softmax = "auto", deterministic: bool = False, wire: _Type = None, inner: int = 0,
              reserve: bool = False) -> Array: ...
@overload
def attention(q: Array, k: Array, v: Array, comm: Comm, *, sinks: Array | None = None,
              return_lse: Literal[True], causal: bool = False, window: tuple[int, int] = (-1, -1), scale: float | None = None,
              softcap: float = 0.0, cu_seqlens: _Bounds = None, layout: Layout | None = None,
              algorithm: _Softmax = "auto", deterministic: bool = False, wire: _Type = None, inner: int = 0,
              reserve: bool = False) -> tuple[Array, Array]: ...
def explain(q: Any, k: Any, v: Any, comm: Comm, *,
            function: Literal["attention", "gla", "simple_gla", "retention", "linear_attention", "delta_rule", "gated_delta_rule",
                              "kda"] = "attention",
            log_decay: Any = None, beta: Any = None, **options: Any) -> dict[str, Any]: ...
@overload
def gla(q: Array, k: Array, v: Array, log_decay: Array, comm: Comm, *, scale: float | None = None,
        initial_state: Array | None = None, output_final_state: Literal[False] = False, cu_seqlens: _Bounds = None,
        algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> Array: ...
@overload
def gla(q: Array, k: Array, v: Array, log_decay: Array, comm: Comm, *, scale: float | None = None,
        initial_state: Array | None = None, output_final_state: Literal[True], cu_seqlens: _Bounds = None,
        algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> tuple[Array, Array]: ...
@overload
def simple_gla(q: Array, k: Array, v: Array, log_decay: Array, comm: Comm, *, scale: float | None = None,
               initial_state: Array | None = None, output_final_state: Literal[False] = False, cu_seqlens: _Bounds = None,
               algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> Array: ...
@overload
def simple_gla(q: Array, k: Array, v: Array, log_decay: Array, comm: Comm, *, scale: float | None = None,
               initial_state: Array | None = None, output_final_state: Literal[True], cu_seqlens: _Bounds = None,
               algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> tuple[Array, Array]: ...
@overload
def mamba2(x: Array, dt: Array, A: Array, B: Array, C: Array, chunk_size: int | None = None, D: Array | None = None,
           z: Array | None = None, dt_bias: Array | None = None, initial_states: Array | None = None, cu_seqlens: _Bounds = None,
           dt_softplus: bool = False, dt_limit: tuple[float, float] = ..., return_final_states: Literal[False] = False, *,
           comm: Comm, algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> Array: ...
@overload
def mamba2(x: Array, dt: Array, A: Array, B: Array, C: Array, chunk_size: int | None = None, D: Array | None = None,
           z: Array | None = None, dt_bias: Array | None = None, initial_states: Array | None = None, cu_seqlens: _Bounds = None,
           dt_softplus: bool = False, dt_limit: tuple[float, float] = ..., return_final_states: Literal[True] = ..., *,
           comm: Comm, algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> tuple[Array, Array]: ...
@overload
def retention(q: Array, k: Array, v: Array, log_decay: Array, comm: Comm, *, scale: float | None = None,
              initial_state: Array | None = None, output_final_state: Literal[False] = False, cu_seqlens: _Bounds = None,
              algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> Array: ...
@overload
def retention(q: Array, k: Array, v: Array, log_decay: Array, comm: Comm, *, scale: float | None = None,
              initial_state: Array | None = None, output_final_state: Literal[True], cu_seqlens: _Bounds = None,
              algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> tuple[Array, Array]: ...
@overload
def linear_attention(q: Array, k: Array, v: Array, comm: Comm, *, scale: float | None = None,
                     initial_state: Array | None = None, output_final_state: Literal[False] = False, cu_seqlens: _Bounds = None,
                     algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> Array: ...
@overload
def linear_attention(q: Array, k: Array, v: Array, comm: Comm, *, scale: float | None = None,
                     initial_state: Array | None = None, output_final_state: Literal[True], cu_seqlens: _Bounds = None,
                     algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True) -> tuple[Array, Array]: ...
@overload
def delta_rule(q: Array, k: Array, v: Array, beta: Array, comm: Comm, *, scale: float | None = None,
               initial_state: Array | None = None, output_final_state: Literal[False] = False, cu_seqlens: _Bounds = None,
               algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True, normalize: bool = False) -> Array: ...
@overload
def delta_rule(q: Array, k: Array, v: Array, beta: Array, comm: Comm, *, scale: float | None = None,
               initial_state: Array | None = None, output_final_state: Literal[True], cu_seqlens: _Bounds = None,
               algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True, normalize: bool = False) -> tuple[Array, Array]: ...
@overload
def gated_delta_rule(q: Array, k: Array, v: Array, log_decay: Array, beta: Array, comm: Comm, *, scale: float | None = None,
                     initial_state: Array | None = None, output_final_state: Literal[False] = False, cu_seqlens: _Bounds = None,
                     algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True, normalize: bool = False) -> Array: ...
@overload
def gated_delta_rule(q: Array, k: Array, v: Array, log_decay: Array, beta: Array, comm: Comm, *, scale: float | None = None,
                     initial_state: Array | None = None, output_final_state: Literal[True], cu_seqlens: _Bounds = None,
                     algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True, normalize: bool = False) -> tuple[Array, Array]: ...
@overload
def kda(q: Array, k: Array, v: Array, log_decay: Array, beta: Array, comm: Comm, *, scale: float | None = None,
        initial_state: Array | None = None, output_final_state: Literal[False] = False, cu_seqlens: _Bounds = None,
        algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True, normalize: bool = False) -> Array: ...
@overload
def kda(q: Array, k: Array, v: Array, log_decay: Array, beta: Array, comm: Comm, *, scale: float | None = None,
        initial_state: Array | None = None, output_final_state: Literal[True], cu_seqlens: _Bounds = None,
        algorithm: _Linear = "auto", wire: _Type = None, reserve: bool = True, normalize: bool = False) -> tuple[Array, Array]: ...
def to_heads(x: Array, comm: Comm, *, query_heads: int = 0) -> Array: ...
def to_sequence(x: Array, comm: Comm, *, heads: int, query_heads: int = 0) -> Array: ...
def all_gather(x: Array, comm: Comm, *, axis: int = 1) -> Array: ...
def reduce_scatter(x: Array, comm: Comm, *, axis: int = 1) -> Array: ...
def halo(x: Array, comm: Comm, *, left: int = 0, right: int = 0, axis: int = 1,
         periodic: bool = False) -> tuple[Array, Array]: ...
@overload
def redistribute(x: Array, source: Layout, target: Layout, comm: Comm, *, axis: int = 1) -> Array: ...
@overload
def redistribute(x: tuple[Array, ...], source: Layout, target: Layout, comm: Comm, *, axis: int = 1) -> tuple[Array, ...]: ...
def ring_permute(x: Array, comm: Comm, *, by: int = 1) -> Array: ...
def merge(out: Array, lse: Array, comm: Comm) -> tuple[Array, Array]: ...
def all_scan(state: Array, transition: Array | None, comm: Comm, *, op: Literal["sum", "scalar", "diag", "matrix"] = "diag",
             initial: Array | None = None, reverse: bool = False, decay: Literal["linear", "log", "log2"] = "linear",
             wire: _Type = None, algorithm: _Scan = "auto") -> tuple[Array, Array]: ...
def short_conv(x: Array, weight: Array, comm: Comm, *, bias: Array | None = None,
               activation: Literal["silu", "swish"] | None = None, cu_seqlens: _Bounds = None) -> Array: ...
def shard(x: Array, layout: Layout, axis: int = 1) -> Array: ...
def unshard(x: Array, layout: Layout, axis: int = 1) -> Array: ...
def positions(layout: Layout) -> Array: ...
