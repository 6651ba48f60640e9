"""How operators are registered: functional, with plain arguments, and with fakes from the launcher's own shapes."""

import torch

from .. import _abi

_library = torch.library.Library("seqpar", "DEF")
_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def define(schema, outputs, launch):
    """Registers the operator seqpar::<schema>. outputs(*arguments) makes the new tensors that it returns, real or fake;
    launch(tensors, *arguments) fills them. Returns the callable overload."""
    name = schema.split("(", 1)[0]
    single = "-> Tensor" in schema and "-> Tensor[" not in schema

    def implementation(*arguments):
        made = outputs(*arguments)
        launch(made, *arguments)
        return made[0] if single else made

    def fake(*arguments):
        made = outputs(*arguments)
        return made[0] if single else made

    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, implementation, key)
    torch.library.register_fake(f"seqpar::{name}", fake, lib=_library)
    return getattr(torch.ops.seqpar, name).default


def data_type(what, tensor):
    """The seqparDataType_t of a tensor. Raises TypeError for what the library does not add up."""
    if tensor.dtype not in _TYPES:
        raise TypeError(f"{what}: got {tensor.dtype}, expected float32, float16 or bfloat16")
    return _abi.TYPES[_TYPES[tensor.dtype]]


def require_place(what, comm, *tensors):
    """Raises ValueError unless all tensors are in the communicator's memory."""
    for tensor in tensors:
        if tensor is not None and tensor.device.type != comm.device.type:
            raise ValueError(f"{what}: got a tensor on {tensor.device}, expected one on {comm.device}, where the "
                             f"communicator {comm.name!r} works")
