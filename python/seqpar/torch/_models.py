"""Models of transformers with a sharded sequence: rejects models with wrong results, and checks that they get
the positions of their tokens."""

import functools
import inspect
import re
import sys
import weakref

import torch

from . import _recurrent, _rotary
from ._refusals import tell

registrations = {}  # attn_implementation -> Registration
before_calls = {}  # another attn_implementation -> forward pre-hook (model, arguments, named) of its models
_ATTENDS = ("full_attention", "sliding_attention")
_RECURS = ("linear_attention", "hybrid")  # of models with recurrent layers that are supported
_PER_TOKEN = ("mlp", "moe")  # layers with neither
_STATE = re.compile(r"Mamba|SSM|DeltaNet|DeltaAttention|DeltaRule|(?<!Kimi)Linear(Self)?Attention|Lightning|Rglru|RGLRU|Rwkv|RWKV|Retention|"
                    r"ShortConv|Recurrent|LSTM|Indexer|Hyena|TimeMix")
_AROUND = re.compile(r"(Model|For[A-Z]\w+|Layer|Block|Norm|NormGated|M[Ll][Pp]|Embedding|FeedForward)$")  # of such a module, or in its model
_POOLS = re.compile(r"For(SequenceClassification|MultipleChoice|NextSentencePrediction)$")  # the result is that of one token
_MASKS = re.compile(r"(causal_mask_function|bidirectional_mask_function|and_masks\.<locals>\.and_mask|"
                    r"(sliding_window_overlay|sliding_window_bidirectional_overlay|packed_sequence_mask_function|padding_mask_function|"
                    r"remap_positions_for_packed_sequence|add_offsets_to_mask_function)\.<locals>\.inner_mask)$")


def base_of(model):
    """The model inside adapters of PEFT; otherwise the model."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _implementation(model):
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def _own_modules(model, name=""):
    """(name, module) of a model, except models inside it with another attn_implementation."""
    yield name, model
    for child_name, child in model.named_children():
        if hasattr(child, "config") and hasattr(child, "post_init") and _implementation(child) not in registrations:
            continue
        yield from _own_modules(child, f"{name}.{child_name}" if name else child_name)


def _over_time(module):
    """A module's computation along the sequence outside of the attention function; None: none is known."""
    if isinstance(module, (torch.nn.Conv1d, torch.nn.ConvTranspose1d)) and tuple(module.kernel_size) != (1,):
        return f"a convolution of width {module.kernel_size[0]}"
    if isinstance(module, torch.nn.RNNBase):
        return "a recurrence"
    embedded = isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding)
    if hasattr(module, "create_position_ids_from_input_ids") or (
            embedded and hasattr(module, "create_position_ids_from_inputs_embeds")):
        return "positions that start after padding_idx, which shard_batch() does not give"
    if getattr(module, "trigram_input", False) is True:
        return "a convolution of width 3"
    if getattr(module, "token_dropout", False) is True:
        return "a factor that depends on the number of masked tokens"
    name = type(module).__name__
    if _POOLS.search(name):
        return "a result of one token of each sequence, which one rank has"
    if _STATE.search(name) and not _AROUND.search(name):
        return "a state, a convolution or a choice of tokens"
    return None


def require_supported(model):
    """Raises ValueError, with the layers' names, if the model computes along the sequence outside of its attention
    function."""
    found, sharded = [], []
    for name, module in _own_modules(model):
        computation = _over_time(module)
        if _recurrent.supported(module):
            sharded.append(name)
        elif computation is not None and not any(name.startswith(f"{outer}.") for outer in (*(x for x, *_ in found), *sharded)):
            found.append((name, type(module).__name__, computation))
    kinds = {}
    for config in {id(x): x for x in (module.config for _, module in _own_modules(model) if hasattr(module, "config"))}.values():
        for i, kind in enumerate(getattr(config, "layer_types", None) or ()):
            if kind not in (*_ATTENDS, *_PER_TOKEN) and not (kind in _RECURS and sharded):
                kinds.setdefault(kind, []).append(i)
    told = [f"layers {', '.join(map(str, layers[:8]))}{' ...' if len(layers) > 8 else ''} are {kind!r}" for kind, layers in kinds.items()]
    told += [f"{name or 'the model'} ({kind}) has {computation}" for name, kind, computation in found[:4]]
    if told:
        raise ValueError(f"seqpar attention: {type(model).__name__} cannot have attn_implementation {_implementation(model)!r}: it would "
                         f"compute on each rank's tokens alone: {'; '.join(told)}. Expected layers of {' and '.join(_ATTENDS)}")


def require_known_mask(function):
    """Raises ValueError for a mask that attention's options do not describe: chunks, blocks, a model's function. Returns whether it
    has a sliding window."""
    todo, slides = [function], False
    while todo:
        one = todo.pop()
        name = getattr(one, "__qualname__", repr(one))
        if not _MASKS.search(name):
            raise ValueError(f"seqpar attention: the model has the mask {name}, expected a causal, a bidirectional or a sliding one")
        slides |= name.startswith("sliding_window")
        for cell in one.__closure__ or ():
            values = cell.cell_contents if isinstance(cell.cell_contents, (list, tuple)) else (cell.cell_contents,)
            todo += [value for value in values if callable(value) and not isinstance(value, torch.Tensor)]
    return slides


def runs_again():
    """Whether code runs in a backward pass, as layers do that did not keep their results."""
    return torch._C._current_graph_task_id() != -1


@functools.lru_cache(maxsize=None)
def _place(kind):
    """The index of position_ids among the arguments of a class's forward(), None if it has none."""
    names = [name for name in inspect.signature(kind.forward).parameters if name != "self"]
    return names.index("position_ids") if "position_ids" in names else None


def _without_tokens(registration):
    """Ranks without tokens in the layout: modeling code reshapes tensors to [...][tokens][-1], which needs a token."""
    lengths = registration.layout.lengths if registration.layout is not None else ()
    return [rank for rank, length in enumerate(lengths) if not length]


def _layer_types(model):
    return set(getattr(model.config, "layer_types", None) or ())


def _shifts_labels(model):
    """Whether the loss of a model compares each token with the label after it."""
    return getattr(model, "loss_type", None) == "ForCausalLM" or type(model).__name__.endswith("LMHeadModel")


def _before(model, arguments, named):
    """Runs before each forward pass of a model."""
    registration = registrations.get(_implementation(model))
    if registration is None or torch.compiler.is_compiling():
        return
    registration.sliding_mask = registration.sliding_layers = False
    registration.kept = runs_again()  # the whole model, with its arguments
    if not registration.kept and not registration.pending:
        registration.packings.clear()
    place = _place(type(model))
    positions = named.get("position_ids")
    if positions is None and place is not None and place < len(arguments):
        positions = arguments[place]
    recurs = _layer_types(model) == {"linear_attention"}  # such a model has no positions: its layers need them
    inside = model.__dict__.pop("_seqpar_inside", False)
    if positions is not None:
        registration.given = weakref.ref(positions)
        for _, module in _own_modules(model) if recurs else ():
            if module is not model and hasattr(module, "post_init"):  # mamba2's does not pass them on
                module._seqpar_inside = True
    if registration.comm.size == 1:
        return
    told, empty = None, _without_tokens(registration)
    if empty or (positions is not None and not positions.numel()):
        rank = empty[0] if empty else registration.comm.rank
        told = f"got no tokens on rank {rank}, expected at least one on each rank"
    elif not recurs and not any(_place(type(module)) is not None for _, module in _own_modules(model) if hasattr(module, "post_init")):
        told = "has no position_ids, so that it counts each rank's tokens from 0: expected a model that takes them"
    elif positions is None and (not inside if recurs else place is not None):
        told = "was called without position_ids, expected the positions that shard_batch() returns: position_ids=positions[None]"
    elif named.get("labels") is not None and named.get("shift_labels") is None and _shifts_labels(model):
        told = ("got labels, which it would shift within each rank's tokens, expected none: compute the loss from the logits and the labels of "
                "shard_batch(), which are shifted")
    if told is not None:
        registration.given = None
        error = ValueError(f"seqpar attention: {type(model).__name__} {told}")
        tell(registration.comm, error)
        raise error


class _Batch:
    """A batch in Registration.pending, while its graph exists."""


def _await_backward(registration, output):
    """The batch is pending until a gradient of the model's output is computed, or its graph is freed."""
    tensors = output if isinstance(output, (tuple, list)) else output.values() if hasattr(output, "values") else (output,)
    first = next((x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad), None)
    if first is not None and not runs_again():
        batch = _Batch()
        registration.pending.add(batch)
        first.register_hook(lambda gradient: registration.pending.discard(batch))


def _after(model, arguments, output):
    """Runs after each forward pass: in the first one, every layer must have called the attention function."""
    registration = registrations.get(_implementation(model))
    if registration is None or torch.compiler.is_compiling():
        return
    _await_backward(registration, output)
    if model in registration.complete:
        return
    if registration.sliding_mask and not registration.sliding_layers and not _layer_types(model):
        error = ValueError(f"seqpar attention: {type(model).__name__} has a sliding mask, and its layers do not give the window to the "
                           "attention function, which would attend all keys. Expected sliding_window=None in its config")
        tell(registration.comm, error)
        raise error
    if registration.comm.size == 1:
        return
    called = registration.called
    missing = None if any(module in called for _, module in _own_modules(model)) else type(model).__name__
    for name, module in _own_modules(model):
        if isinstance(module, torch.nn.ModuleList):
            attends = [any(inner in called for inner in layer.modules()) or getattr(layer, "block_type", None) in _PER_TOKEN
                       for layer in module]
            if any(attends) and not all(attends):
                index = attends.index(False)
                missing = f"{name}.{index} ({type(module[index]).__name__})"
    if missing is not None:
        error = ValueError(f"seqpar attention: {missing} did not call its attention function, so that it computed on each rank's tokens "
                           "alone. Expected a model whose layers all have attention")
        tell(registration.comm, error)
        raise error
    registration.complete.add(model)


def _ended(model, arguments, output):
    """Runs after each forward pass, also one that an exception ends: the other ranks would wait in the model's next layer."""
    error = sys.exc_info()[1]
    registration = registrations.get(_implementation(model))
    if registration is not None and not torch.compiler.is_compiling():
        registration.kept = False
    if output is None and error is not None and registration is not None and not torch.compiler.is_compiling():
        tell(registration.comm, error)


class _Checkpoint:
    """A model's function of gradient checkpointing. Layers that run again, in the backward pass, use the positions and the options of
    their first run, which the model's call does not keep."""

    def __init__(self, original, config):
        self.original, self.config = original, config

    def __call__(self, function, *arguments, **named):
        registration = registrations.get(getattr(self.config, "_attn_implementation", None))
        if registration is None or torch.compiler.is_compiling():
            return self.original(function, *arguments, **named)
        positions = registration.given and registration.given()  # keeps them alive
        fields = ("given", "layout", "cu_seqlens", "algorithm", "kernel", "kept")
        first = [getattr(registration, name) for name in fields[:-1]] + [True]

        def run(*arguments, **named):
            latest = [getattr(registration, name) for name in fields]
            try:
                for name, value in zip(fields, first):
                    setattr(registration, name, value)
                return function(*arguments, **named)
            finally:
                for name, value in zip(fields, latest):
                    setattr(registration, name, value)

        run.positions = positions
        return self.original(run, *arguments, **named)


def _registration_of_layer(layer):
    return registrations.get(getattr(layer._seqpar_config, "_attn_implementation", None))


def _before_layer(layer, arguments, named):
    """Other functions of checkpointing run a layer again with its arguments alone. Its position_ids are those of its inner layers."""
    registration = _registration_of_layer(layer)
    positions = named.get("position_ids")
    if registration is not None and isinstance(positions, torch.Tensor) and not torch.compiler.is_compiling():
        registration.inside = weakref.ref(positions)


def _after_layer(layer, arguments, output):
    registration = _registration_of_layer(layer)
    if registration is not None and not torch.compiler.is_compiling():
        registration.inside = None


def _follow_layers(model):
    """The hooks of layers, in lists of layers."""
    for _, layers in _own_modules(model):
        for layer in layers if isinstance(layers, torch.nn.ModuleList) else ():
            if not hasattr(layer, "_seqpar_config"):
                layer._seqpar_config = model.config
                layer.register_forward_pre_hook(_before_layer, with_kwargs=True)
                layer.register_forward_hook(_after_layer, always_call=True)


def _follow_checkpoints(model):
    for _, layer in _own_modules(model):
        original = layer.__dict__.get("_gradient_checkpointing_func")
        if original is not None and not isinstance(original, _Checkpoint):
            layer._gradient_checkpointing_func = _Checkpoint(original, model.config)


def _registration_of(module):
    return registrations.get(_implementation(module))


def watch(model):
    """Inspects a model and the models inside it that have a registered attn_implementation, and follows their calls."""
    for _, module in _own_modules(model):
        if hasattr(module, "post_init") and _implementation(module) in registrations:
            require_supported(module)
            _follow_checkpoints(module)
            _follow_layers(module)
            for _, layer in _own_modules(module):
                if _recurrent.supported(layer):
                    _recurrent.follow(layer, module.config, registrations)
                if _rotary.depends_on_length(layer):
                    _rotary.follow(layer, _registration_of)
            if not getattr(module, "_seqpar_watched", False):
                module._seqpar_watched = True
                module.register_forward_pre_hook(_before, with_kwargs=True)
                module.register_forward_hook(_after)
                module.register_forward_hook(_ended, always_call=True)
    if _implementation(model) in before_calls and not getattr(model, "_seqpar_hooked", False):
        model._seqpar_hooked = True
        model.register_forward_pre_hook(_before_call, with_kwargs=True)


def _before_call(model, arguments, named):
    hook = before_calls.get(_implementation(model))
    if hook is not None and not torch.compiler.is_compiling():
        hook(model, arguments, named)


def require_set(model, name):
    """Raises ValueError unless the model, or a model inside it, has the registered attn_implementation `name` (None: any). Models
    that compute attention without the interface of transformers keep the former one, with a warning."""
    names = registrations if name is None else {name} & (registrations.keys() | before_calls.keys())
    if (names or name is None) and not any(_implementation(module) in names for module in model.modules()):
        expected = repr(name or "seqpar")
        raise ValueError(f"seqpar attention: {type(model).__name__} has attn_implementation {_implementation(model)!r}, expected {expected}: "
                         + (f"call set_attn_implementation({expected}) before" if name is None else
                            "it computes attention without the interface of transformers, so on each rank's tokens alone"))


def watch_all(base):
    """Calls watch() for each model of the class `base` when it is built, or gets another attn_implementation or gradient
    checkpointing."""
    if getattr(base.post_init, "seqpar_watches", False):
        return
    for name in ("post_init", "set_attn_implementation", "_set_gradient_checkpointing"):
        original = getattr(base, name, None)
        if original is not None:
            setattr(base, name, _watching(original))


def _watching(original):
    @functools.wraps(original)
    def watched(self, *arguments, **named):
        result = original(self, *arguments, **named)
        given = arguments[0] if arguments else named.get("attn_implementation")
        if isinstance(given, str):  # of set_attn_implementation()
            require_set(self, given)
        watch(self)
        return result

    watched.seqpar_watches = True
    return watched
