"""Communicators over the groups of torch.distributed."""

import collections
import contextlib
import ctypes
import itertools

import torch
import torch.distributed as dist

from .. import _abi

_comms = {}  # name -> Comm: what the operators, whose arguments are plain, look up
# The handle of torch's current stream of a GPU, without the object around it, where this release has that.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream",
                          lambda index: torch.cuda.current_stream(index).cuda_stream)


_tickets = itertools.count()  # of start(), of all communicators


class Error(_abi.Error, dist.DistBackendError):
    """A failed call: seqpar.Error, and what torch.distributed raises for its own backends."""


def call(function, *arguments):
    """Runs a function that may raise seqpar.Error, and raises Error in its place."""
    try:
        return function(*arguments)
    except _abi.Error as error:
        raise Error(error.result, str(error)) from None


class _Plan:
    """A plan of the library: its handle, None once it is freed, what frees it, and when it was used last."""

    def __init__(self, handle, destroy):
        self.handle, self._destroy, self.used = handle, destroy, 0

    def free(self):
        handle, self.handle = self.handle, None
        call(self._destroy, handle)


class Comm:
    """One rank's membership in a group of ranks. Made by comm(); the operators find it again by its name.

    name, rank, size; device is torch.device("cpu"), or the GPU whose memory the operators take.
    """

    def __init__(self, name, handle, device, group=None, plans=64):
        self.name, self.device, self.group = name, device, group
        self._handle = handle
        self.plans, self.uses, self._most_plans = {}, itertools.count(), plans
        self.prepared = {}  # of _prepared.py
        self.index = -1 if device.type == "cpu" else device.index  # as torch.Tensor.get_device() has it
        self._side, self._started, self._abandoned = None, {}, collections.deque()
        info = self.query()
        self.rank, self.size = info["rank"], info["nranks"]
        _comms[name] = self

    def __repr__(self):
        return f"seqpar.torch.Comm({self.name!r}, rank={self.rank}, size={self.size}, device={str(self.device)!r})"

    def query(self):
        """What seqparCommQuery() tells, as a dictionary: the measured link, and what carries the data."""
        info = _abi.CommInfo()
        self.run("seqparCommQuery", self._handle, ctypes.byref(info))
        names = [name for name, *_ in info._fields_[3:]]
        values = {name: getattr(info, name) for name in names}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    def run(self, name, *arguments):
        """Calls a function of libseqpar and raises Error unless it succeeds."""
        result = getattr(_abi.lib, name)(*arguments)
        if result:
            self.fail(result)

    def fail(self, result):
        """Raises Error for a result that is not Success."""
        call(_abi.check, result, self._handle)

    @property
    def handle(self):
        """The seqparComm_t. Raises RuntimeError once the communicator is closed."""
        if not self._handle:
            raise RuntimeError(f"the communicator {self.name!r} is closed")
        return self._handle

    def stream(self, tensor):
        """The stream that work on `tensor` is ordered on: torch's current one; on hosts none, or in start() its own."""
        if tensor.is_cuda:
            return _current_stream(self.index)
        return self._side if self._starting else None

    _starting = False

    @contextlib.contextmanager
    def _beside(self):
        """What is enqueued inside runs on a stream of the communicator's own, behind the work so far."""
        if self.device.type == "cuda":
            self._side = self._side or torch.cuda.Stream(self.device, priority=-1)
            self._side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._side):
                yield
            return
        if self._side is None:
            self._side = ctypes.c_void_p()
            self.run("seqparStreamCreate", ctypes.byref(self._side))
        self._starting = True
        try:
            yield
        finally:
            self._starting = False

    def _event(self):
        """An event behind what has been enqueued on the communicator's own stream."""
        if self.device.type == "cuda":
            return self._side.record_event()
        event = ctypes.c_void_p()
        self.run("seqparEventCreate", ctypes.byref(event))
        self.run("seqparEventRecord", event, self._side)
        return event

    def start(self, launch, made, kept):
        """Runs launch() beside the current stream. `made` are its outputs; `kept` stay alive until finish() of the number
        that this returns."""
        self._release_abandoned()
        origin = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        with self._beside():
            launch()
        number = next(_tickets)
        self._started[number] = (made, kept, self._event(), origin)
        return number

    def finish(self, number):
        """The outputs of start(), once they are there: on a GPU for the current stream."""
        if number not in self._started:
            raise RuntimeError(f"wait: {number} is none of the {len(self._started)} operations under way on {self.name!r}: "
                               "each is waited for once")
        made, kept, event, origin = self._started.pop(number)
        if self.device.type == "cuda":
            here = torch.cuda.current_stream(self.device)
            here.wait_event(event)
            if here != origin:  # whose next work could take the memory of what is freed here
                origin.wait_event(event)
            self._release_abandoned()
            return made
        self.run("seqparEventSynchronize", event)
        self.run("seqparEventDestroy", event)
        self._release_abandoned()
        failed = ctypes.c_int()
        self.run("seqparCommGetAsyncError", self.handle, ctypes.byref(failed))
        call(_abi.check, failed.value, self._handle)
        return made

    def abandon(self, number):
        """Nobody will call finish(): what start() keeps is freed when the operation is over, at the latest at the next start()
        or finish() behind that. The operation itself goes on, since the other ranks take part in it. From any thread."""
        self._abandoned.append(number)
        self._release_abandoned()

    def _release_abandoned(self):
        for _ in range(len(self._abandoned)):
            try:
                number = self._abandoned.popleft()
            except IndexError:  # another thread looks, too
                return
            if number in self._started and not self._over(self._started[number][2]):
                self._abandoned.append(number)
            elif entry := self._started.pop(number, None):
                if self.device.type == "cpu":
                    _abi.lib.seqparEventDestroy(entry[2])

    def _over(self, event):
        if self.device.type == "cpu":
            return _abi.lib.seqparEventQuery(event) != _abi.RESULTS["InProgress"]
        return not torch.cuda.is_current_stream_capturing() and event.query()

    def plan(self, key, make, destroy):
        """The plan with this description, made at its first use. Collective then: all ranks describe alike, so that they
        also forget alike: where there are too many, the one whose last use is the longest ago."""
        plan = self.plans.get(key)
        if plan is None:
            while len(self.plans) >= self._most_plans:
                self.plans.pop(min(self.plans, key=lambda key: self.plans[key].used)).free()
            plan = self.plans[key] = _Plan(call(make), destroy)
        plan.used = next(self.uses)
        return plan.handle

    def close(self):
        """Collective: frees the plans, in the order in which they were made, and the communicator."""
        if self._handle:
            if self._side is not None and self.device.type == "cpu":
                self.run("seqparStreamDestroy", self._side)
            self._side = None
            self._started.clear()
            self._abandoned.clear()
            self.prepared.clear()
            while self.plans:
                self.plans.pop(next(iter(self.plans))).free()
            handle, self._handle = self._handle, None
            _comms.pop(self.name, None)
            call(_abi.check, _abi.lib.seqparCommDestroy(handle))

    def __deepcopy__(self, memo):
        return self  # so that modules which have one can be copied, as for averages of their parameters

    __copy__ = lambda self: self

    def __reduce__(self):
        raise TypeError("a communicator cannot be pickled: save a module's state_dict(), and make the communicator anew with "
                        "seqpar.torch.comm()")

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()


def abandon(number):
    """Comm.abandon() of the communicator that gave the number, if it is open."""
    for one in list(_comms.values()):
        if number in one._started:
            one.abandon(number)


def require(comm):
    """Raises TypeError for what is no communicator, such as a process group."""
    if not isinstance(comm, Comm):
        raise TypeError(f"comm: got {type(comm).__name__}, expected a seqpar.torch.Comm: make it with seqpar.torch.comm(group)")


def find(name):
    """The communicator of an operator's argument."""
    try:
        return _comms[name]
    except KeyError:
        raise RuntimeError(f"there is no open communicator {name!r}: make it with seqpar.torch.comm()") from None


def _config(device, timeout, transport, check_arguments, ctas):
    config = _abi.Config(device=-1 if device.type == "cpu" else device.index, ctas=ctas)
    if timeout is not None:
        config.timeoutMs = round(timeout * 1000)
    if transport is not None:
        config.transport = _abi.choose("transport", transport, _abi.TRANSPORTS)
    if check_arguments is not None:
        config.checkArguments = int(check_arguments)
    return config


def _device(device, group):
    if device is None:
        nccl = group is not None and "nccl" in str(dist.get_backend(group))
        device = (getattr(group, "bound_device_id", None) or "cuda") if nccl else "cpu"
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"comm: device is {device}, expected cpu or cuda")
    return device


def _bootstrap(group, config, device):
    """A communicator over `group`: what ranks tell each other during the start goes through torch.distributed."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    errors = []

    def allgather(mine, everything, count, _):
        try:
            parts = [None] * size
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                dist.all_gather_object(parts, ctypes.string_at(mine, count), group=group)
            ctypes.memmove(everything, b"".join(parts), count * size)
            return 0
        except Exception as error:  # through C no exception can go; it is raised below
            errors.append(error)
            return 1

    callback = _abi.OobAllgather(allgather)
    oob = _abi.Oob(rank=rank, nranks=size, allgather=ctypes.cast(callback, ctypes.c_void_p).value)
    handle = ctypes.c_void_p()
    result = _abi.lib.seqparCommInitOob(ctypes.byref(handle), ctypes.byref(oob), ctypes.byref(config))
    if errors:
        raise errors[0]
    call(_abi.check, result)
    return handle


def comm(group=None, *, device=None, timeout=None, transport=None, check_arguments=None, ctas=16, plans=64):
    """The communicator of a ProcessGroup, of a DeviceMesh of one dimension, or (None) of all ranks. Collective at the
    first call for a group; later calls return the same object. Without torch.distributed: a communicator of one rank.

    device           None: where the group's backend is NCCL the GPU that the group is bound to, or else the current one
                     (torch.cuda.set_device() before); cpu for other backends
    timeout          seconds after which a rank that does not answer is an error on the others
    transport        "auto", "shared", "network"
    check_arguments  True: every call compares its arguments between the ranks (slow)
    ctas             thread blocks of a collective on a GPU, 1 to 128: few, since they share the GPU with other work
    plans            the most plans of attention and of layouts that are kept: beyond that, the one that was used last the
                     longest ago is freed, and made anew if it comes back. More than a step uses, and than CUDA graphs hold
    """
    if isinstance(group, Comm):
        return group
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise ValueError(f"comm: the mesh has {group.ndim} dimensions, expected 1: such as mesh['cp']")
        group = group.get_group()
    alone = group is None and not (dist.is_available() and dist.is_initialized())
    if group is None and not alone:
        group = dist.group.WORLD
    if plans < 1:
        raise ValueError(f"comm: plans is {plans}, expected at least 1")
    device = _device(device, group)
    name = f"{'alone' if alone else group.group_name}/{device.type}"
    while name in _comms:
        if _comms[name].group is group:
            return _comms[name]
        name += "+"  # of a group that was destroyed before its communicator: torch gives the names again
    config = _config(device, timeout, transport, check_arguments, ctas)
    if alone:
        token, handle = _abi.UniqueId(), ctypes.c_void_p()
        call(_abi.check, _abi.lib.seqparGetUniqueId(ctypes.byref(token)))
        call(_abi.check, _abi.lib.seqparCommInitRankConfig(ctypes.byref(handle), 1, token, 0, ctypes.byref(config)))
    else:
        handle = _bootstrap(group, config, device)
    return Comm(name, handle, device, group, plans)


def close():
    """Collective: closes all communicators, the latest first. Call it before destroy_process_group()."""
    for one in list(_comms.values())[::-1]:
        one.close()
