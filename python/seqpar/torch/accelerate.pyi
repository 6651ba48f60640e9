# Types of seqpar.torch.accelerate; a test compares them with the module.
from collections.abc import Mapping
from typing import Any

import accelerate
from torch import Tensor
from torch.nn import Module

from . import Comm, Layout, _Kernel
from .transformers import Registration
from .._names import Kind as _Kind, Softmax as _Softmax

class ParallelismConfig(accelerate.ParallelismConfig):
    algorithm: _Softmax
    kernel: _Kernel
    layout: _Kind | None
    def __init__(self, dp_replicate_size: int | None = None, dp_shard_size: int | None = None, tp_size: int | None = None,
                 cp_size: int | None = None, *, algorithm: _Softmax = "auto", kernel: _Kernel = None,
                 layout: _Kind | None = None) -> None: ...
    def comm(self) -> Comm: ...
    def sharder(self, model: Module, name: str = "seqpar") -> BatchSharder: ...

class Shard(dict[str, Any]):
    given: Tensor | None
    label_count: Tensor | None
    layout: Layout
    def unshard(self, x: Tensor) -> Tensor: ...

class BatchSharder:
    registration: Registration
    comm: Comm
    layout: _Kind | None
    def __init__(self, registration: Registration, layout: _Kind | None = None) -> None: ...
    def __call__(self, batch: Mapping[str, Any]) -> Shard: ...
    def mean(self, x: Tensor) -> Tensor: ...
