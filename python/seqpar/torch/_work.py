"""Collectives at once, or in two halves with work of the caller's between them."""

import contextlib
import ctypes
import functools

import torch

from ._comm import abandon
from ._define import without_gradient


class Work:
    """A collective under way beside the current stream. wait() gives its results, once; the inputs stay unchanged until
    then. All ranks start and wait in the same order. Gradients flow through wait(), whose backward pass is one call. The
    results of a Work that is dropped instead are freed when they are there."""

    def __init__(self, function, ticket, arguments):
        self._function, self._ticket, self._arguments = function, ticket, arguments
        self._waited = False

    def wait(self):
        """The results; on a GPU later work of the current stream is ordered behind them, and nothing synchronizes."""
        self._waited = True
        return self._function.apply(self._ticket, *self._arguments)

    def __del__(self):
        # At any place of the program, and at its end, when there may be nothing left to ask.
        with contextlib.suppress(Exception):
            if not self._waited and type(self._ticket) is torch.Tensor:  # in a graph that is captured there is no number
                abandon(ctypes.c_int64.from_address(self._ticket.data_ptr()).value)


def at_once(function, *arguments):
    if without_gradient(arguments) and hasattr(function, "operator"):  # which is all of the forward pass
        return function.operator.implementation(*arguments)
    return function.apply(None, *arguments)


def in_halves(function, *arguments):
    return Work(function, function.start(*arguments), arguments)


def starting(collective):
    """start_<collective>: the same arguments, a Work in place of the results."""

    @functools.wraps(collective)
    def start(*arguments, **named):
        return collective(*arguments, _run=in_halves, **named)

    start.__name__ = start.__qualname__ = f"start_{collective.__name__}"
    start.__doc__ = (f"{collective.__name__}() beside the current stream: begins, and returns a Work whose wait() gives what "
                     f"{collective.__name__}() returns.")
    return start
