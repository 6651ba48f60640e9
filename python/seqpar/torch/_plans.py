"""Attention plans, from a description as text (operators accept text) and the tensors' shapes."""

import ctypes
import functools
import json

import torch
from torch._subclasses import FakeTensor

from .. import _abi
from .._families import function_of
from ._agreement import require_agreement
from ._comm import call
from ._define import data_type, require_place
from ._layout import Layout
from ._mask import fill


def spec(**fields):
    """A description as a string, without fields at their defaults (None)."""
    if fields["algorithm"] is None:
        raise ValueError(f"algorithm: got None, expected one of {', '.join(_abi.ATTN_ALGORITHMS)}")
    return ";".join(f"{name}={value}" for name, value in fields.items() if value is not None)


def kind_of(algorithm):
    """The layout of shards without an explicit one. Callers could not know an algorithm's choice in advance."""
    return algorithm if algorithm in ("zigzag", "striped") else "contiguous"


@functools.lru_cache(maxsize=1024)
def fields_of(text):
    return dict(part.split("=", 1) for part in text.split(";"))


def name_of(text):
    """The function that a description belongs to."""
    fields = fields_of(text)
    return function_of(fields["family"], fields.get("num_householder"), fields.get("input_gate"))


def _numbers(text):
    return tuple(map(int, text.split(",")))


def _describe(desc, fields, comm, local, kv_local):
    """Fills a seqparAttnDesc_t from a description. The arrays that it points to are kept alive by it. The library's tokens
    are gated_delta_product()'s updates."""
    updates = int(fields.get("num_householder", 1))
    desc.family = _abi.choose("family", fields["family"], _abi.FAMILIES)
    desc.algorithm = _abi.choose("algorithm", fields["algorithm"], _abi.ATTN_ALGORITHMS)
    if "layout" in fields and "num_householder" in fields:  # a layout of updates could divide those of a token
        desc.lengths = _abi.int64s([updates * length for length in Layout.from_key(fields["layout"]).lengths])
        desc.tokensOfRanks = ctypes.addressof(desc.lengths)
    elif "layout" in fields:
        desc.of_queries = Layout.from_key(fields["layout"]).struct()
        desc.layout = ctypes.addressof(desc.of_queries)
    else:
        desc.tokens = local * comm.size
        desc.of_queries = Layout(fields.get("shards", "contiguous"), desc.tokens, comm.size).struct()
        desc.layout = ctypes.addressof(desc.of_queries)
    if "cross" in fields:
        desc.kvTokens = kv_local * comm.size
        if "kv_layout" in fields:
            layout = Layout.from_key(fields["kv_layout"])
            desc.of_keys, desc.kvTokens = layout.struct(), layout.tokens
            desc.kvLayout = ctypes.addressof(desc.of_keys)
    if "cu_seqlens" in fields:
        bounds = _numbers(fields["cu_seqlens"])
        desc.bounds = _abi.int64s([updates * bound for bound in bounds])
        desc.sequences, desc.cuSeqlens = len(bounds) - 1, ctypes.addressof(desc.bounds)
    if "mask" in fields:
        fill(desc, fields["mask"])
    desc.mask = int(fields.get("causal", 0))
    desc.windowLeft, desc.windowRight = _numbers(fields.get("window", "-1,-1"))
    desc.scale, desc.softcap = float(fields.get("scale", 0)), float(fields.get("softcap", 0))
    desc.sinks, desc.inner = int(fields.get("sinks", 0)), int(fields.get("inner", 0))
    desc.training, desc.deterministic = int(fields["training"]), int(fields.get("deterministic", 0))
    desc.reserve, desc.normalize = int(fields.get("reserve", 0)), int(fields.get("normalize", 0))
    desc.inputGate = int(fields.get("input_gate", 0))
    desc.wireType = _abi.choose("wire", fields.get("wire", "float32"), _abi.TYPES)


# attention()'s options by their names in a description.
_OPTIONS = {"layout": "layout", "shards": "layout", "kv_layout": "kv_layout", "cross": "kv_layout", "training": "requires_grad",
            "cu_seqlens": "cu_seqlens"}


def _described(text, **shapes):
    """A description and shapes with the callers' names."""
    fields = {_OPTIONS.get(name, name): value for name, value in fields_of(text).items()}
    return {**shapes, **fields}


_PACKING = ("cu_seqlens", "mask", "layout", "kv_layout")  # fields that change with the packing


def _form_of(text, q, k, v, gates):
    """What plans of other packings of these tensors have in common; None: there is no packing."""
    fields = fields_of(text)
    if "cu_seqlens" not in fields and "mask" not in fields:
        return None
    rest = tuple((name, value) for name, value in fields.items() if name not in _PACKING)
    return (rest, q.shape, k.shape, v.shape, q.dtype, *(gate.dtype for gate in gates))


@functools.lru_cache(maxsize=None)
def _idle_stream(device):
    """A stream without work. Prepare writes tables at once, and memory of the current stream may be in use by work that is pending.
    Plans return this stream's memory after their work."""
    return torch.cuda.Stream(device)


def _workspace(handle, device):
    """Memory of PyTorch for a plan on a GPU, None on hosts. The size is rounded up by at most an eighth, so that the memory
    of a freed plan serves the next packing."""
    if device.type != "cuda":
        return None
    size = ctypes.c_size_t()
    _abi.check_attn(_abi.attn_lib().seqparAttnPlanWorkspaceSize(handle, ctypes.byref(size)))
    granule = 1 << max(20, size.value.bit_length() - 4)
    if not size.value:
        return None
    idle = _idle_stream(device)
    with torch.cuda.stream(idle):
        memory = torch.empty(-(-size.value // granule) * granule, dtype=torch.uint8, device=device)
    if not torch.cuda.is_current_stream_capturing():
        idle.synchronize()  # PyTorch's streams share 32 streams of CUDA: the program may enqueue work on this one
    return memory


def _make(comm, text, q, k, v, gates, held):
    """A plan's handle. Its workspace is appended to `held`."""
    fields, what = fields_of(text), name_of(text)
    batch, local, heads, head_dim = q.shape
    linear = fields["family"] != "softmax"
    desc = _abi.AttnDesc(batch=batch, heads=v.shape[2] if linear else heads, kvHeads=k.shape[2], headDim=head_dim,
                         valueDim=v.shape[3], dataType=data_type(what, q),
                         gateTypes=tuple(data_type(f"{what}: a gate", gate) for gate in gates))
    _describe(desc, fields, comm, local, k.shape[1])
    shapes = dict(batch=batch, heads=desc.heads, kv_heads=desc.kvHeads, head_dim=head_dim, value_dim=desc.valueDim, dtype=q.dtype)
    if "layout" not in fields:
        shapes["tokens"] = desc.tokens // int(fields.get("num_householder", 1))
    if "cross" in fields:
        shapes["kv_tokens"] = desc.kvTokens
    if gates:
        shapes["gates"] = tuple(gate.dtype for gate in gates)
    require_agreement(comm, f"{what}: the ranks ask for different plans", _described(text, **shapes),
                      "equal arguments, and a `layout` where shards differ in length")
    handle, attn = ctypes.c_void_p(), _abi.attn_lib()
    comm.next_call()
    _abi.check_attn(attn.seqparAttnPlanCreate(ctypes.byref(handle), ctypes.byref(desc), comm.handle))
    try:
        length = ctypes.c_int64()
        _abi.check_attn(attn.seqparAttnPlanLayout(handle, None, ctypes.byref(length)))
        if length.value != local:
            raise ValueError(f"{what}: got {local} tokens, expected {length.value}, what rank {comm.rank} has in the "
                             "layout")
        memory = _workspace(handle, comm.device)
        held.append(memory)
        _abi.check_attn(attn.seqparAttnPlanPrepare(handle, *((None, 0) if memory is None else (memory.data_ptr(), memory.numel()))))
    except BaseException:
        attn.seqparAttnPlanDestroy(handle)
        raise
    return handle


def key_of(text, q, k, v, gates=()):
    """plan_of()'s key."""
    return ("attention", text, q.shape, k.shape, v.shape, q.dtype, *(gate.dtype for gate in gates))


def plan_of(comm, text, q, k, v, gates=()):
    """The plan of a description for tensors of these shapes."""
    require_place(name_of(text), comm, q, k, v, *gates)
    if not (q.dtype == k.dtype == v.dtype):
        raise TypeError(f"{name_of(text)}: q, k and v are {q.dtype}, {k.dtype} and {v.dtype}, expected one type")
    key = key_of(text, q, k, v, gates)
    known = comm.known_plan(key)
    if known is not None:
        return known
    held = []

    def destroy(plan):
        try:
            _abi.check_attn(_abi.attn_lib().seqparAttnPlanDestroy(plan))  # waits for the plan's work
        finally:
            held.clear()

    return comm.plan(key, lambda: _make(comm, text, q, k, v, gates, held), destroy, _form_of(text, q, k, v, gates))


def aligned(tensor):
    """`tensor`, or a dense copy if the kernels cannot use its address (on GPUs they read 16 bytes at a time)."""
    return tensor.clone(memory_format=torch.contiguous_format) if tensor.is_cuda and tensor.data_ptr() % 16 else tensor


def view(tensor, kept):
    """The seqparAttnTensor_t of [batch][tokens][heads][dim]: with the tensor's strides if the library supports them, else
    of a copy. Appends to `kept` what must stay alive."""
    packed = tensor.is_contiguous()
    if not packed and (tensor.stride(-1) != 1 or min(tensor.stride()[:3]) < tensor.shape[3] or
                       (tensor.is_cuda and any(stride * tensor.element_size() % 16 for stride in tensor.stride()[:3]))):
        return dense(tensor, kept)
    tensor = aligned(tensor)
    kept.append(tensor)
    return _abi.AttnTensor(tensor.data_ptr()) if packed else _abi.AttnTensor(tensor.data_ptr(), *tensor.stride()[:3])


def dense(tensor, kept):
    """view() of a tensor without gaps, or of a dense copy."""
    tensor = aligned(tensor.contiguous())
    kept.append(tensor)
    return _abi.AttnTensor(tensor.data_ptr())


def dense_gates(gates, kept):
    """dense() of each gate, or of each gradient."""
    return tuple(dense(gate, kept) for gate in gates)


def distinct(q, k, v):
    """q, k and v as different objects: torch.compile does not accept one tensor twice in an autograd.Function, and
    gradients must be summed in one order in all calls."""
    k = k.view_as(k) if k is q else k
    return q, k, v.view_as(v) if v is q or v is k else v


def floats(tensor, kept):
    """The address of an array of fp32. Appends to `kept` what must stay alive."""
    if tensor.dtype != torch.float32:
        raise TypeError(f"attention: got {tensor.dtype} for sinks or a state, expected float32")
    tensor = aligned(tensor.contiguous())
    kept.append(tensor)
    return tensor.data_ptr()


def reserve_size(comm, text, q, k, v, gates=()):
    """Bytes that the plan's forward pass keeps for its backward pass."""
    if "reserve" not in fields_of(text):
        return 0
    size, plan = ctypes.c_size_t(), plan_of(comm, text, q, k, v, gates)
    call(_abi.check_attn, _abi.attn_lib().seqparAttnPlanReserveSize(plan, ctypes.byref(size)))
    return size.value


def reserve(comm, text, q, k, v, gates=()):
    """New memory for what the forward pass keeps for the backward pass; empty if the description asks for none."""
    if "reserve" not in fields_of(text):
        return q.new_empty(0, dtype=torch.uint8)
    if isinstance(q, FakeTensor):
        return q.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)
    return q.new_empty(reserve_size(comm, text, q, k, v, gates), dtype=torch.uint8)


def kept(reserve):
    """A reserve as autograd saves it: None if it is empty."""
    return reserve if reserve is not None and reserve.numel() else None


def given(reserve, q):
    """The operators' argument for what kept() returned."""
    return q.new_empty(0, dtype=torch.uint8) if reserve is None else reserve


def reserved(tensor, kept):
    """The address of reserve()'s memory, which hooks may have copied to another one."""
    tensor = tensor.clone() if tensor.data_ptr() % 16 else tensor
    kept.append(tensor)
    return tensor.data_ptr() if tensor.numel() else None


# How a pass takes each of its arguments.
_TAKEN = {**dict.fromkeys(("q", "k", "v", "out", "dOut", "dq", "dk", "dv"), view),
          **dict.fromkeys(("lse", "sinks", "dSinks", "initial", "dInitial", "saved", "final", "dFinal"), floats),
          "gates": dense_gates, "dGates": dense_gates, "reserve": reserved}


def run(comm, text, q, k, v, gates=(), **tensors):
    """A pass of the plan for these tensors on the current stream: the backward one if `dOut` is given. tensors: the other
    arguments by their names in seqparAttnForwardArgs_t or seqparAttnBackwardArgs_t; None: NULL."""
    require_place(name_of(text), comm, tensors.get("sinks"), tensors.get("initial"))
    plan, attn = plan_of(comm, text, q, k, v, gates), _abi.attn_lib()
    kind, function = ((_abi.AttnBackwardArgs, attn.seqparAttnBackward) if "dOut" in tensors else
                      (_abi.AttnForwardArgs, attn.seqparAttnForward))
    args, kept = kind(), []
    for name, tensor in {"q": q, "k": k, "v": v, "gates": gates or None, **tensors}.items():
        if tensor is not None:
            setattr(args, name, _TAKEN[name](tensor, kept))
    comm.next_call()
    result = function(plan, ctypes.byref(args), comm.stream())
    if result:
        call(_abi.check_attn, result)


def explain(comm, text, q, k, v, gates=()):
    """seqparAttnPlanExplain() of the plan, as a dictionary."""
    attn, plan, size = _abi.attn_lib(), plan_of(comm, text, q, k, v, gates), ctypes.c_size_t()
    call(_abi.check_attn, attn.seqparAttnPlanExplain(plan, None, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    call(_abi.check_attn, attn.seqparAttnPlanExplain(plan, room, ctypes.byref(size)))
    return json.loads(room.value)
