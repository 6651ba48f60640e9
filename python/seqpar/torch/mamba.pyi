# Types of seqpar.torch.mamba; a test compares them with the module.
from contextlib import AbstractContextManager
from typing import Sequence, TypeVar

from torch import Tensor
from torch.nn import Module

from . import Comm, Layout

_Bounds = Sequence[int] | Tensor | None
_Model = TypeVar("_Model", bound=Module)

def sizes_of(layer: Module) -> tuple[int, int, int, int, int]: ...
def forward(layer: Module, u: Tensor, comm: Comm, *, seq_idx: Tensor | None = None, cu_seqlens: _Bounds = None,
            layout: Layout | None = None) -> Tensor: ...
def context_parallel(model: _Model, comm: Comm, *, cu_seqlens: _Bounds = None,
                     layout: Layout | None = None) -> AbstractContextManager[_Model]: ...
