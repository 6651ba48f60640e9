"""accelerate with sharded sequences: a ParallelismConfig whose ranks of dimension "cp" share a batch.

    config = seqpar.torch.accelerate.ParallelismConfig(cp_size=4)
    accelerator = Accelerator(parallelism_config=config)
    sharder = config.sharder(model)                                     # sets the model's attention
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:                                                # equal on the ranks of a sequence
        shard = sharder(batch)
        loss = model(**shard, num_items_in_batch=shard.label_count).loss * config.cp_size
        accelerator.backward(loss)

Trainer and SFTTrainer take the configuration as TrainingArguments(parallelism_config=...), together with
seqpar.torch.transformers.TrainerMixin.
"""

import dataclasses
import os

import accelerate
import torch.distributed as dist

from .. import _abi
from . import _models
from ._batches import BatchSharder, Shard
from ._connect import comm
from ._trainer import require_mixin
from .transformers import register

__all__ = ["BatchSharder", "ParallelismConfig", "Shard"]

_SUPPORTED = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")


@dataclasses.dataclass(repr=False)
class ParallelismConfig(accelerate.ParallelismConfig):
    """accelerate's ParallelismConfig with seqpar's sequence parallelism over the dimension "cp". Data parallel ranks that
    no size names are replicas: cp_size=4 on 8 ranks is two sequences at a time. FSDP2 is optional, and DDP with "cp" is
    supported.

    algorithm  attention()'s
    kernel     register()'s
    layout     a kind of layout, None: "zigzag", except for algorithms with another one
    """

    algorithm: str = "auto"
    kernel: object = None
    layout: "str | None" = None

    def __post_init__(self):
        size = int(os.environ.get("PARALLELISM_CONFIG_CP_SIZE", "1")) if self.cp_size is None else self.cp_size
        if size < 1:
            raise ValueError(f"ParallelismConfig: cp_size is {size}, expected at least 1")
        if self.cp_handler is not None or self.cp_backend not in (None, "torch"):
            raise ValueError(f"ParallelismConfig: got cp_backend {self.cp_backend!r} and cp_handler {self.cp_handler!r}, expected none: the "
                             "backend of this class is seqpar")
        self.cp_size = 1  # accelerate refuses "cp" with DDP
        super().__post_init__()
        self.cp_size = self._sizes["cp"] = size
        if self.tp_size > 1 or self.sp_size > 1:
            raise ValueError(f"ParallelismConfig: tp_size is {self.tp_size} and sp_size {self.sp_size}, expected 1: seqpar shards sequences "
                             "over cp_size")
        if self.layout is not None:
            _abi.choose("ParallelismConfig: layout", self.layout, _abi.LAYOUTS)

    @property
    def cp_enabled(self):
        """False: accelerate's own context parallelism is off."""
        return False

    @property
    def non_dp_dim_names(self):
        """Names of the dimensions with the same batch on all ranks."""
        return ["cp"] if self.cp_size > 1 else []

    @property
    def dp_shard_cp_dim_names(self):
        """Names of the dimensions over which FSDP shards parameters."""
        return [*super().dp_shard_cp_dim_names, *self.non_dp_dim_names]

    @property
    def dp_cp_dim_names(self):
        """Names of the dimensions over which the loss is averaged."""
        return [*super().dp_cp_dim_names, *self.non_dp_dim_names]

    def build_device_mesh(self, device_type):
        """accelerate's, after replicas are counted."""
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if self.data_parallel_size == 1 and ranks % self.cp_size == 0:
            self._set_size("dp_replicate", ranks // self.cp_size)
        if self.total_size != ranks:
            raise ValueError(f"ParallelismConfig: dp_replicate_size {self.dp_replicate_size}, dp_shard_size {self.dp_shard_size} and cp_size "
                             f"{self.cp_size} are {self.total_size} ranks, expected {ranks}, the ranks that were started")
        return super().build_device_mesh(device_type)

    def _validate_accelerator(self, accelerator):
        require_mixin()
        kind = accelerator.distributed_type.name
        if kind not in _SUPPORTED or (kind == "NO" and self.total_size > 1):
            raise ValueError(f"ParallelismConfig: accelerate's distributed type is {kind}, expected one of {', '.join(_SUPPORTED)}")

    def comm(self):
        """The communicator of the ranks of a sequence. After the Accelerator is created. Collective at the first call."""
        if self.cp_size == 1:
            return comm(single=True)
        if self.device_mesh is None:
            raise RuntimeError("ParallelismConfig: there is no mesh yet, expected an Accelerator(parallelism_config=config) before")
        return comm(self.device_mesh["cp"])

    def sharder(self, model, name="seqpar"):
        """Registers attention under this name, sets it in a model of transformers, and returns a BatchSharder: call it with
        each whole batch, in training and evaluation. Collective at the first call."""
        registration = register(self.comm(), algorithm=self.algorithm, kernel=self.kernel, name=name)
        base = _models.base_of(model)
        base.set_attn_implementation(name)
        if base.config._attn_implementation != name:
            raise ValueError(f"ParallelismConfig: the attention of {type(base).__name__} cannot be set, expected a model with the attention "
                             "interface of transformers")
        _models.watch(base)
        return BatchSharder(registration, self.layout)

    def __getstate__(self):
        """Without process groups, for training_args.bin."""
        return {**self.__dict__, "device_mesh": None}
