"""Checks of the gates of linear attention's families. The families are in a generated table, since torch.compile cannot
call the library; tests compare it with the library's rows."""

import ctypes

from . import _abi
from ._family_table import FUNCTIONS, GATES

NAMES = {family: name for name, family in FUNCTIONS.items()}
PRODUCT = "gated_delta_product"  # a function that is no family: a delta rule of several updates of a token


def function_of(family, updates=None, input_gate=None):
    """The function with calls of this family: updates and input_gate as in the description of a plan."""
    return PRODUCT if updates else "mamba2" if input_gate else NAMES.get(family, "attention")


def gates_of_library(family):
    """GATES of a family, from the library."""
    shapes = {value: name.removeprefix("seqparAttnGatePer") for name, value in _abi.ENUMS["seqparAttnGateShape_t"].items()}
    info = _abi.AttnFamilyInfo()
    _abi.check_attn(_abi.attn_lib().seqparAttnFamilyQuery(_abi.FAMILIES[family], ctypes.byref(info)))
    return tuple((info.gateNames[i].decode(), shapes[info.gateShapes[i]]) for i in range(info.gates))


def require_gates(what, family, gates, q, v):
    """Raises ValueError unless these gates, which may be None, fit linear attention of this family, with q and v of these
    shapes."""
    shapes = {"Head": (v[2],), "Token": tuple(v[:3]), "Channel": (*q[:2], v[2], q[3])}
    rows = GATES[family]
    for (name, shape), gate in zip(rows, gates):
        found = None if gate is None else tuple(gate.shape)
        if found != shapes[shape]:
            told = "is None" if gate is None else f"has the shape {found}"
            raise ValueError(f"{what}: {name} {told}, expected {shapes[shape]}")
    if len(gates) != len(rows):
        raise ValueError(f"{what}: got {len(gates)} gates, expected {', '.join(name for name, _ in rows) or 'none'}")


def require_none(what, function, **arguments):
    """Raises ValueError if one of these arguments was given, which the function does not take."""
    for name, argument in arguments.items():
        if argument is not None:
            raise ValueError(f"{what}: {name} was given, expected none with {function}")


def given(family, **gates):
    """explain()'s gates in the family's order: None for those that it was not given."""
    names = [name for name, _ in GATES[family]]
    require_none("explain", NAMES[family], **{name: gate for name, gate in gates.items() if name not in names})
    return tuple(gates.get(name) for name in names)


def options_of(family, options):
    """The options of a family's function: `options`, which are those of all."""
    return (*options, "normalize") if ("beta", "Token") in GATES[family] else options


def reserve_of(family, reserve):
    """seqparAttnDesc_t.reserve of a call with this option: by default not the many bytes of a family with beta, or of
    the states of chunks."""
    if reserve is None:
        return 0 if ("beta", "Token") in GATES[family] else 1
    return 2 if reserve else 0


def named(family, gates):
    """{name: gate} of the gates that a function was called with."""
    return {name: gate for (name, _), gate in zip(GATES[family], gates)}
