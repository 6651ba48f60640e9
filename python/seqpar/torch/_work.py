"""Collectives in one call, or in two halves with the caller's work between them."""

import contextlib
import ctypes
import functools

import torch

from ._comm import abandon
from ._define import without_gradient


class Work:
    """A collective that runs concurrently with the current stream. wait() returns its results, once; the inputs must
    stay unchanged until then. All ranks start and wait in the same order. Gradients flow through wait(), and its
    backward pass is one call. The results of a Work that is dropped instead are freed when they are available."""

    def __init__(self, function, ticket, arguments):
        self._function, self._ticket, self._arguments = function, ticket, arguments
        self._waited = False

    def wait(self):
        """The results; on a GPU, later work of the current stream is ordered after them, without synchronization."""
        self._waited = True
        return self._function.apply(self._ticket, *self._arguments)

    def __del__(self):
        # May run anywhere in the program, and at exit, when modules may have been torn down.
        with contextlib.suppress(Exception):
            if not self._waited and type(self._ticket) is torch.Tensor:  # captured graphs have no number
                abandon(ctypes.c_int64.from_address(self._ticket.data_ptr()).value)


def at_once(function, *arguments):
    if without_gradient(arguments) and hasattr(function, "operator"):  # then this is the whole forward pass
        return function.operator.implementation(*arguments)
    return function.apply(None, *arguments)


def in_halves(function, *arguments):
    return Work(function, function.start(*arguments), arguments)


def starting(collective):
    """start_<collective>: the same arguments; returns a Work instead of the results."""

    @functools.wraps(collective)
    def start(*arguments, **named):
        return collective(*arguments, _run=in_halves, **named)

    start.__name__ = start.__qualname__ = f"start_{collective.__name__}"
    start.__doc__ = (f"{collective.__name__}() concurrent with the current stream: starts, and returns a Work; its "
                     f"wait() returns the results of {collective.__name__}().")
    return start
