"""Sends the error of one rank, with its text, to the ranks that wait for it: seqparCommRefuseCall()."""

import contextlib
import functools
import inspect

import torch
from torch.autograd import forward_ad
from torch.utils import checkpoint

from .. import _abi
from ._comm import Comm, require

_TOLD = "_seqpar_told"  # marks an exception that the other ranks know
_MOST = 2000
_STOP = getattr(checkpoint, "_StopRecomputationError", ())  # ends a call that a checkpoint runs again: no error
_transforms = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
_INSIDE = "is inside torch.vmap or a transform of torch.func, which collectives do not support: give a batch, and use torch.autograd"


def text_of(error):
    """The type and the message of an exception, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST]


def tell(comm, error):
    """Tells the other ranks that this rank refuses the call that raised `error`. Once per exception. Ranks that raise
    in the same call continue; ranks that wait in it fail. Call it inside an `except` block, before `raise`."""
    if not isinstance(comm, Comm) or not comm._handle or getattr(error, _TOLD, False) or isinstance(error, _STOP):
        return
    with contextlib.suppress(AttributeError):  # an exception with slots: told again, on all ranks
        setattr(error, _TOLD, True)
    # A result other than Success: the communicator is lost, and the other ranks know.
    _abi.lib.seqparCommRefuseCall(comm._handle, text_of(error).encode("utf-8", "replace"))


def _comm_of(args, kwargs):
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, Comm):
            return argument
        if isinstance(getattr(argument, "comm", None), Comm):  # a Ring, or a context of fla
            return argument.comm
    return None


def _parameter(function):
    """The number of the parameter `comm` of a function, None if it has none."""
    names = list(inspect.signature(function).parameters)
    return names.index("comm") if "comm" in names else None


def _require_comm(name, number, args, kwargs):
    """Raises TypeError if the argument for the parameter `comm` is no communicator."""
    if number is None or (number >= len(args) and "comm" not in kwargs):
        return
    try:
        require(kwargs["comm"] if "comm" in kwargs else args[number])
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _require_tensors(name, error, args):
    """Raises TypeError if `error` is that an argument lacks an attribute of tensors. Before Python 3.10 errors do not tell."""
    for x in args:
        if isinstance(error, AttributeError) and getattr(error, "obj", error) is x and not isinstance(x, (torch.Tensor, Comm)):
            raise TypeError(f"{name}: got a {type(x).__module__}.{type(x).__qualname__}, expected a torch.Tensor") from error


def _explained(name, error, args):
    """An error about an unsupported use of the operators, with a text that names the function; None: another
    error."""
    distributed = any("DTensor" in type(x).__name__ for x in args)  # its shape is the whole's: a ValueError of shapes misleads
    if isinstance(error, _abi.Error) or not isinstance(error, (RuntimeError, ValueError) if distributed else RuntimeError):
        return None
    text = None
    if _transforms():
        text = _INSIDE
    elif distributed:
        text = "got a DTensor, expected this rank's tensor: x.to_local()"
    elif any(isinstance(x, torch.Tensor) and (x.is_nested or x.layout is not torch.strided) for x in args):
        text = "got a nested or sparse tensor, expected a dense one; for packed sequences see cu_seqlens"
    elif forward_ad._current_level >= 0:
        text = "is inside forward-mode differentiation (jvp), which it does not support: use torch.autograd.grad()"
    return None if text is None else NotImplementedError(f"seqpar.torch.{name} {text}")


@torch.compiler.assume_constant_result
def _transformed():
    """Whether torch.compile traces a function of torch.func, or forward mode: it takes operators without a derivative for
    constants there."""
    return _transforms() is not None or forward_ad._current_level >= 0


def telling(comm=None):
    """Decorates a function that all ranks call: its errors are sent to the other ranks. comm: None: the communicator is
    among the arguments."""

    def decorate(function):
        number = _parameter(function)

        @functools.wraps(function)
        def told(*args, **kwargs):
            if torch.compiler.is_compiling():
                if _transformed():
                    raise NotImplementedError(f"seqpar.torch.{function.__name__} {_INSIDE}")
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except Exception as error:
                _require_comm(function.__name__, number, args, kwargs)
                tell(comm or _comm_of(args, kwargs), error)
                _require_tensors(function.__name__, error, args)
                explained = _explained(function.__name__, error, (*args, *kwargs.values()))
                if explained is not None:
                    setattr(explained, _TOLD, True)
                    raise explained from error
                raise

        return told

    return decorate


collective = telling()
