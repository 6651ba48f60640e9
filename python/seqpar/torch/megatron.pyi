# Types of seqpar.torch.megatron; a test compares them with the module.
from typing import Any, TypeVar

from megatron.core.transformer.dot_product_attention import DotProductAttention

_Spec = TypeVar("_Spec")

class CoreAttention(DotProductAttention):
    cp_comm_type: str
    def forward(self, query: Any, key: Any, value: Any, attention_mask: Any, attn_mask_type: Any = None, attention_bias: Any = None,
                packed_seq_params: Any = None) -> Any: ...

def layer_spec(spec: _Spec) -> _Spec: ...
