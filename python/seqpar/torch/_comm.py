"""Communicators, and the plans that they keep. _connect.py creates them."""

import collections
import contextlib
import ctypes
import itertools

import torch
import torch.distributed as dist

from .. import _abi, _shapes

# name -> Comm, for operators, which take plain arguments. Names contain the rank and the number of ranks: a compiler stores
# graphs for later runs by the operators' arguments, and sizes of results depend on both.
open_comms = {}
# The handle of torch's current stream of a GPU, without a Stream object, if this release provides it.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream",
                          lambda index: torch.cuda.current_stream(index).cuda_stream)

capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)

_next_call = _abi.lib.seqparCommNextCall
_tickets = itertools.count()  # tickets of start(), over all communicators


class Error(_abi.Error, dist.DistBackendError):
    """A failed call: seqpar.Error, and the error that torch.distributed raises for its backends."""


def call(function, *arguments):
    """Runs a function that may raise seqpar.Error, and raises Error instead."""
    try:
        return function(*arguments)
    except _abi.Error as error:
        raise Error(error.result, str(error)) from None


class _Plan:
    """A plan of the library: its handle (None once freed), its destructor, the time of its last use, what it has in
    common with plans of other packings, or None, and whether a CUDA graph contains calls of it."""

    def __init__(self, handle, destroy, form=None):
        self.handle, self._destroy, self.used, self.form, self.captured = handle, destroy, 0, form, False

    def free(self):
        handle, self.handle = self.handle, None
        call(self._destroy, handle)


class Comm:
    """One rank's membership in a group of ranks. Created by comm(); operators refer to it by name.

    Attributes: name, rank, size; device: torch.device("cpu"), or the GPU of the operators' tensors.
    """

    def __init__(self, label, handle, device, group=None, plans=64, packings=4):
        self._label, self.device, self.group = label, device, group
        self._handle = handle
        self.plans, self.uses, self._most_plans, self._most_packings = {}, itertools.count(), plans, packings
        self.prepared = {}  # of _prepared.py
        self.agreed = set()  # of _agreement.py
        self.index = -1 if device.type == "cpu" else device.index  # like torch.Tensor.get_device()
        self._side, self._started, self._abandoned = None, {}, collections.deque()
        info = self.query()
        self.rank, self.size = info["rank"], info["nranks"]
        self.name = f"{label}/{self.rank} of {self.size}"
        while self.name in open_comms:
            self.name += "+"  # the name belongs to a destroyed group with an open communicator: torch reuses names
        open_comms[self.name] = self

    def __repr__(self):
        return f"seqpar.torch.Comm({self.name!r}, rank={self.rank}, size={self.size}, device={str(self.device)!r})"

    def query(self):
        """Results of seqparCommQuery(), as a dictionary: the measured link and the transport."""
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

    def collective(self, name, *arguments):
        """run() of a collective call."""
        self.next_call()
        self.run(name, *arguments)

    def next_call(self):
        """The next library function is a collective call: see seqparCommNextCall()."""
        _next_call(self._handle)  # the function itself refuses a closed communicator

    def fail(self, result):
        """Raises Error for a result that is not Success."""
        call(_abi.check, result, self._handle)

    @property
    def handle(self):
        """The seqparComm_t. Raises RuntimeError once the communicator is closed."""
        if not self._handle:
            raise RuntimeError(f"the communicator {self.name!r} is closed")
        return self._handle

    def stream(self):
        """The stream of calls: torch's current one; on hosts none, or inside start() the communicator's."""
        if self.index >= 0:
            return _current_stream(self.index)
        return self._side if self._starting else None

    _starting = False

    @contextlib.contextmanager
    def _beside(self):
        """Work enqueued inside runs on the communicator's stream, after the current stream's earlier work."""
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
        """An event after the work enqueued on the communicator's stream."""
        if self.device.type == "cuda":
            return self._side.record_event()
        event = ctypes.c_void_p()
        self.run("seqparEventCreate", ctypes.byref(event))
        self.run("seqparEventRecord", event, self._side)
        return event

    def start(self, launch, made, kept):
        """Runs launch() concurrently with the current stream. `made` are its outputs; `kept` stay alive until finish() of the
        returned ticket."""
        self._release_abandoned()
        origin = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        with self._beside():
            launch()
        number = next(_tickets)
        self._started[number] = (made, kept, self._event(), origin)
        return number

    def finish(self, number):
        """The outputs of start(), when complete: on a GPU for later work of the current stream."""
        if number not in self._started:
            raise RuntimeError(f"wait: {number} is none of the {len(self._started)} operations under way on {self.name!r}: "
                               "each is waited for once")
        made, kept, event, origin = self._started.pop(number)
        if self.device.type == "cuda":
            here = torch.cuda.current_stream(self.device)
            here.wait_event(event)
            if here != origin:  # its next work could reuse the memory that is freed here
                origin.wait_event(event)
            self._release_abandoned()
            return made
        try:
            self.run("seqparEventSynchronize", event)
        except _abi.Error:
            _abi.lib.seqparStreamSynchronize(self._side)  # clears the error: later operations must not raise it again
            raise
        finally:
            _abi.lib.seqparEventDestroy(event)
            self._release_abandoned()
        self.check()
        return made

    def abandon(self, number):
        """Called instead of finish(): the tensors of start() are freed when the operation is complete, at the latest in the next
        start() or finish() after that. The operation itself continues, because the other ranks take part in it. May be called
        from any thread."""
        self._abandoned.append(number)
        self._release_abandoned()

    def _release_abandoned(self):
        for _ in range(len(self._abandoned)):
            try:
                number = self._abandoned.popleft()
            except IndexError:  # another thread frees plans too
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

    def known_plan(self, key):
        """plan() for a key with a plan; None without."""
        plan = self.plans.get(key)
        return None if plan is None else self._use(plan)

    def _use(self, plan):
        plan.used = next(self.uses)
        if self.index >= 0 and not plan.captured:
            plan.captured = capturing()
        return plan.handle

    def plan(self, key, make, destroy, form=None):
        """The plan with this description, created at its first use, which is collective. All ranks use equal descriptions, so
        they also free the same plan if there are too many: the least recently used one that no CUDA graph contains, since
        replays use its workspace. form: plans of one form differ in their packing only, and are limited too."""
        plan = self.plans.get(key)
        if plan is None:
            if form is not None:
                self._free_oldest([key for key, plan in self.plans.items() if plan.form == form], self._most_packings)
            self._free_oldest(self.plans, self._most_plans)
            plan = self.plans[key] = _Plan(call(make), destroy, form)
        return self._use(plan)

    def _free_oldest(self, keys, most):
        """Leaves room for one more plan among these."""
        keys = [key for key in keys if not self.plans[key].captured]
        for key in sorted(keys, key=lambda key: self.plans[key].used)[:max(0, len(keys) + 1 - most)]:
            self.plans.pop(key).free()

    def check(self):
        """Raises Error if the communicator is lost. A GPU's calls return before they are complete: the results of those that
        torch.cuda.synchronize() or a copy to the host waited for are valid if check() then returns."""
        failed = ctypes.c_int()
        self.run("seqparCommGetAsyncError", self.handle, ctypes.byref(failed))
        call(_abi.check, failed.value, self._handle)

    def revoke(self):
        """Marks the communicator as lost on all ranks: active and later calls raise Error. See seqparCommRevoke()."""
        self.run("seqparCommRevoke", self.handle)

    def shrink(self, timeout=None, min_ranks=0):
        """Collective over the ranks that are alive, after a failure: returns the communicator of these, in the order of their
        ranks, and closes this one. Raises Error as seqparCommShrink(); this communicator is open then. Afterwards sp.comm()
        without a process group of the living ranks does not work: torch.distributed keeps the dead ranks.

        timeout    seconds without an answer after which a rank is silent; None: the communicator's timeout
        min_ranks  fewer living ranks are an Error
        """
        wait = 0 if timeout is None else max(1, _shapes.milliseconds("shrink: timeout", timeout))
        params = _abi.ShrinkParams(timeoutMs=wait, minRanks=min_ranks)
        handle = ctypes.c_void_p()
        self.run("seqparCommShrink", self.handle, ctypes.byref(params), ctypes.byref(handle))
        self._close_lost()
        return Comm(f"{self._label}/shrunk", handle, self.device, None, self._most_plans, self._most_packings)

    @property
    def parent_ranks(self):
        """The rank that each rank had in the communicator that was shrunk."""
        ranks = (ctypes.c_int * self.size)()
        self.run("seqparCommParentRanks", self.handle, ranks)
        return list(ranks)

    def _close_lost(self):
        for _ in range(len(self.plans) + 2):  # each attempt frees at least one object
            with contextlib.suppress(Error):
                self.close()

    def close(self):
        """Collective: frees the plans, in the order of their creation, and the communicator."""
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
            open_comms.pop(self.name, None)
            call(_abi.check, _abi.lib.seqparCommDestroy(handle))

    def __deepcopy__(self, memo):
        return self  # so that modules with a communicator can be copied, for example to average parameters

    __copy__ = lambda self: self

    def __reduce__(self):
        raise TypeError("a communicator cannot be pickled: save a module's state_dict(), and create the communicator again with "
                        "seqpar.torch.comm()")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        # After an exception other ranks may wait for this one: end their wait with the text of the exception.
        if kind is not None and self._handle:
            text = " ".join(f"{kind.__name__}: {error}".split())[:2000]
            self.run("seqparCommFail", self._handle, text.encode("utf-8", "replace"))
            self._close_lost()
        self.close()


def abandon(number):
    """Comm.abandon() of the ticket's communicator, if it is open."""
    for one in list(open_comms.values()):
        if number in one._started:
            one.abandon(number)


def require(comm):
    """Raises TypeError unless the argument is a communicator (for example, a process group)."""
    if not isinstance(comm, Comm):
        raise TypeError(f"comm: got {type(comm).__name__}, expected a seqpar.torch.Comm: create it with seqpar.torch.comm(group)")


def named(name):
    """The communicator of an operator's argument, None if there is none."""
    return open_comms.get(name)


def find(name):
    """The communicator of an operator's argument."""
    try:
        return open_comms[name]
    except KeyError:
        raise RuntimeError(f"there is no open communicator {name!r}: create it with seqpar.torch.comm()") from None
