# Names that functions of seqpar.torch and seqpar.jax accept, only for type checkers. A test compares them with the
# library's.
from typing import Literal

Kind = Literal["contiguous", "zigzag", "striped", "pieces"]
Softmax = Literal[
    "auto", "local", "ring", "ring_pass_q", "zigzag", "striped", "burst", "double_ring", "allgather_kv", "ulysses", "usp", "mesh",
    "attention2d", "dist_attn", "startrail", "ring_self_attention", "megatron_sp"]
Linear = Literal["auto", "local", "zeco", "lasp1", "lasp2"]
Scan = Literal["auto", "chain", "oneshot", "transposed", "doubling", "hier", "lasp1", "lasp2"]
