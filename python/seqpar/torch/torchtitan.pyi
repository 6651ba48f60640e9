# Types of seqpar.torch.torchtitan; a test compares them with the module.
from typing import Any, TypeVar

from torch import Tensor
from torchtitan.protocols.module import Module

_Config = TypeVar("_Config")

class Attention(Module):
    algorithm: str
    comm: Any
    kind: str
    def __init__(self, config: Any) -> None: ...
    def parallelize(self, parallel_dims: Any) -> None: ...
    def forward(self, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, *, attention_masks: Any = None, scale: float | None = None,
                enable_gqa: bool = False) -> Tensor: ...

def convert(config: _Config, algorithm: str = "auto") -> _Config: ...
