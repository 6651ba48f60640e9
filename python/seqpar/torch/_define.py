"""How operators are registered: functional, with plain arguments, and with fakes from the launcher's shapes. If only
the kernel would see the call, it goes directly to the library: PyTorch's dispatcher costs more than the call itself."""

import functools

import torch
from torch.autograd import forward_ad

from .. import _abi
from ._comm import find, named
from ._refusals import tell

_library = torch.library.Library("seqpar", "DEF")
_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}

_PLAIN = frozenset({int, bool, str, float, type(None)})
_MEMORY = frozenset({torch.Tensor, torch.nn.Parameter})  # no subclasses, which may trace or shard
_never = lambda: True  # if a release lacks one of these, the dispatcher takes all calls
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _never)
_transforms = getattr(torch._C._functorch, "peek_interpreter_stack", _never)
_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)  # of is_grads_batched
_trace = torch._C._get_tracing_state  # of torch.jit.trace
_profiled = getattr(torch._C._autograd, "_profiler_enabled", _never)


def eager():
    """Whether only its kernel would see an operator: no graph is captured, no mode, transform, trace or profiler is active."""
    return not (torch.compiler.is_dynamo_compiling() or _dispatch_modes() or _transforms() or
                forward_ad._current_level >= 0 or _profiled() or _trace() is not None)


def plain(args, gradients=True):
    """Whether the tensors among the arguments, also in lists, are plain memory: no subclass, no lazy negation, and
    unless `gradients`, none that may need a gradient."""
    for argument in args:
        kind = type(argument)
        if kind in _PLAIN:
            continue
        if kind in _MEMORY:
            if argument.is_neg() or argument.is_conj() or (argument.requires_grad and not gradients):
                return False
        elif (kind is not list and kind is not tuple) or (argument and not plain(argument, gradients)):
            return False
    return True


def real(tensor):
    """Whether it owns memory, and is not a tracer's placeholder."""
    return type(tensor) in _MEMORY


def without_gradient(args):
    """Whether a call with these arguments concerns the kernel only: eager, and nothing to save for a backward pass."""
    return eager() and plain(args, not torch.is_grad_enabled())


def autocasts(tensor):
    """Whether torch.autocast is active on the tensor's device."""
    return tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)


def autocasted(*tensors):
    """The tensors in the type of torch.autocast, if it is active: as for scaled_dot_product_attention. None and float64
    are unchanged."""
    if not autocasts(tensors[0]):
        return tensors
    kind = torch.get_autocast_dtype(tensors[0].device.type)
    return [x.to(kind) if x is not None and x.dtype in _TYPES else x for x in tensors]


def without_autocast(function):
    """Decorates a function of tensors that computes in fp32: torch.autocast would cast the operands of its products."""

    @functools.wraps(function)
    def computed(first, *arguments):
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *arguments)

    return computed


def _keep_order_of_calls():
    """Inductor would order independent operators of a graph by the sizes of tensors, which differ between ranks: they would
    call in different orders. Its settings belong to a thread, and each thread that compiles a graph calls the fakes."""
    from torch._inductor import config
    if getattr(config, "reorder_for_peak_memory", False):
        config.reorder_for_peak_memory = False


def _register(schema, implementation, fake):
    """The callable overload of the operator seqpar::<schema>, on host and GPU tensors."""
    name, shapes = schema.split("(", 1)[0], fake

    def fake(*args):
        _keep_order_of_calls()
        return shapes(*args)

    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, implementation, key)
    torch.library.register_fake(f"seqpar::{name}", fake, lib=_library)
    return getattr(torch.ops.seqpar, name).default


def _tensors(args):
    """The tensors among an operator's arguments, including those in lists."""
    for argument in args:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from (x for x in argument if isinstance(x, torch.Tensor))


def define(schema, outputs, launch, makes=False):
    """Registers the operator seqpar::<schema>. outputs(*args) allocates the result tensors, real or fake;
    launch(tensors, *args) fills them, or, with `makes`, returns the result if `tensors` is None. Returns a
    function that calls the operator, its `overload`, or, if only the kernel would see the call, the
    `implementation`."""
    single, name = "-> Tensor" in schema and "-> Tensor[" not in schema, schema.split("(", 1)[0]

    def implementation(*args):
        try:
            if makes:
                return launch(None, *args)
            made = outputs(*args)
            launch(made, *args)
        except Exception as error:
            tell(named(args[-1]), error)
            if any(map(_batched, _tensors(args))):
                raise NotImplementedError(f"seqpar::{name} got a batch of gradients, expected one: call torch.autograd.grad() "
                                          "without is_grads_batched, and jacobian() without vectorize") from error
            raise
        return made[0] if single else made

    def fake(*args):
        made = outputs(*args)
        return made[0] if single else made

    overload = _register(schema, implementation, fake)

    def operator(*args):
        if eager() and plain(args):
            return implementation(*args)
        return overload(*args)

    operator.overload, operator.implementation = overload, implementation
    return operator


def define_started(schema, outputs, launch):
    """Registers seqpar::start_<schema>, which enqueues concurrently with the current stream and returns a ticket (an
    int64 on the host), and seqpar::wait_<schema>, which takes the ticket and the same arguments again and returns the
    tensors. The arguments give the fake its shapes, and keep the inputs alive in a compiled graph while they are read.
    Returns both overloads."""
    name, rest = schema.split("(", 1)
    taken, returned = rest.rsplit(" -> ", 1)
    single = returned == "Tensor"

    def start(*args):
        kept = [[x.contiguous() for x in a] if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)
                else a.contiguous() if isinstance(a, torch.Tensor) else a for a in args]
        try:
            made = outputs(*kept)
            number = find(args[-1]).start(lambda: launch(made, *kept), made, list(_tensors(kept)))
        except Exception as error:
            tell(named(args[-1]), error)
            raise
        return torch.tensor(number, dtype=torch.int64, device="cpu")

    def fake_start(*args):
        return next(_tensors(args)).new_empty((), dtype=torch.int64, device="cpu")

    def wait(ticket, *args):
        made = find(args[-1]).finish(int(ticket))
        return made[0] if single else made

    def fake_wait(ticket, *args):
        made = outputs(*args)
        return made[0] if single else made

    return (_register(f"start_{name}({taken} -> Tensor", start, fake_start),
            _register(f"wait_{name}(Tensor ticket, {taken} -> {returned}", wait, fake_wait))


def data_type(what, tensor):
    """The seqparDataType_t of a tensor or of its type. Raises TypeError for types that the library cannot sum."""
    dtype = getattr(tensor, "dtype", tensor)
    if dtype not in _TYPES:
        raise TypeError(f"{what}: got {dtype}, expected float32, float16 or bfloat16")
    return _abi.TYPES[_TYPES[dtype]]


def require_tensors(what, q, k, v, **others):
    """Raises TypeError unless all are tensors; `others` may be None."""
    for name, x in {"q": q, "k": k, "v": v, **{name: x for name, x in others.items() if x is not None}}.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{what}: {name} is a {type(x).__module__}.{type(x).__qualname__}, expected a torch.Tensor")


def has_tensors(options):
    """Whether an option is a tensor: its value may be another one in a later call with the same tensor."""
    return any(isinstance(x, torch.Tensor) for x in options.values())


def require_constants(what, **options):
    """Raises ValueError for an option that requires a gradient, since none is computed."""
    for name, x in options.items():
        if isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{what}: {name} requires a gradient, which is not computed, expected a number; multiply q by a learned "
                             "factor")


def require_place(what, comm, *tensors):
    """Raises ValueError unless all tensors are in the communicator's memory."""
    device = comm.device
    for tensor in tensors:
        if tensor is not None and tensor.device != device:
            hint = f", or a communicator of sp.comm(device='{tensor.device}')" if tensor.device.type in ("cpu", "cuda") else ""
            raise ValueError(f"{what}: got a tensor on {tensor.device}, expected one on {device}, where the communicator {comm.name!r} "
                             f"works{hint}")
