# Types of seqpar.torch.transformers; a test compares them with the module.
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

from . import Comm as Comm, Layout as Layout, _Kernel
from .._names import Softmax as _Softmax

_Bounds = Sequence[int] | Tensor | None

class Registration:
    comm: Comm
    layout: Layout | None
    cu_seqlens: _Bounds
    algorithm: _Softmax
    kernel: _Kernel
    def __init__(self, comm: Comm, layout: Layout | None = None, cu_seqlens: _Bounds = None, algorithm: _Softmax = "auto",
                 kernel: _Kernel = None) -> None: ...
    def __call__(self, *arguments: Any, **named: Any) -> tuple[Tensor, None]: ...

def register(comm: Comm, *, layout: Layout | None = None, cu_seqlens: _Bounds = None, algorithm: _Softmax = "auto",
             kernel: _Kernel = None, name: str = "seqpar", model: Module | None = None) -> Registration: ...

class TrainerMixin:
    def __init__(self, *arguments: Any, **named: Any) -> None: ...

class PackingCollator:
    tokens: int | None
    pad_token_id: int
    def __init__(self, tokens: int | None = None, pad_token_id: int = 0) -> None: ...
    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]: ...
