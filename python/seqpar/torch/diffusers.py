"""diffusers with context parallelism by seqpar: the attention backend "seqpar".

    import seqpar.torch.diffusers
    seqpar.torch.diffusers.register()
    model.set_attention_backend("seqpar")
    model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=4, ulysses_anything=True))

diffusers cuts the inputs and gathers the output of the model; each layer's self-attention is seqpar's attention(), with
its gradients. ulysses_degree selects "ulysses", ring_degree "ring", both "usp". With ulysses_anything or ring_anything
any length and any number of heads is supported. Attention to keys that every rank has, such as the text's, is local.
"""

from diffusers.models import attention_dispatch

from ._agreement import gather_integer
from ._attention import attention
from ._connect import comm as make_comm
from ._define import autocasted
from ._kernels import _Tokens, _by_heads, sdpa
from ._layout import Layout
from ._refusals import tell

__all__ = ["register"]

_NAME = "seqpar"


def _algorithm(config):
    """(algorithm, the ranks of the inner group) of a ContextParallelConfig."""
    if config.ring_degree == 1:
        return "ulysses", 0
    return ("ring", 0) if config.ulysses_degree == 1 else ("usp", config.ulysses_degree)


def _lengths(x, config, comm):
    """The number of tokens on each rank. diffusers cuts tensors evenly, except with its options for any length."""
    if not (config.ulysses_anything or config.ring_anything):
        return (x.shape[1],) * comm.size
    return gather_integer(comm, x.shape[1])


def _distributed(q, k, v, config, algorithm, causal, scale):
    comm = make_comm(config._flattened_mesh)
    queries, keys = _lengths(q, config, comm), _lengths(k, config, comm)
    layout, kv_layout = (Layout("contiguous", sum(x), comm.size) for x in (queries, keys))
    if layout.lengths == queries and kv_layout.lengths == keys:
        chosen, inner = _algorithm(config) if algorithm is None else (algorithm, 0)
        cross = {} if keys == queries else {"kv_layout": kv_layout}
        return attention(q, k, v, comm, causal=causal, scale=scale, layout=layout, algorithm=chosen, inner=inner, **cross)
    # Tokens of two modalities, each cut separately: other lengths than those of one cut.
    if causal or keys != queries:
        raise ValueError(f"seqpar attention: the ranks have {queries} queries and {keys} keys, expected {layout.lengths} and "
                         f"{kv_layout.lengths} for causal attention and cross-attention")
    call = {"causal": False, "window": (-1, -1), "scale": q.shape[-1] ** -0.5 if scale is None else scale, "softcap": 0.0, "sinks": None}
    return _by_heads(sdpa, q, k, v, comm, _Tokens("contiguous", sum(queries), list(queries), ""), None, call)


def _backend(algorithm):
    native = attention_dispatch._AttentionBackendRegistry._backends[attention_dispatch.AttentionBackendName.NATIVE]

    def seqpar_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
                         return_lse=False, _parallel_config=None):
        config = None if _parallel_config is None else _parallel_config.context_parallel_config
        if config is None or config._world_size == 1:
            return native(query=query, key=key, value=value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                          enable_gqa=enable_gqa, return_lse=return_lse)
        try:
            for name, given, expected in (("attn_mask", attn_mask is not None, None), ("dropout_p", dropout_p, 0), ("return_lse", return_lse, False)):
                if given:
                    value_of = "given" if name == "attn_mask" else repr(given)
                    raise ValueError(f"seqpar attention: {name} is {value_of}, expected {expected} with context parallelism")
            if key.shape[2] != query.shape[2] and not enable_gqa:
                raise ValueError(f"seqpar attention: got {query.shape[2]} heads and {key.shape[2]} of keys, expected enable_gqa")
            return _distributed(*autocasted(query, key, value), config, algorithm, is_causal, scale)
        except Exception as error:
            tell(make_comm(config._flattened_mesh), error)
            raise

    return seqpar_attention


def register(algorithm=None):
    """Adds the attention backend "seqpar" to diffusers, for model.set_attention_backend("seqpar").

        algorithm  attention()'s; None: by the degrees of ContextParallelConfig

    With context parallelism, masks (padding of text), dropout and return_lse are errors. Calling it again replaces the
    algorithm.
    """
    names = attention_dispatch.AttentionBackendName
    if _NAME not in names._value2member_map_:
        member = str.__new__(names, _NAME)
        member._name_, member._value_ = _NAME.upper(), _NAME
        names._member_map_[member._name_] = names._value2member_map_[_NAME] = member
        names._member_names_.append(member._name_)
    attention_dispatch._AttentionBackendRegistry.register(names(_NAME), supports_context_parallel=True)(_backend(algorithm))
