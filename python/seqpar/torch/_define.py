"""How operators are registered: functional, with plain arguments, and with fakes from the launcher's own shapes."""

import torch

from .. import _abi
from ._comm import find

_library = torch.library.Library("seqpar", "DEF")
_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def _register(schema, implementation, fake):
    """The callable overload of the operator seqpar::<schema>, on host and GPU tensors."""
    name = schema.split("(", 1)[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, implementation, key)
    torch.library.register_fake(f"seqpar::{name}", fake, lib=_library)
    return getattr(torch.ops.seqpar, name).default


def _tensors(arguments):
    """The tensors among an operator's arguments, those of lists included."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from (x for x in argument if isinstance(x, torch.Tensor))


def define(schema, outputs, launch):
    """Registers the operator seqpar::<schema>. outputs(*arguments) makes the new tensors that it returns, real or fake;
    launch(tensors, *arguments) fills them. Returns the callable overload."""
    single = "-> Tensor" in schema and "-> Tensor[" not in schema

    def implementation(*arguments):
        made = outputs(*arguments)
        launch(made, *arguments)
        return made[0] if single else made

    def fake(*arguments):
        made = outputs(*arguments)
        return made[0] if single else made

    return _register(schema, implementation, fake)


def define_started(schema, outputs, launch):
    """Registers seqpar::start_<schema>, which enqueues beside the current stream and returns a ticket (an int64 on the
    host), and seqpar::wait_<schema>, which takes the ticket and the same arguments again and returns the tensors. The
    arguments give the fake its shapes, and keep the inputs alive in a compiled graph while they are read.
    Returns both overloads."""
    name, rest = schema.split("(", 1)
    taken, returned = rest.rsplit(" -> ", 1)
    single = returned == "Tensor"

    def start(*arguments):
        kept = [[x.contiguous() for x in a] if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)
                else a.contiguous() if isinstance(a, torch.Tensor) else a for a in arguments]
        made = outputs(*kept)
        number = find(arguments[-1]).start(lambda: launch(made, *kept), made, list(_tensors(kept)))
        return torch.tensor(number, dtype=torch.int64, device="cpu")

    def fake_start(*arguments):
        return next(_tensors(arguments)).new_empty((), dtype=torch.int64, device="cpu")

    def wait(ticket, *arguments):
        made = find(arguments[-1]).finish(int(ticket))
        return made[0] if single else made

    def fake_wait(ticket, *arguments):
        made = outputs(*arguments)
        return made[0] if single else made

    return (_register(f"start_{name}({taken} -> Tensor", start, fake_start),
            _register(f"wait_{name}(Tensor ticket, {taken} -> {returned}", wait, fake_wait))


def data_type(what, tensor):
    """The seqparDataType_t of a tensor or of its type. Raises TypeError for what the library does not add up."""
    dtype = getattr(tensor, "dtype", tensor)
    if dtype not in _TYPES:
        raise TypeError(f"{what}: got {dtype}, expected float32, float16 or bfloat16")
    return _abi.TYPES[_TYPES[dtype]]


def require_place(what, comm, *tensors):
    """Raises ValueError unless all tensors are in the communicator's memory."""
    for tensor in tensors:
        if tensor is not None and tensor.device != comm.device:
            raise ValueError(f"{what}: got a tensor on {tensor.device}, expected one on {comm.device}, where the "
                             f"communicator {comm.name!r} works")
