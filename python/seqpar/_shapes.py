"""Checks that shapes of attention's tensors fit each other. The library gets addresses only, and reads memory as the
plan describes it, so shapes that do not fit must be refused before."""

import datetime
import numbers
import operator

_MOST_SECONDS = 2_000_000  # of seqparConfig_t::timeoutMs
_LEAST = 2.0 ** -150  # fp32 rounds it to 0


def require_fit(what, q, k, v, linear):
    """Raises ValueError unless tensors of these shapes are queries, keys and values of one call: for softmax attention
    [batch][tokens][heads][dim], [batch][kv tokens][kv heads][dim] and [batch][kv tokens][kv heads][value dim]; for
    linear attention [batch][tokens][key heads][dim] twice and [batch][tokens][heads][value dim]."""
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4:
            raise ValueError(f"{what}: {name} has the shape {tuple(shape)}, expected [batch][tokens][heads][dim]")
    if linear:
        expected, like = {"k": tuple(q), "v": (*q[:2], *v[2:])}, "q"
    else:
        expected, like = {"k": (q[0], k[1], k[2], q[3]), "v": (*k[:3], v[3])}, "q and k"
    for name, shape in (("k", k), ("v", v)):
        if tuple(shape) != expected[name]:
            raise ValueError(f"{what}: {name} has the shape {tuple(shape)}, expected {expected[name]} with {like} of the shapes "
                             f"{tuple(q)} and {tuple(k)}")
    (name, few), (other, many) = (("q", q[2]), ("v", v[2])) if linear else (("k", k[2]), ("q", q[2]))
    if many and (not few or many % few):
        raise ValueError(f"{what}: {name} has {few} heads, expected a divisor of the {many} heads of {other}")
    if v[3] == 0:  # to the library, 0 means the dimension of the keys
        raise ValueError(f"{what}: v has the shape {tuple(v)}, expected a last dimension of at least 1")


def require_sinks(what, sinks, heads):
    """Raises ValueError unless there is one value per head."""
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise ValueError(f"{what}: sinks has the shape {tuple(sinks.shape)}, expected {(heads,)}, one per head")


def shown(value):
    """A value that an error names: its repr, but a tensor's type and shape."""
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"a {type(value).__name__} of the shape {tuple(shape)}"


def require_options(what, options, known, more=()):
    """Raises TypeError for an option that is not among the known ones; `more` are names accepted by other means."""
    for name in options:
        if name not in known:
            raise TypeError(f"{what}() got an unexpected keyword argument {name!r}, expected one of "
                            f"{', '.join(sorted({*known, *more}))}")


def integers(what, values, least, bits=64):
    """The values as a tuple of at least `least` ints. Raises TypeError for other values, and ValueError for too few and for
    values with more bits, of which ctypes would pass the lower ones."""
    try:
        found = tuple(operator.index(x) for x in values)
    except TypeError:
        raise TypeError(f"{what}: got {shown(values)}, expected integers") from None
    if len(found) < least:
        raise ValueError(f"{what}: got {len(found)} numbers, expected at least {least}")
    for x in found:
        if not -1 << bits - 1 <= x < 1 << bits - 1:
            raise ValueError(f"{what}: got {x}, expected an integer of {bits} bits")
    return found


def milliseconds(what, seconds):
    """A time as whole milliseconds, at least 1 unless it is 0. Raises TypeError unless it is a number of seconds or a
    datetime.timedelta, and ValueError outside of the library's range."""
    given = seconds.total_seconds() if isinstance(seconds, datetime.timedelta) else seconds
    if not isinstance(given, numbers.Real):
        raise TypeError(f"{what}: got {seconds!r}, expected a number of seconds, or a datetime.timedelta")
    if not 0 <= given <= _MOST_SECONDS:
        raise ValueError(f"{what}: got {seconds!r}, expected 0 to {_MOST_SECONDS} seconds")
    return max(round(given * 1000), int(given > 0))


def require_bounds(what, bounds, tokens):
    """Raises ValueError unless packed sequences with these bounds contain all tokens; None: not packed."""
    if bounds is not None and (bounds[0] != 0 or bounds[-1] != tokens or any(a > b for a, b in zip(bounds, bounds[1:]))):
        raise ValueError(f"{what}: cu_seqlens is {bounds}, expected ascending bounds from 0 to {tokens}, the tokens of the whole")


def window_of(what, window):
    """(left, right), as ints."""
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(f"{what}: window is {window!r}, expected (left, right)") from None
    found = integers(f"{what}: window", (left, right), 2)
    if min(found) < -1:
        raise ValueError(f"{what}: window is {found}, expected numbers of tokens, or -1: all")
    return found


def number(what, value):
    """A number of Python, NumPy, PyTorch or JAX as a float. Raises TypeError for other values."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what}: got {shown(value)}, expected a number") from None


def flag(what, value):
    """True or False; None is False. Raises TypeError for texts and collections: "no" and (False,) would be True."""
    if isinstance(value, (str, bytes, tuple, list, dict, set)):
        raise TypeError(f"{what}: got {value!r}, expected True or False")
    return bool(value)


def scale_of(what, scale):
    """The scale of the scores as a float. Raises ValueError for what is 0 in fp32: the library would use its default."""
    if scale is None:
        return None
    found = number(f"{what}: scale", scale)
    if abs(found) <= _LEAST:
        raise ValueError(f"{what}: scale is {scale}, expected another number than 0, or None: 1 / sqrt(dim)")
    return found


def scan_shapes(op, heads, dk):
    """The shape of an All-Scan's transition, None for op "sum"."""
    return {"sum": None, "scalar": (heads,), "diag": (heads, dk), "matrix": (heads, dk, dk)}[op]


def require_mamba2(shapes):
    """Raises ValueError unless these shapes fit as mamba2()'s x, dt, A, B, C, D, z and dt_bias; None: not given."""
    for name, of in (("x", "heads][head dim"), ("B", "groups][state"), ("C", "groups][state")):
        if len(shapes[name]) != 4:
            raise ValueError(f"mamba2: {name} has the shape {shapes[name]}, expected [batch][tokens][{of}]")
    (batch, tokens, heads, dim), (groups, state) = shapes["x"], shapes["B"][2:]
    if not dim:
        raise ValueError(f"mamba2: x has the shape {shapes['x']}, expected a last dimension of at least 1")
    if not groups or heads % groups:
        raise ValueError(f"mamba2: B has {groups} groups, expected a divisor of {heads}, the heads of x")
    shared = (batch, tokens, groups, state)
    expected = {"dt": [(batch, tokens, heads)], "A": [(heads,)], "B": [shared], "C": [shared], "D": [(heads,), (heads, dim)],
                "z": [shapes["x"]], "dt_bias": [(heads,)]}
    for name, fits in expected.items():
        if shapes[name] is not None and shapes[name] not in fits:
            raise ValueError(f"mamba2: {name} has the shape {shapes[name]}, expected {' or '.join(map(str, fits))} with x of the shape "
                             f"{shapes['x']}")


def require_mamba2_type(x, B, C):
    """Raises TypeError unless x, B and C, the arguments, have one type."""
    if not x == B == C:
        raise TypeError(f"mamba2: x, B and C are {x}, {B} and {C}, expected one type")


def require_floating(what, types, floating):
    """Raises TypeError unless floating() returns True for the types of these arguments; None: not given. Conversions to float32 would
    drop imaginary parts."""
    for name, kind in types.items():
        if kind is not None and not floating(kind):
            raise TypeError(f"{what}: {name} is {kind}, expected a real floating-point type")


def updates_of_delta_product(num_householder, **arrays):
    """num_householder as an int. Raises TypeError for another value, and ValueError unless there is at least one update of a
    token, and the shapes of q, k, v, log_decay and beta fit as gated_delta_product()'s; None: not given."""
    updates, = integers("gated_delta_product: num_householder", (num_householder,), 1, 32)
    shapes = {name: None if x is None else tuple(x.shape) for name, x in arrays.items()}
    if updates < 1:
        raise ValueError(f"gated_delta_product: num_householder is {updates}, expected at least 1")
    for name in ("q", "k", "v"):
        if len(shapes[name]) != 4:
            raise ValueError(f"gated_delta_product: {name} has the shape {shapes[name]}, expected [batch][tokens][heads][dim]")
    (batch, tokens, keys, dim), (heads, value_dim) = shapes["q"], shapes["v"][2:]
    expected = {"k": (batch, updates * tokens, keys, dim), "v": (batch, updates * tokens, heads, value_dim),
                "log_decay": (batch, tokens, heads), "beta": (batch, updates * tokens, heads)}
    for name, fits in expected.items():
        if shapes[name] != fits and not (shapes[name] is None and name == "log_decay"):
            found = "is None" if shapes[name] is None else f"has the shape {shapes[name]}"
            raise ValueError(f"gated_delta_product: {name} {found}, expected {fits} with q of the shape {shapes['q']}, {heads} heads "
                             f"of v and {updates} updates of a token")
    return updates
