"""Checks of seqpar.torch, by topic. Each runs on all ranks, and takes the communicator and a seed."""

import importlib
import pkgutil

import torch

import seqpar.torch as sp

CHECKS = []
EPS = 2.0 ** -23


class Skip(Exception):
    """A check does not run here; the text is the reason."""


def check(function):
    CHECKS.append(function)
    return function


def load():
    """Imports the modules of this package, which adds their checks to CHECKS."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def whole(seed, *shape, dtype=torch.float32):
    """Random values that are equal on all ranks, on torch's default device."""
    random = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=random, device="cpu").to(torch.get_default_device(), dtype)


def same(a, b, terms=1):
    """Equal up to the rounding of sums of this many terms."""
    torch.testing.assert_close(a, b, rtol=4 * EPS * terms, atol=4 * EPS * terms)


def raises(error, text, function, /, *arguments, **named):
    try:
        function(*arguments, **named)
    except error as caught:
        assert text in str(caught), f"{text!r} is not in {caught}"
        return
    raise AssertionError(f"{function.__name__} raised no {error.__name__}")


def summed(x, comm):
    return sp.all_gather(x[None].contiguous(), comm, dim=0).sum(0)


def lost(comm):
    """Closes a communicator that an error has ended."""
    for _ in range(len(comm.plans) + 2):
        try:
            comm.close()
        except sp.Error as error:
            assert error.result == "RemoteError", error
