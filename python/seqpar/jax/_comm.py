"""Communicators over an axis of a mesh of devices: each device of this process is a rank."""

import contextlib
import ctypes
import functools
import inspect
import os
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core

from .. import _abi
from ._library import library


def _threads(functions):
    """Runs the functions concurrently, as collective calls of several ranks need; returns their results. Raises the
    first error."""
    results, errors = [None] * len(functions), []

    def run(i):
        try:
            results[i] = functions[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Comm:
    """The ranks along `axis` of `mesh`, for calls inside of jax.shard_map over that mesh (with check_vma=False). If the
    mesh has more axes, each row gets a separate communicator. All devices are of this process.

    rank() inside of shard_map, size, check(). Close it when no compiled function that uses it will run again.
    """

    def __init__(self, mesh, axis):
        if axis not in mesh.axis_names:
            raise ValueError(f"Comm: axis is {axis!r}, expected one of {', '.join(map(repr, mesh.axis_names))}")
        self.mesh, self.axis, self.size = mesh, axis, mesh.shape[axis]
        devices = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), -1).reshape(-1, self.size)
        if any(device.process_index != jax.process_index() for device in devices.flat):
            raise ValueError("Comm: the mesh has devices of other processes, expected those of this one only")
        self.platform = devices.flat[0].platform
        self._ranks = []  # (ordinal of the device, rank, handle)
        self._keys, self._kept = {}, []
        self._trace, self._last, self.plans = None, None, {}
        for row in devices:
            handles = (ctypes.c_void_p * self.size)()
            ordinals = [device.local_hardware_id if self.platform != "cpu" else device.id for device in row]
            numbers = None if self.platform == "cpu" else (ctypes.c_int * self.size)(*ordinals)
            _abi.check(_abi.lib.seqparCommInitAll(handles, self.size, numbers))
            self._ranks += [(ordinal, rank, ctypes.c_void_p(handle))
                            for rank, (ordinal, handle) in enumerate(zip(ordinals, handles))]
        self._timeout = int(1000 * float(os.environ.get("SEQPAR_TIMEOUT") or 300))  # ms, checked by the library

    def __repr__(self):
        return f"seqpar.jax.Comm(axis={self.axis!r}, size={self.size}, platform={self.platform!r})"

    def rank(self):
        """This device's rank, inside of shard_map."""
        return jax.lax.axis_index(self.axis)

    def require_axis(self):
        """Raises RuntimeError outside of shard_map, where one device would run a collective without the others."""
        try:
            size = jax.lax.psum(1, self.axis)  # a constant
        except NameError:
            size = None
        if size != self.size:
            where = "outside" if size is None else f"on {size} devices"
            raise RuntimeError(f"seqpar.jax: called {where}, expected a call inside of jax.shard_map over the axis {self.axis!r} "
                               f"of {self.size} devices")

    def on_each_rank(self, function):
        """[function(rank, handle), ...], run concurrently, so that they may be collective."""
        return _threads([lambda rank=rank, handle=handle: function(rank, handle) for _, rank, handle in self._ranks])

    def key(self, description, operands, make):
        """The number of the call with this description, equal in every process that traces the same program. At its
        first use, make(rank, handle) gives each rank's Call, on one thread per rank, so that it may be collective."""
        if not self._ranks:
            raise RuntimeError("the communicator is closed")
        if description not in self._keys:
            calls = self.on_each_rank(make)
            key = self._keys[description] = next(_numbers)
            for i, ((ordinal, rank, handle), call) in enumerate(zip(self._ranks, calls)):
                call.define(library(), key, ordinal, rank, self.size, self._timeout, self._ranks[i - rank][2], handle, operands)
            self._kept.append(calls)
        return self._keys[description]

    @contextlib.contextmanager
    def ordered(self):
        """Yields the token that the next call waits for, and takes a list with the token that it returned, so that
        calls keep their order on every device. One chain per trace. On hosts its value lets the handler compare the
        device's index in the mesh of shard_map with its rank."""
        trace = core.get_opaque_trace_state()
        if self._trace != trace:
            self.require_axis()
            own = self.rank() + 1 if self.platform == "cpu" else jnp.zeros(())
            self._trace, self._last = trace, own.astype(jnp.float32)
        given = []
        yield self._last, given
        self._last, = given

    def check(self):
        """Raises Error if the communicator is lost. GPUs compute results later: those that block_until_ready() or a copy to
        the host waited for are valid if check() then returns."""
        if not self._ranks:
            raise RuntimeError("the communicator is closed")
        states = []
        for _, _, handle in self._ranks:
            failed = ctypes.c_int()
            _abi.check(_abi.lib.seqparCommGetAsyncError(handle, ctypes.byref(failed)))
            states.append((failed.value, handle))
        for failed, handle in states:
            _abi.check(failed, handle)

    def close(self):
        """Frees plans and communicators after the work that uses them. A result that was dropped before it was computed
        may never be computed."""
        for array in jax.live_arrays():
            with contextlib.suppress(Exception):  # the array's readers get the error
                array.block_until_ready()
        # A call that one device has started must start on all devices before they may release it.
        while self._running():
            time.sleep(0.001)
        for key in self._keys.values():
            for ordinal, _, _ in self._ranks:
                library().seqparJaxForget(key, ordinal)
        if self._running():  # a call of a dropped result has started meanwhile, and its peers will not start it
            _threads([lambda handle=handle: _abi.lib.seqparCommAbort(handle) for _, _, handle in self._ranks])
            self.plans, self._kept, self._ranks = {}, [], []
        for calls in self._kept:
            _threads([call.free for call in calls if hasattr(call, "free")])
        # A rank's plans in order of creation, which is equal on all ranks.
        mine = lambda handle: [plan for key, plan in self.plans.items() if key[-1] == handle.value]
        destroy = lambda handle: [_abi.check_attn(_abi.attn_lib().seqparAttnPlanDestroy(plan)) for plan in mine(handle)]
        _threads([lambda handle=handle: destroy(handle) for _, _, handle in self._ranks])
        self.plans = {}
        ranks, self._ranks = self._ranks, []
        self._keys, self._kept, self._trace, self._last = {}, [], None, None
        _threads([lambda handle=handle: _abi.check(_abi.lib.seqparCommDestroy(handle)) for _, _, handle in ranks])

    def _running(self):
        return any(library().seqparJaxRunning(ordinal) for ordinal, _, _ in self._ranks)

    def __deepcopy__(self, memo):
        return self  # so that modules with a communicator can be copied

    __copy__ = lambda self: self

    def __reduce__(self):
        raise TypeError("a communicator cannot be pickled: create it again with seqpar.jax.Comm(mesh, axis)")

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()


def _count():
    number = 0
    while True:
        yield number
        number += 1


_numbers = _count()


_PACKED = frozenset({"int1", "uint1", "int2", "uint2", "int4", "uint4", "float4_e2m1fn"})  # XLA stores several in a byte


def require_comm(what, comm):
    """Raises TypeError unless the argument is a communicator (for example, a mesh)."""
    if not isinstance(comm, Comm):
        raise TypeError(f"{what}: comm: got {type(comm).__name__}, expected a seqpar.jax.Comm: create it with seqpar.jax.Comm(mesh, axis)")


def takes_comm(function):
    """Decorates a function with a parameter `comm`, which must be a communicator."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args, **named):
        require_comm(function.__name__, signature.bind(*args, **named).arguments["comm"])
        return function(*args, **named)

    return checked


def custom_call(comm, description, arrays, results, make, token, aliases=None, name=None):
    """(results, token) of the call; results are jax.ShapeDtypeStruct. aliases: {operand: the result initialized with
    it}. name: the call's name in errors; None: description[0]."""
    comm.require_axis()
    for x in arrays:
        if x.dtype.name in _PACKED:
            raise TypeError(f"{name or description[0]}: got {x.dtype.name}, whose elements share bytes, expected a type of whole bytes")
    key = comm.key((description, tuple((x.shape, x.dtype.name) for x in arrays)), len(arrays) + 1, make)
    target = "seqpar_host" if comm.platform == "cpu" else "seqpar_gpu"
    # Each call passes the token on, so that the calls of a program form a chain. They have no other side effects:
    # unused calls are left out, on all devices.
    call = jax.ffi.ffi_call(target, [*results, jax.ShapeDtypeStruct((), jnp.float32)],
                            input_output_aliases={len(arrays): len(results), **(aliases or {})})
    run = _without_other_transformations(name or description[0], lambda *operands: call(*operands, key=np.int64(key)))
    outputs = run(*arrays, token)
    return tuple(outputs[:-1]), outputs[-1]


def _without_other_transformations(name, function):
    """The function; batching or differentiating it by JAX raises errors with its name: derivatives are custom_vjp's,
    one level above, and batches are axes of the arrays."""
    batchable = jax.custom_batching.custom_vmap(function)

    @batchable.def_vmap
    def batched(*_):
        raise NotImplementedError(f"seqpar.jax: {name} under jax.vmap (which jacrev uses too): not supported, expected the "
                                  f"batch as an axis of its arrays")

    differentiable = jax.custom_jvp(batchable)

    @differentiable.defjvp
    def derivative(*_):
        raise TypeError(f"seqpar.jax: a derivative of {name} in forward mode, or a second one (jvp, jacfwd, hessian): not "
                        f"supported, expected first derivatives in reverse mode (grad, value_and_grad, vjp)")

    return differentiable
