"""Communicators and their collectives."""

import ctypes

import numpy as np

from . import _abi, _shapes

_NUMPY_TYPES = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16", np.dtype(np.uint16): "bfloat16"}


def unique_id():
    """Creates the bytes that identify a new communicator; every rank passes the same bytes to Communicator()."""
    raw = _abi.UniqueId()
    _abi.check(_abi.lib.seqparGetUniqueId(ctypes.byref(raw)))
    return bytes(raw.internal)


def _config(timeout=None, transport=None, check_arguments=None, host_id=None, interface=None):
    undefined = _abi.UNDEFINED
    return _abi.Config(
        timeoutMs=undefined if timeout is None else _shapes.milliseconds("timeout", timeout),
        transport=undefined if transport is None else _abi.choose("transport", transport, _abi.TRANSPORTS),
        device=undefined,
        checkArguments=undefined if check_arguments is None else int(check_arguments),
        hostId=None if host_id is None else host_id.encode(),
        interfaceName=None if interface is None else interface.encode())


def _array(name, value, shape=None, dtype=None, writable=False):
    """Checks that `value` is an array with memory that the library can use without a copy."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a numpy array")
    if dtype is not None and value.dtype != dtype:
        raise TypeError(f"{name}: got {value.dtype}, expected {dtype}")
    if shape is not None and value.shape != shape:
        raise ValueError(f"{name}: got the shape {value.shape}, expected {shape}")
    if not value.flags.c_contiguous:
        raise ValueError(f"{name}: expected an array that is contiguous in C order")
    if writable and not value.flags.writeable:
        raise ValueError(f"{name}: expected a writable array")
    return value


def _pointer(array):
    return None if array is None else array.ctypes.data


class Communicator:
    """One rank's membership in a group of ranks. One thread at a time may use it; `with` destroys it at the end.

    Keywords of all constructors: timeout (seconds; 0: none), transport ("auto", "shared", "network"), check_arguments
    (compare the arguments of collectives between the ranks), host_id, interface. See seqparConfig_t.
    """

    def __init__(self, nranks, unique_id, rank, **config):
        """Collective over `nranks` callers with the same unique_id()."""
        if len(unique_id) != _abi.UNIQUE_ID_BYTES:
            raise ValueError(f"unique_id: got {len(unique_id)} bytes, expected {_abi.UNIQUE_ID_BYTES}")
        raw = _abi.UniqueId.from_buffer_copy(unique_id)
        handle = ctypes.c_void_p()
        _abi.check(_abi.lib.seqparCommInitRankConfig(ctypes.byref(handle), nranks, raw, rank,
                                                     ctypes.byref(_config(**config))))
        self._handle = handle

    @classmethod
    def _adopt(cls, handle):
        comm = cls.__new__(cls)
        comm._handle = handle
        return comm

    @classmethod
    def from_env(cls, **config):
        """Collective over the ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe."""
        handle = ctypes.c_void_p()
        _abi.check(_abi.lib.seqparCommInitEnv(ctypes.byref(handle), ctypes.byref(_config(**config))))
        return cls._adopt(handle)

    @classmethod
    def init_all(cls, nranks):
        """Creates a list of `nranks` communicators, one for each of `nranks` threads of this process."""
        handles = (ctypes.c_void_p * max(nranks, 1))()
        _abi.check(_abi.lib.seqparCommInitAll(handles, nranks, None))
        return [cls._adopt(ctypes.c_void_p(handle)) for handle in handles]

    def split(self, color, key=0, **config):
        """Collective: ranks with the same color form a new communicator, ordered by key. A color of None: not a
        member."""
        handle = ctypes.c_void_p()
        pointer = ctypes.byref(_config(**config)) if config else None
        self._check(_abi.lib.seqparCommSplit(self._handle, -1 if color is None else color, key, ctypes.byref(handle),
                                             pointer))
        return self._adopt(handle) if handle else None

    def revoke(self):
        """Marks the communicator as lost on all ranks: active and later calls raise RemoteError. See seqparCommRevoke()."""
        self._check(_abi.lib.seqparCommRevoke(self._handle))

    def shrink(self, timeout=None, min_ranks=0, **config):
        """Collective over the ranks that are alive, after a failure: returns their new communicator. This one stays lost;
        destroy() frees it. See seqparCommShrink().

        timeout    seconds without an answer after which a rank is silent; None: the communicator's
        min_ranks  fewer living ranks are a RemoteError
        """
        own = _config(**config) if config else None
        wait = 0 if timeout is None else max(1, _shapes.milliseconds("shrink: timeout", timeout))
        params = _abi.ShrinkParams(timeoutMs=wait, minRanks=min_ranks,
                                   config=ctypes.addressof(own) if own else None)
        handle = ctypes.c_void_p()
        self._check(_abi.lib.seqparCommShrink(self._handle, ctypes.byref(params), ctypes.byref(handle)))
        return self._adopt(handle)

    @property
    def parent_ranks(self):
        """The rank that each rank had in the communicator that was shrunk."""
        ranks = (ctypes.c_int * self.size)()
        self._check(_abi.lib.seqparCommParentRanks(self._handle, ranks))
        return list(ranks)

    def _check(self, result):
        _abi.check(result, self._handle)

    def destroy(self):
        """Collective: waits until all other ranks call it, and frees the communicator."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        _abi.check(_abi.lib.seqparCommDestroy(handle))

    def abort(self, reason=None):
        """Ends the communicator at once; calls in progress, on this and all other ranks, raise RemoteError with the reason."""
        if reason is not None:
            self._check(_abi.lib.seqparCommFail(self._handle, str(reason).encode("utf-8", "replace")))
        handle, self._handle = self._handle, ctypes.c_void_p()
        _abi.check(_abi.lib.seqparCommAbort(handle))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        # After an exception the other ranks may wait for this one: abort() ends their wait with its text.
        if self._handle:
            self.destroy() if kind is None else self.abort(" ".join(f"{kind.__name__}: {value}".split()))

    def query(self):
        """A dictionary of seqparCommQuery()'s results: rank, nranks, transport, reason, alphaUs, bandwidth, ..."""
        info = _abi.CommInfo()
        self._check(_abi.lib.seqparCommQuery(self._handle, ctypes.byref(info)))
        values = {name: getattr(info, name) for name, _ in info._fields_[3:]}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    @property
    def rank(self):
        return self._number(_abi.lib.seqparCommUserRank)

    @property
    def size(self):
        return self._number(_abi.lib.seqparCommCount)

    def _number(self, function):
        number = ctypes.c_int()
        self._check(function(self._handle, ctypes.byref(number)))
        return number.value

    def send_recv(self, send=None, to=None, receive=None, source=None):
        """Sends the array `send` to rank `to` while filling the array `receive` from rank `source`. Either may be
        omitted."""
        if (send is None) != (to is None) or (receive is None) != (source is None):
            raise ValueError("send_recv: `send` goes with `to`, and `receive` with `source`")
        if send is not None:
            _array("send", send)
        if receive is not None:
            _array("receive", receive, writable=True)
        self._check(_abi.lib.seqparSendRecv(
            _pointer(send), 0 if send is None else send.nbytes, -1 if to is None else to,
            _pointer(receive), 0 if receive is None else receive.nbytes, -1 if source is None else source,
            self._handle, None))

    def all_scan(self, state, transition=None, *, op="diag", initial=None, reverse=False, decay="linear", wire=None,
                 flags=None, algorithm="auto", blocks=0, prefix=True, total=True):
        """Collective: seqparAllScan(). Returns (prefix, total), the states before and after this rank.

        state       [heads][dk][dv] of float32, float16, or uint16 that holds bfloat16
        transition  float32: [heads] for op "scalar", [heads][dk] for "diag", [heads][dk][dk] for "matrix"
        initial     like state; read on the first rank of the scan only
        decay       "linear", "log" or "log2": the form of the transition
        wire        "float32", "float16" or "bfloat16": the type of states on the wire; None: the states' type
        flags       uint8, one value per packed sequence
        prefix, total  True: a new array; an array like `state`: written there; False: not requested (returns None)
        """
        _array("state", state)
        if state.ndim != 3 or state.dtype not in _NUMPY_TYPES:
            raise TypeError(f"state: got {state.dtype} of {state.ndim} dimensions, expected float32, float16 or uint16 "
                            "of 3: [heads][dk][dv]")
        heads, dk, dv = state.shape
        number = _abi.choose("op", op, _abi.OPS)
        shape = {"sum": None, "scalar": (heads,), "diag": (heads, dk), "matrix": (heads, dk, dk)}[op]
        if (shape is None) != (transition is None):
            raise ValueError(f"transition: {'none is' if shape is None else f'an array of the shape {shape} is'} expected "
                             f"with op {op!r}")
        if transition is not None:
            _array("transition", transition, shape, np.float32)
        if initial is not None:
            _array("initial", initial, state.shape, state.dtype)
        if flags is not None:
            _array("flags", flags, dtype=np.uint8)
        outputs = []
        for name, wanted in (("prefix", prefix), ("total", total)):
            if isinstance(wanted, np.ndarray):
                outputs.append(_array(name, wanted, state.shape, state.dtype, writable=True))
            else:
                outputs.append(np.empty_like(state) if wanted else None)
        state_type = _NUMPY_TYPES[state.dtype]
        params = _abi.AllScanParams(
            op=number, direction=int(reverse), heads=heads, dk=dk, dv=dv, stateType=_abi.TYPES[state_type],
            wireType=_abi.choose("wire", wire or state_type, _abi.TYPES),
            decayForm=_abi.choose("decay", decay, _abi.DECAYS), sequences=1 if flags is None else flags.size,
            flags=_pointer(flags), algorithm=_abi.choose("algorithm", algorithm, _abi.ALGORITHMS), blocks=blocks)
        self._check(_abi.lib.seqparAllScan(
            _pointer(state), _pointer(transition), _pointer(initial), _pointer(outputs[0]), _pointer(outputs[1]),
            ctypes.byref(params), self._handle, None))
        return tuple(outputs)
