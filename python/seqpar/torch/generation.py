"""generate() of Hugging Face transformers with keys and values that are distributed over ranks.

    import seqpar.torch.generation as generation
    model.set_attn_implementation("seqpar_cache")
    cache = generation.ShardedCache(model.config, comm)
    generation.prefill(model, ids, cache, attention_mask=mask)                    # optional: computes shards of the prompt
    out = model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=100)

All ranks call these functions with the same arguments. Token i of each sequence (padding included) is kept by rank
(i // page) % ranks, so all ranks' caches grow equally. In prefill() each rank computes its own tokens. In generate() all ranks
compute all new tokens, except attention, which is computed by the rank that has the keys and merged by all_reduce_lse(): all
ranks get identical bits, so greedy search needs no further exchange. Sampling needs the same seed on all ranks.
"""

import inspect

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface

from .._masks import causal
from . import _comm, _models, _rotary
from ._agreement import require_agreement
from ._attention import attention
from ._batches import _digest
from ._cache_attention import local_attention, with_sinks
from ._layout import Layout
from ._lse import all_reduce_lse
from ._mask import Mask
from ._refusals import collective, telling

__all__ = ["IMPLEMENTATION", "ShardedCache", "ShardedLayer", "prefill"]

IMPLEMENTATION = "seqpar_cache"
_ATTENDS = ("full_attention", "sliding_attention")
_WITHOUT_EFFECT = frozenset({"position_ids", "use_cache", "output_hidden_states", "cache_position", "return_dict", "logits_to_keep",
                             "is_causal", "position_embeddings"})


class _Shared:
    """What the layers of a cache have in common.

    chunk    (begin, end) of the tokens of which each rank computes its own; None: all ranks compute all new tokens
    padding  of a chunk: the tokens of padding on the left of each sequence
    ahead    whether a layer has new keys that attention() has not seen
    """

    def __init__(self, comm, page):
        self.comm, self.page, self.chunk, self.padding, self.ahead = comm, page, None, None, False
        self._mask, self._pads = None, False

    def pads(self, mask):
        """Whether the attention_mask has zeros: waits for its device once per mask, not in each layer."""
        if mask is not None and mask is not self._mask:
            self._mask, self._pads = mask, not bool(mask.all())
        return mask is not None and self._pads

    def slots(self, begin, end, rank=None):
        """The tokens of begin..end-1 that a rank keeps."""
        slots = torch.arange(begin, end)
        rank = self.comm.rank if rank is None else rank
        return slots[slots // self.page % self.comm.size == rank]

    def layout(self, begin, end):
        """The layout of tokens begin..end-1."""
        pages = range(begin // self.page, -(-end // self.page))
        bounds = (0, *(page * self.page - begin for page in pages[1:]), end - begin)
        return Layout("pieces", end - begin, self.comm.size, bounds=bounds, owners=tuple(page % self.comm.size for page in pages))


class ShardedLayer(CacheLayerMixin):
    """One layer's keys and values of this rank's tokens, in memory that grows by doubling. With a window, tokens that no later
    query sees are dropped."""

    is_croppable = False
    supports_early_init = False

    def __init__(self, shared, window=0):
        super().__init__()
        self.shared, self.window, self.is_sliding = shared, window, window > 0
        self.reset()

    def reset(self):
        self.keys, self.values, self.shared.ahead = None, None, False
        self._memory, self.positions, self.length, self.is_initialized = None, torch.empty(0, dtype=torch.int64), 0, False

    def lazy_initialization(self, key_states, value_states):
        self.device, self.is_initialized = key_states.device, True
        self._memory = [x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in (key_states, value_states)]

    def _keep(self, states, positions):
        """Appends tokens, after dropping those that no query from `length` on sees."""
        count = len(self.positions)
        dropped = int(torch.searchsorted(self.positions, self.length - self.window + 1)) if self.window else 0
        old = self.positions[dropped:]
        room = len(old) + len(positions)
        for i, x in enumerate(states):
            memory = self._memory[i]
            if room > memory.shape[2]:
                grown = memory.new_empty(*memory.shape[:2], max(room, 2 * len(old)), memory.shape[3])
                grown[:, :, :len(old)] = memory[:, :, dropped:count]
                self._memory[i] = memory = grown
            elif dropped:
                memory[:, :, :len(old)] = memory[:, :, dropped:count].clone()
            memory[:, :, len(old):room] = x
        self.positions = torch.cat([old, positions])
        self.keys, self.values = (x[:, :, :room] for x in self._memory)

    def update(self, key_states, value_states, *arguments, **named):
        if self.shared.ahead:
            raise ValueError(f"ShardedCache: the model did not attend the keys of its previous layer by {IMPLEMENTATION!r}: call "
                             f"model.set_attn_implementation({IMPLEMENTATION!r}), which some models ignore; after another error call reset()")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        batch = self._memory[0].shape[0]
        if key_states.shape[0] != batch:
            raise ValueError(f"ShardedCache: got {key_states.shape[0]} sequences, expected {batch}, those of the cache: for beams or several "
                             "results of each prompt call cache.batch_repeat_interleave() after prefill()")
        new = key_states.shape[2]
        if self.shared.chunk is None:
            begin, end = self.length, self.length + new
            own = self.shared.slots(begin, end)
            states = [key_states, value_states]
            if len(own) < new:
                index = (own - begin).to(self.device)
                states = [x.index_select(2, index) for x in states]
            self.queries = torch.arange(begin, end, device=self.device)
        else:
            begin, end = self.shared.chunk
            own = self.shared.slots(begin, end)
            if begin != self.length or new != len(own):
                raise ValueError(f"ShardedLayer: got {new} tokens at {self.length}, expected {len(own)} at {begin}: those of the rank in "
                                 "prefill()")
            states, self.queries = (key_states, value_states), own.to(self.device)
        self._keep(states, own)
        self.length = end
        keys = self.keys[:]
        keys._seqpar_layer = self  # attention() gets the keys only
        self.shared.ahead = True
        return keys, self.values

    def get_mask_sizes(self, query_length):
        return self.length + query_length, 0

    def get_seq_length(self):
        return self.length

    def get_max_length(self):
        return -1

    def _select(self, function):
        """Changes the batch."""
        if self.is_initialized:
            self._memory = [function(x) for x in self._memory]
            self.keys, self.values = (x[:, :, :len(self.positions)] for x in self._memory)

    def reorder_cache(self, beam_idx):
        self._select(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats):
        self._select(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices):
        self._select(lambda x: x[indices])

    def crop(self, tokens_to_remove):
        if tokens_to_remove:
            raise NotImplementedError("ShardedCache: crop() is not supported: use generate() without an assistant model")


class ShardedCache(Cache):
    """The cache of a model with attn_implementation="seqpar_cache": past_key_values of the model and of
    generate(), which newer releases of transformers call cache.

    config  of the model. Layers other than full and sliding-window attention are refused
    page    consecutive tokens that a rank keeps. GPUs compute tiles of 128 queries, so shorter pages make prefill() slower;
            with longer ones ranks may differ by as many tokens
    """

    def __init__(self, config, comm, *, page=128):
        _comm.require(comm)
        if page < 1:
            raise ValueError(f"ShardedCache: page is {page}, expected at least 1")
        if getattr(config, "is_encoder_decoder", False):
            raise ValueError("ShardedCache: the model has an encoder, expected a decoder only")
        text = config.get_text_config(decoder=True)
        window = getattr(text, "sliding_window", None) or 0
        kinds = getattr(text, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * text.num_hidden_layers
        unknown = sorted(set(kinds) - {*_ATTENDS})
        if unknown:
            raise ValueError(f"ShardedCache: the model has layers of {', '.join(unknown)}, expected {' and '.join(_ATTENDS)}")
        self.shared = _Shared(comm, page)
        super().__init__(layers=[ShardedLayer(self.shared, window if kind == "sliding_attention" else 0) for kind in kinds])

    @property
    def comm(self):
        return self.shared.comm


def _k_positions(layer, mask):
    """[batch or 1][keys of the rank]; -1 for padding."""
    positions = layer.positions.to(layer.device)
    if mask is None:
        return positions[None]
    if mask.dim() != 2 or mask.shape[1] < layer.length:
        raise ValueError(f"seqpar_cache: attention_mask has the shape {list(mask.shape)}, expected [batch][{layer.length}]: 1 for tokens and "
                         "0 for padding")
    return torch.where(mask[:, positions].bool(), positions, -1)


def _require_new_tokens(layer, queries, mask, positions):
    """Raises ValueError if the queries are the whole sequence again, as in generate() without use_cache."""
    again = mask.shape[-1] == queries if mask is not None else positions is not None and int(positions.max()) < queries
    if again:
        raise ValueError(f"seqpar_cache: the model computed {queries} tokens again, of which the cache has {layer.length - queries}, expected "
                         "use_cache=True in generate() or in the model's generation_config, and reset() before another prompt")


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, softcap=None, s_aux=None,
               **rest):
    """transformers' interface of attention functions: (out [batch][queries][heads][dim], None)."""
    layer = getattr(key, "_seqpar_layer", None)
    if layer is None:
        raise ValueError("seqpar_cache: the model runs without a ShardedCache, or attends other keys than its cache has (as multi-head latent "
                         "attention does), expected past_key_values=ShardedCache(model.config, comm)")
    layer.shared.ahead = False
    unknown = sorted(name for name, x in rest.items() if name not in _WITHOUT_EFFECT and x is not None and x is not False)
    if unknown:
        raise TypeError(f"seqpar_cache: got {', '.join(unknown)}, which it does not support")
    if dropout:
        raise ValueError(f"seqpar_cache: dropout is {dropout}, expected 0: model.eval()")
    if layer.window and not 0 < (sliding_window or 0) <= layer.window:
        raise ValueError(f"seqpar_cache: the window of the layer is {sliding_window}, expected 1 to {layer.window}, that of its cache")
    shared = layer.shared
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if shared.chunk is not None:
        return _chunk_attention(layer, q, k, v, sinks=s_aux, window=(sliding_window - 1, -1) if sliding_window else (-1, -1), scale=scaling,
                                softcap=softcap or 0.0), None
    if 1 < q.shape[1] < layer.length:
        _require_new_tokens(layer, q.shape[1], attention_mask, rest.get("position_ids"))
    options = {"window": sliding_window or 0, "scale": scaling, "softcap": softcap or 0.0}
    # One new token sees all keys: the cache has dropped those before its window.
    if q.shape[1] > 1 or shared.pads(attention_mask) or options["window"] != layer.window:
        options |= {"q_positions": layer.queries[None], "k_positions": _k_positions(layer, attention_mask)}
    out, lse = local_attention(q, k, v, **options)
    out, lse = all_reduce_lse(out, lse, shared.comm)
    return out if s_aux is None else with_sinks(out, lse, s_aux), None


def _chunk_attention(layer, q, k, v, *, window, **options):
    """Attention of a chunk by one plan: a batch of sequences, or, if their padding differs, one packed sequence with a mask."""
    shared = layer.shared
    first, (begin, end) = _first_kept(layer), shared.chunk
    queries, keys = shared.layout(begin, end), shared.layout(first, end)
    unseen = [min(max(x - first, 0), end - first) for x in shared.padding]
    if not any(unseen):
        return attention(q, k, v, shared.comm, causal=True, window=window, layout=queries, kv_layout=keys, **options)
    batch, slices = q.shape[0], []
    for i, padding in enumerate(unseen):
        row, rows, column, columns, lower, upper = causal(i * (end - begin), (i + 1) * (end - begin), i * (end - first) + padding,
                                                          (i + 1) * (end - first))
        slices.append((row, rows, column, columns, lower if window[0] < 0 else upper - window[0], upper))
    q, k, v = (x.reshape(1, -1, *x.shape[2:]) for x in (q, k, v))
    out = attention(q, k, v, shared.comm, mask=Mask(tuple(slices), batch * (end - begin)), layout=_repeated(queries, batch),
                    kv_layout=_repeated(keys, batch), **options)
    return out.unflatten(1, (batch, -1))[0]


def _repeated(layout, times):
    """The layout of several sequences, one after the other."""
    bounds = [i * layout.tokens + bound for i in range(times) for bound in layout.bounds[:-1]]
    return Layout("pieces", times * layout.tokens, layout.ranks, bounds=(*bounds, times * layout.tokens), owners=layout.owners * times)


def _first_kept(layer):
    """The first token that any rank keeps in a chunk."""
    return max(0, layer.shared.chunk[0] - layer.window + 1) if layer.window else 0


def _attend(module, query, key, *arguments, **named):
    layer = getattr(key, "_seqpar_layer", None)
    return telling(layer and layer.shared.comm)(_attention)(module, query, key, *arguments, **named)


def _mask(*arguments, mask_function=None, attention_mask=None, **named):
    """The mask of padding."""
    if mask_function is not None:
        _models.require_known_mask(mask_function)
    return attention_mask


def _before_call(model, arguments, named):
    """Runs before a model's forward pass. Some models give their attention nothing that tells queries from cached tokens."""
    cache = next((x for x in (*arguments, *named.values()) if isinstance(x, ShardedCache)), None)
    if cache is None or named.get("use_cache", True) or not cache.get_seq_length():
        return
    telling(cache.comm)(_refuse_without_use)(named, cache.get_seq_length())


def _refuse_without_use(named, cached):
    ids = named.get("input_ids")
    raise ValueError(f"seqpar_cache: the model computed {'all' if ids is None else ids.shape[1]} tokens again, of which the cache has {cached}, "
                     "expected use_cache=True in generate() or in the model's generation_config, and reset() before another prompt")


AttentionInterface.register(IMPLEMENTATION, _attend)
AttentionMaskInterface.register(IMPLEMENTATION, _mask)
_models.before_calls[IMPLEMENTATION] = _before_call
_models.watch_all(PreTrainedModel)


def _require_model(what, model, cache):
    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation != IMPLEMENTATION:
        raise ValueError(f"{what}: the model's attn_implementation is {implementation!r}, expected {IMPLEMENTATION!r}: "
                         f"model.set_attn_implementation({IMPLEMENTATION!r})")
    if not isinstance(cache, ShardedCache):
        raise TypeError(f"{what}: cache is a {type(cache).__name__}, expected a ShardedCache")
    _models.require_supported(_models.base_of(model).base_model)


def _left_padding(input_ids, mask):
    """Tokens of padding on the left of each sequence."""
    if mask is None:
        return [0] * input_ids.shape[0]
    mask = mask.bool()
    if not bool((mask[:, 1:] >= mask[:, :-1]).all()):
        raise ValueError("prefill: attention_mask has zeros after ones, expected padding on the left only")
    return (~mask).sum(1).tolist()


@collective
def _prefill(given, model, input_ids, cache, attention_mask, chunk):
    """given: the cache's communicator; None if the cache is another object, which is refused."""
    _require_model("prefill", model, cache)
    comm = cache.comm
    if input_ids.dim() != 2 or (attention_mask is not None and attention_mask.shape != input_ids.shape):
        raise ValueError(f"prefill: input_ids and attention_mask have the shapes {list(input_ids.shape)} and "
                         f"{list(getattr(attention_mask, 'shape', ()))}, expected equal ones, [batch][tokens]")
    if chunk < 1:
        raise ValueError(f"prefill: chunk is {chunk}, expected at least 1")
    require_agreement(comm, "prefill: the ranks have different prompts", {
        "shape": tuple(input_ids.shape), "input_ids": _digest(input_ids), "attention_mask": _digest(attention_mask), "chunk": chunk,
        "cached": cache.get_seq_length()}, "equal arguments on all ranks")
    base, shared = _models.base_of(model).base_model, cache.shared
    if comm.size > 1 and any(map(_rotary.depends_on_length, base.modules())):
        raise ValueError("prefill: the model has rotary embeddings with frequencies that depend on the longest sequence (dynamic, longrope), "
                         "expected generate() without prefill()")
    padding = _left_padding(input_ids, attention_mask)
    name = "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
    positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    if attention_mask is not None:
        positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
    last = input_ids.shape[1] - 1
    begin = cache.get_seq_length()
    while begin < last:
        end = min(last, begin + chunk)
        own = shared.slots(begin, end)
        # Models do not take shards without tokens: then all ranks compute the few tokens.
        together = any(len(shared.slots(begin, end, rank)) == 0 for rank in range(comm.size))
        index = torch.arange(begin, end) if together else own
        shared.chunk, shared.padding = None if together else (begin, end), padding
        try:
            base(input_ids=input_ids[:, index], position_ids=positions[:, index], use_cache=True, **{name: cache},
                 attention_mask=None if attention_mask is None else attention_mask[:, :end])
        finally:
            shared.chunk = shared.padding = None
        begin = end


def prefill(model, input_ids, cache, *, attention_mask=None, chunk=8192):
    """Computes a prompt except its last token, of which generate() computes the logits. Each rank computes its tokens of every
    chunk; attention by the plans of attention(). Collective.

        input_ids       [batch][tokens], the same on all ranks; tokens that the cache has are skipped
        attention_mask  [batch][tokens]: 0 for padding on the left
        chunk           tokens of all ranks in a forward pass
    """
    with torch.no_grad():
        _prefill(getattr(cache, "comm", None), model, input_ids, cache, attention_mask, chunk)
