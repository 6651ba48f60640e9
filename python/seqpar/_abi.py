"""The loaded libraries, with the structures and prototypes that _bindings.py contains from the headers."""

import ctypes
import os
import pathlib

from . import _bindings
from ._bindings import CONSTANTS, ENUMS, INITIALIZERS, PROTOTYPES

MAGIC = CONSTANTS["SEQPAR_STRUCT_MAGIC"]
UNDEFINED = -2147483647 - 1
UNIQUE_ID_BYTES = CONSTANTS["SEQPAR_UNIQUE_ID_BYTES"]
_SONAME = f"so.{CONSTANTS['SEQPAR_VERSION_MAJOR']}.{CONSTANTS['SEQPAR_VERSION_MINOR']}"


def _choices(enum, prefix):
    """{"doubling": 4} of seqparScanDoubling = 4, with words separated by "_"."""
    names = {}
    for name, value in ENUMS[enum].items():
        stem = name.removeprefix(prefix)
        names["".join("_" + c.lower() if c.isupper() else c for c in stem).lstrip("_")] = value
    return names


RESULTS = {name.removeprefix("seqpar"): value for name, value in ENUMS["seqparResult_t"].items()}
TRANSPORTS = _choices("seqparTransport_t", "seqparTransport")
TYPES = _choices("seqparDataType_t", "seqpar")
OPS = _choices("seqparScanOp_t", "seqparScan")
DECAYS = _choices("seqparDecayForm_t", "seqparDecay")
ALGORITHMS = _choices("seqparScanAlgorithm_t", "seqparScan")
LAYOUTS = _choices("seqparLayoutKind_t", "seqpar")
_SPELLED = {"all_gather_kv": "allgather_kv", "star_trail": "startrail"}
ATTN_ALGORITHMS = {_SPELLED.get(name, name): value
                   for name, value in _choices("seqparAttnAlgorithm_t", "seqparAttn").items()}
FAMILIES = _choices("seqparAttnFamily_t", "seqparAttn")


class Error(RuntimeError):
    """A failed call. `result` is the name of its seqparResult_t, such as "InvalidArgument"; the text is the library's."""

    def __init__(self, result, text):
        super().__init__(text)
        self.result = result

    def __reduce__(self):  # pools of processes send errors of their workers
        return type(self), (self.result, str(self)), self.__dict__


UniqueId = _bindings.seqparUniqueId


def _versioned(base):
    """A structure with size, magic number and version as its first fields, and its initializer's values."""
    names = [name for name, *_ in base._fields_]
    values = dict(zip(names[3:], INITIALIZERS.get(base.__name__, ())))
    values = {name: value for name, value in values.items() if value is not None and not isinstance(value, tuple)}
    values.update(size=ctypes.sizeof(base), magic=MAGIC, version=CONSTANTS["SEQPAR_VERSION_CODE"])

    def init(self, **fields):
        base.__init__(self, **{**values, **fields})

    return type(base.__name__, (base,), {"__init__": init})


Config = _versioned(_bindings.seqparConfig_t)
ShrinkParams = _versioned(_bindings.seqparShrinkParams_t)
CommInfo = _versioned(_bindings.seqparCommInfo_t)
Oob = _versioned(_bindings.seqparOob_t)
AllScanParams = _versioned(_bindings.seqparAllScanParams_t)
LayoutStruct = _versioned(_bindings.seqparLayout_t)
HeadShards = _versioned(_bindings.seqparHeadShards_t)
Shards = _versioned(_bindings.seqparShards_t)
LseParams = _versioned(_bindings.seqparLseParams_t)
Halo = _versioned(_bindings.seqparHalo_t)
ShiftParams = _versioned(_bindings.seqparShiftParams_t)
RingParams = _versioned(_bindings.seqparRingParams_t)
RingInfo = _versioned(_bindings.seqparRingInfo_t)
ShortConvDesc = _versioned(_bindings.seqparShortConvDesc_t)
ShortConvBackwardArgs = _versioned(_bindings.seqparShortConvBackwardArgs_t)
AttnDesc = _versioned(_bindings.seqparAttnDesc_t)
AttnForwardArgs = _versioned(_bindings.seqparAttnForwardArgs_t)
AttnBackwardArgs = _versioned(_bindings.seqparAttnBackwardArgs_t)
AttnFamilyInfo = _versioned(_bindings.seqparAttnFamilyInfo_t)
AttnTensor = _bindings.seqparAttnTensor_t
AttnLoad = _bindings.seqparAttnLoad_t
AttnSlice, AttnPage = _bindings.seqparAttnSlice_t, _bindings.seqparAttnPage_t
OobAllgather = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def _is_attn(name):
    return name.startswith(("seqparAttn", "seqparShortConv"))


def _bind(library, attn):
    for name, (result, arguments) in PROTOTYPES.items():
        if _is_attn(name) == attn:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library


def _find(name, named, beside=()):
    """`named`, if the environment names a library; else one in the package or in the additional folders; else the name,
    for the loader."""
    package = pathlib.Path(__file__).resolve().parent
    # In a wheel, lib/ is in the package; in an installed tree, the package is in lib/seqpar/python.
    folders = [*beside, package / "lib", package.parents[2]]
    return named or next((str(f / name) for f in folders if (f / name).exists()), name)


def _open(path, variable, mode):
    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError as error:
        raise ImportError(f"seqpar: {error}. `pip install .` in the sources puts the library into the package; {variable} names "
                          f"another file") from error


def _load():
    path = _find(f"libseqpar.{_SONAME}", os.environ.get("SEQPAR_LIBRARY"))
    # Global, so that libseqpar_attn binds to this library and not to another one that the loader may find.
    return path, _bind(_open(path, "SEQPAR_LIBRARY", ctypes.RTLD_GLOBAL), attn=False)


_path, lib = _load()
_attn = None


def attn_lib():
    """libseqpar_attn, opened at first use: SEQPAR_ATTN_LIBRARY, or the file next to libseqpar, or the loader's."""
    global _attn
    if _attn is None:
        folder = pathlib.Path(_path).resolve().parent
        beside = [folder, folder / "attn"] if os.sep in _path else []
        path = _find(f"libseqpar_attn.{_SONAME}", os.environ.get("SEQPAR_ATTN_LIBRARY"), beside)
        _attn = _bind(_open(path, "SEQPAR_ATTN_LIBRARY", ctypes.DEFAULT_MODE), attn=True)
    return _attn


def _fail(result, text):
    name = next((name for name, number in RESULTS.items() if number == result), str(result))
    raise Error(name, (text or lib.seqparGetErrorString(result)).decode("utf-8", "replace"))


def check(result, comm=None):
    """Raises Error, with the text of `comm` or else of this thread, unless `result` is Success."""
    if result:
        _fail(result, lib.seqparGetLastError(comm) or lib.seqparGetLastError(None))


def check_attn(result):
    """check() for calls of libseqpar_attn."""
    if result:
        _fail(result, attn_lib().seqparAttnGetLastError())


def version_code():
    code = ctypes.c_int()
    check(lib.seqparGetVersion(ctypes.byref(code)))
    return code.value


def version():
    """The version of the loaded library, such as "0.1.0"."""
    code = version_code()
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def choose(what, name, choices):
    """The number of a named choice. Raises ValueError with the valid names."""
    if name not in choices:
        raise ValueError(f"{what}: got {name!r}, expected one of {', '.join(choices)}")
    return choices[name]


def offset(structure, field):
    """The offset of a field, or of an element of an array: "gates[1]"."""
    name, _, index = field.rstrip("]").partition("[")
    start = getattr(structure, name).offset
    if not index:
        return start
    array = next(kind for field, kind in structure.__base__._fields_ if field == name)
    return start + int(index) * ctypes.sizeof(array._type_)


def int64s(values):
    """A C array of int64_t."""
    return (ctypes.c_int64 * len(values))(*values)
