"""TransformerEngine's attention in Megatron-Core with cp_comm_type="seqpar", as a case of clients.py. The Python sources of
TransformerEngine and Megatron-Core are those of PyPI. TransformerEngine's extension is replaced: its enumerations have the
names that the sources ask for, its functions cannot be called. The linear layers and norms are Megatron-Core's own, because
TransformerEngine's call the extension."""

import contextlib
import enum
import importlib
import os
import sys
import types
import unittest.mock

import torch
import torch.distributed as dist

import seqpar.torch as sp
import venvs
from client_stacks import _gpt, _hosts, _results, _start
from client_support import case, raises


class _Names(type):
    """A class of the extension: an attribute is a number, in the order in which they are asked for."""

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        setattr(cls, name, sum(not x.startswith("_") for x in vars(cls)))
        return getattr(cls, name)


class _Extension(types.ModuleType):
    """transformer_engine_torch: no function computes. The sources compare the members of these two."""

    DType = enum.IntEnum("DType", "kByte kInt32 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat4E2M1", start=0)
    NVTE_Fused_Attn_Backend = enum.IntEnum("NVTE_Fused_Attn_Backend", "NVTE_No_Backend NVTE_F16_arbitrary_seqlen NVTE_FP8", start=0)
    __all__ = ()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        setattr(self, name, _Names(name, (), {}))
        return getattr(self, name)


def _import():
    """TransformerEngine's own modules around that extension: only the function that loads libraries is replaced."""
    folder = venvs.sources("transformer-engine")
    sys.path.append(str(folder))
    sys.modules["transformer_engine_torch"] = _Extension("transformer_engine_torch")
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # transformer_engine.common then loads no library
    package = sys.modules["transformer_engine"] = types.ModuleType("transformer_engine")
    package.__path__ = [str(folder / "transformer_engine")]
    common = importlib.import_module("transformer_engine.common")
    common.load_framework_extension = lambda framework: None
    del sys.modules["transformer_engine"]
    importlib.import_module("transformer_engine").common = common
    return importlib.import_module("transformer_engine.pytorch")


def _model(ranks, kind, core, **options):
    with unittest.mock.patch.object(torch.cuda, "is_available", lambda: core is not None):  # constructors of TransformerEngine ask
        return _gpt(ranks, kind, core, **options)


def _loss(model, ids, places, labels=None, **more):
    return model(ids, places, None, labels=ids if labels is None else labels, **more).sum()


def _packed(model, ids, bounds, ranks):
    """The loss of packed sequences: of the whole, or of each alone on one process."""
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    parts = [ids[0, begin:end] for begin, end in zip(bounds, bounds[1:])]
    if ranks == 1:
        future = torch.ones(16, 16, dtype=torch.bool).triu(1)[None, None]
        return sum(model(x[None], torch.arange(len(x))[None], future[..., :len(x), :len(x)], labels=x[None]).sum() for x in parts)
    comm = sp.comm(parallel_state.get_context_parallel_group())
    layout = sp.Layout("zigzag", 16, ranks, cu_seqlens=bounds)
    mine, places = (sp.shard(x[None], layout, comm) for x in (ids[0], torch.cat([torch.arange(len(x)) for x in parts])))
    cuts = torch.tensor(bounds, dtype=torch.int32)
    longest = max(len(x) for x in parts)
    return _loss(model, mine, places, packed_seq_params=PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=cuts, cu_seqlens_kv=cuts, cu_seqlens_q_padded=cuts, cu_seqlens_kv_padded=cuts,
        max_seqlen_q=longest, max_seqlen_kv=longest))


@case((2, 2), needs="megatron-core", alone=True, when=lambda: venvs.sources("transformer-engine"))
def attention_of_transformer_engine(ranks, cp, folder):
    """A GPT with TEDotProductAttention and seqpar.torch.te.patch() against Megatron-Core's attention on one process: causal,
    windows, packed sequences."""
    core, found, ids = None, {}, torch.randint(50, (2, 16), generator=torch.Generator().manual_seed(8))
    if ranks > 1:
        te = _import()
        from seqpar.torch import te as ours
        ours.patch()
        assert te.DotProductAttention.forward.seqpar_original
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.utils import get_batch_on_this_cp_rank
    with contextlib.ExitStack() as stack:
        if ranks > 1:
            _start(ranks)
            from megatron.core.extensions import transformer_engine
            assert transformer_engine.HAVE_TE
            core = transformer_engine.TEDotProductAttention
            stack.enter_context(unittest.mock.patch.object(core, "cp_stream", "none"))  # torch.cuda.Stream() needs a GPU
        else:
            port = stack.enter_context(venvs.reserved_port())
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
        stack.enter_context(_hosts())
        parallel_state.initialize_model_parallel(context_parallel_size=ranks)
        random.initialize_rng_tracker(inference_rng_tracker=True)
        batch = get_batch_on_this_cp_rank({"ids": ids, "places": torch.arange(16).expand(2, 16), "labels": ids.roll(-1, 1)})
        future = torch.ones(16, 16, dtype=torch.bool).triu(1)[None, None]
        for kind, options in (("seqpar", {}), ("seqpar:ulysses", {"window_size": (5, 0)})):
            model = _model(ranks, kind, core, **(options if ranks > 1 else {}))
            mask = future | torch.ones_like(future).tril(-6) if options else future
            loss = model(batch["ids"], batch["places"], mask if ranks == 1 else None, labels=batch["labels"]).sum() / ids.numel()
            found.update({f"{kind} {name}": x for name, x in _backward(model, loss, ranks).items()})
        model = _model(ranks, "seqpar" if ranks > 1 else None, core)
        found.update({f"packed {name}": x for name, x in _backward(model, _packed(model, ids[:1], (0, 4, 12, 16), ranks) / 16, ranks).items()})
        if ranks > 1:
            _refusals(ranks, core)
        parallel_state.destroy_model_parallel()
    return found


def _backward(model, loss, ranks):
    loss.backward()
    if ranks > 1:
        dist.all_reduce(loss.detach())
    return _results(model, loss, ranks)


def _refusals(ranks, core):
    ids = torch.zeros(1, 8, dtype=torch.int64)
    with raises(ValueError, "attention_dropout is 0.1"):
        _loss(_model(ranks, "seqpar", core, attention_dropout=0.1), ids, ids)
    from megatron.core.transformer.enums import AttnMaskType
    attention = _model(ranks, "seqpar", core).decoder.layers[0].self_attention.core_attention
    assert isinstance(attention, core) and type(attention).__mro__[1].__module__.startswith("transformer_engine.pytorch.attention")
    q = torch.zeros(8, 1, 4, 8)
    with raises(TypeError, "core_attention_bias_type is given"):
        attention(q, q[:, :, :2], q[:, :, :2], None, AttnMaskType.causal, attention_bias=torch.zeros(1, 4, 8, 8))
