"""The part of seqpar.h and what it includes that the package uses: numbers, structures, and the loaded library."""

import ctypes
import os
import pathlib

MAGIC = 0x53514152
UNDEFINED = -2147483647 - 1
UNIQUE_ID_BYTES = 128

RESULTS = {"Success": 0, "UnhandledCudaError": 1, "SystemError": 2, "InternalError": 3, "InvalidArgument": 4,
           "InvalidUsage": 5, "RemoteError": 6, "InProgress": 7}
TRANSPORTS = {"auto": 0, "shared": 1, "network": 2}
TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
OPS = {"sum": 0, "scalar": 1, "diag": 2, "matrix": 3}
DECAYS = {"linear": 0, "log": 1, "log2": 2}
ALGORITHMS = {"auto": 0, "chain": 1, "oneshot": 2, "transposed": 3, "doubling": 4, "hier": 5, "lasp1": 6, "lasp2": 7}


class Error(RuntimeError):
    """A failed call. `result` is the name of its seqparResult_t, such as "InvalidArgument"; the text is the library's."""

    def __init__(self, result, text):
        super().__init__(text)
        self.result = result


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


class Versioned(ctypes.Structure):
    """A structure that begins with its size, the magic number and the version that it was made for."""

    def __init__(self, *values, **fields):
        super().__init__(*values, size=ctypes.sizeof(self), magic=MAGIC, version=version_code(), **fields)


def _versioned(*fields):
    return [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), *fields]


class Config(Versioned):
    _fields_ = _versioned(
        ("timeoutMs", ctypes.c_int), ("transport", ctypes.c_int), ("device", ctypes.c_int),
        ("checkArguments", ctypes.c_int), ("hostId", ctypes.c_char_p), ("interfaceName", ctypes.c_char_p))


class CommInfo(Versioned):
    _fields_ = _versioned(
        ("rank", ctypes.c_int), ("nranks", ctypes.c_int), ("device", ctypes.c_int), ("nodes", ctypes.c_int),
        ("node", ctypes.c_int), ("directPeers", ctypes.c_int), ("networkPeers", ctypes.c_int),
        ("alphaUs", ctypes.c_double), ("bandwidth", ctypes.c_double), ("overheadUs", ctypes.c_double),
        ("contention", ctypes.c_double), ("transport", ctypes.c_char * 128), ("reason", ctypes.c_char * 512))


class AllScanParams(Versioned):
    _fields_ = _versioned(
        ("op", ctypes.c_int), ("direction", ctypes.c_int), ("heads", ctypes.c_int64), ("dk", ctypes.c_int64),
        ("dv", ctypes.c_int64), ("stateType", ctypes.c_int), ("wireType", ctypes.c_int), ("decayForm", ctypes.c_int),
        ("sequences", ctypes.c_int64), ("flags", ctypes.c_void_p), ("algorithm", ctypes.c_int),
        ("blocks", ctypes.c_int))


def _load():
    name = "libseqpar.so.0.2"
    beside = pathlib.Path(__file__).resolve().parents[3] / name  # lib/seqpar/python/seqpar/_abi.py -> lib/
    path = os.environ.get("SEQPAR_LIBRARY") or (str(beside) if beside.exists() else name)
    library = ctypes.CDLL(path)
    for text in ("seqparGetErrorString", "seqparGetLastError"):
        getattr(library, text).restype = ctypes.c_char_p
    library.seqparGetLastError.argtypes = [ctypes.c_void_p]
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    library.seqparCommInitRankConfig.argtypes = [pointer, number, UniqueId, number, pointer]
    library.seqparCommInitEnv.argtypes = [pointer, pointer]
    library.seqparCommInitAll.argtypes = [pointer, number, pointer]
    library.seqparCommSplit.argtypes = [pointer, number, number, pointer, pointer]
    library.seqparCommQuery.argtypes = [pointer, pointer]
    library.seqparCommDestroy.argtypes = [pointer]
    library.seqparCommAbort.argtypes = [pointer]
    library.seqparSendRecv.argtypes = [pointer, size, number, pointer, size, number, pointer, pointer]
    library.seqparAllScan.argtypes = [pointer] * 8
    return library


lib = _load()


def check(result, comm=None):
    """Raises Error, with the text of `comm` or else of this thread, unless `result` is Success."""
    if result == RESULTS["Success"]:
        return
    name = next((name for name, number in RESULTS.items() if number == result), str(result))
    text = lib.seqparGetLastError(comm) or lib.seqparGetErrorString(result)
    raise Error(name, text.decode("utf-8", "replace"))


def version_code():
    code = ctypes.c_int()
    check(lib.seqparGetVersion(ctypes.byref(code)))
    return code.value


def version():
    """The version of the loaded library, such as "0.1.0"."""
    code = version_code()
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def choose(what, name, choices):
    """The number of a named choice. Raises ValueError with what is valid."""
    if name not in choices:
        raise ValueError(f"{what}: got {name!r}, expected one of {', '.join(choices)}")
    return choices[name]
