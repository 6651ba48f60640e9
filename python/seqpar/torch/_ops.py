"""The collectives as operators seqpar::*: shapes and launches. Their derivatives are in _collectives.py."""

import ctypes
import functools

import torch

from .. import _abi
from ._agreement import agree_once
from ._comm import call, find
from ._define import data_type, define, define_started, require_place
from ._layout import Layout
from ._structs import struct


def _lengths(ranks, tokens, local):
    """Tokens of every member: as given, or equal to this rank's."""
    if not tokens:
        return [local] * ranks
    if len(tokens) != ranks:
        raise ValueError(f"tokens: got {len(tokens)} numbers, expected {ranks}, one per rank")
    return list(tokens)


def _own_lengths(what, comm, tokens, local):
    """_lengths() of tensors that are this rank's shards."""
    lengths = _lengths(comm.size, tokens, local)
    if lengths[comm.rank] != local:
        raise ValueError(f"{what}: got {local} tokens, expected {lengths[comm.rank]}, which `tokens` gives rank {comm.rank}")
    return lengths


@functools.lru_cache(maxsize=256)
def heads_of_member(heads, query_heads, members, member):
    """(first head, number of heads) of a member in head arrays."""
    first, count = ctypes.c_int64(), ctypes.c_int64()
    call(_abi.check, _abi.lib.seqparHeadsOfMember(heads, query_heads, members, member, ctypes.byref(first),
                                                  ctypes.byref(count)))
    return first.value, count.value


def _heads(comm, heads, query_heads):
    return heads_of_member(int(heads), int(query_heads), comm.size, comm.rank)[1]


def _head_shards(what, x, batch, heads, query_heads, dim, lengths):
    return struct(_abi.HeadShards, tuple(lengths), dataType=data_type(what, x), batch=batch, heads=heads,
                   queryHeads=query_heads, headDim=dim)


def _to_heads_outputs(x, query_heads, tokens, name):
    comm = find(name)
    batch, local, heads, dim = x.shape
    return (x.new_empty(batch, sum(_lengths(comm.size, tokens, local)), _heads(comm, heads, query_heads), dim),)


def _to_heads_launch(made, x, query_heads, tokens, name):
    comm, x = find(name), x.contiguous()
    require_place("to_heads", comm, x)
    batch, local, heads, dim = x.shape
    shards = _head_shards("to_heads", x, batch, heads, query_heads, dim, _own_lengths("to_heads", comm, tokens, local))
    comm.collective("seqparSequenceToHeads", x.data_ptr(), made[0].data_ptr(), ctypes.byref(shards), comm.handle, comm.stream())


def _to_sequence_outputs(x, heads, query_heads, tokens, name):
    comm = find(name)
    batch, whole, _, dim = x.shape
    return (x.new_empty(batch, tokens[comm.rank] if tokens else whole // comm.size, heads, dim),)


def _to_sequence_launch(made, x, heads, query_heads, tokens, name):
    comm, x = find(name), x.contiguous()
    require_place("to_sequence", comm, x)
    batch, whole, own, dim = x.shape
    lengths = _lengths(comm.size, tokens, whole // comm.size)
    if sum(lengths) != whole:
        raise ValueError(f"to_sequence: got {whole} tokens, expected {sum(lengths)}, the sum of `tokens`, which are equal "
                         "where they are not given")
    if own != _heads(comm, heads, query_heads):
        raise ValueError(f"to_sequence: got {own} heads, expected {_heads(comm, heads, query_heads)} on rank {comm.rank}")
    shards = _head_shards("to_sequence", x, batch, heads, query_heads, dim, lengths)
    comm.collective("seqparHeadsToSequence", x.data_ptr(), made[0].data_ptr(), ctypes.byref(shards), comm.handle, comm.stream())


def _split(shape, dim):
    outer = inner = 1
    for size in shape[:dim]:
        outer *= size
    for size in shape[dim + 1:]:
        inner *= size
    return outer, inner


def _sum_shards(what, x, dim, lengths):
    """_shards_of() a tensor that the call `what`, or its adjoint, adds to others."""
    data_type(what, x)
    return _shards_of(x.shape, x.dtype, dim, tuple(lengths))


@functools.lru_cache(maxsize=256)
def _shards_of(shape, dtype, dim, lengths):
    """The seqparShards_t of a tensor cut along `dim`. Tensors that are only moved may have any type: as bytes."""
    outer, inner = _split(shape, dim)
    if dtype in (torch.float32, torch.float16, torch.bfloat16):
        kind = data_type("all_gather", dtype)
    elif inner * dtype.itemsize % 4 == 0:
        kind, inner = _abi.TYPES["float32"], inner * dtype.itemsize // 4
    elif inner * dtype.itemsize % 2 == 0:
        kind, inner = _abi.TYPES["float16"], inner * dtype.itemsize // 2
    else:
        raise TypeError(f"all_gather: got {inner} elements of {dtype} a token, expected an even number of bytes")
    return struct(_abi.Shards, lengths, dataType=kind, outer=outer, inner=inner)


def _with(shape, dim, size):
    sizes = list(shape)
    sizes[dim] = size
    return sizes


def _beside(x, dim):
    """The sizes of the other dimensions."""
    return (*x.shape[:dim], *x.shape[dim + 1:])


def _agree_beside(comm, what, dim, x):
    """Compares what the library's shape, outer x tokens x inner, does not contain."""
    before, after = x.shape[:dim], x.shape[dim + 1:]
    if (what, dim, before, after, x.dtype) not in comm.agreed:  # its key; keyword arguments take another 0.6 us
        agree_once(comm, what, dim=dim, sizes_before_dim=tuple(before), sizes_after_dim=tuple(after), dtype=x.dtype)


def _all_gather_outputs(x, dim, tokens, name):
    return (x.new_empty(_with(x.shape, dim, sum(_lengths(find(name).size, tokens, x.shape[dim])))),)


@functools.lru_cache(maxsize=256)
def _all_gather_call(shape, dtype, dim, tokens, ranks):
    """(sizes, strides, seqparShards_t) of the gathered tensor; new_empty() would compute the strides again in each
    call."""
    lengths = tuple(_lengths(ranks, tokens, shape[dim]))
    sizes = _with(shape, dim, sum(lengths))
    strides = torch.empty(sizes, device="meta").stride()
    return sizes, strides, ctypes.byref(_shards_of(shape, dtype, dim, lengths))


def _all_gather_launch(made, x, dim, tokens, name):
    comm, x = find(name), x.contiguous()
    require_place("all_gather", comm, x)
    if tokens:
        _own_lengths("all_gather", comm, tokens, x.shape[dim])
    _agree_beside(comm, "all_gather", dim, x)
    sizes, strides, shards = _all_gather_call(x.shape, x.dtype, dim, tuple(tokens), comm.size)
    out = made[0] if made else x.new_empty_strided(sizes, strides)
    comm.next_call()
    result = _abi.lib.seqparAllGather(x.data_ptr(), out.data_ptr(), shards, comm.handle, comm.stream())
    if result:
        comm.fail(result)
    return out


def _reduce_scatter_outputs(x, dim, tokens, name):
    comm = find(name)
    return (x.new_empty(_with(x.shape, dim, tokens[comm.rank] if tokens else x.shape[dim] // comm.size)),)


def _reduce_scatter_launch(made, x, dim, tokens, name):
    comm, x = find(name), x.contiguous()
    require_place("reduce_scatter", comm, x)
    lengths = _lengths(comm.size, tokens, x.shape[dim] // comm.size)
    if sum(lengths) != x.shape[dim]:
        raise ValueError(f"reduce_scatter: got {x.shape[dim]} tokens, expected {sum(lengths)}, the sum of `tokens`, which "
                         "are equal where they are not given")
    shards = _sum_shards("reduce_scatter", x, dim, lengths)
    _agree_beside(comm, "reduce_scatter", dim, x)
    comm.collective("seqparReduceScatter", x.data_ptr(), made[0].data_ptr(), ctypes.byref(shards), comm.handle, comm.stream())


def _halo_outputs(x, dim, left, right, periodic, tokens, name):
    return (x.new_empty(_with(x.shape, dim, left)), x.new_empty(_with(x.shape, dim, right)))


def _halo_launch(made, x, dim, left, right, periodic, tokens, name):
    comm, x = find(name), x.contiguous()
    require_place("halo", comm, x)
    lengths = _own_lengths("halo", comm, tokens, x.shape[dim])
    agree_once(comm, "halo", left=left, right=right, periodic=periodic, tokens=tuple(lengths), shape=_beside(x, dim), dtype=x.dtype)
    halo = _abi.Halo(left=left, right=right, periodic=int(periodic))
    shards = _sum_shards("halo", x, dim, lengths)
    comm.collective("seqparHaloExchange", x.data_ptr(), made[0].data_ptr() or None, made[1].data_ptr() or None,
             ctypes.byref(halo), ctypes.byref(shards), comm.handle, comm.stream())


def _halo_adjoint_outputs(left, right, dim, local, periodic, tokens, name):
    return (left.new_zeros(_with(left.shape, dim, local)),)


def _halo_adjoint_launch(made, left, right, dim, local, periodic, tokens, name):
    comm, left, right = find(name), left.contiguous(), right.contiguous()
    require_place("halo_adjoint", comm, left, right)
    halo = _abi.Halo(left=left.shape[dim], right=right.shape[dim], periodic=int(periodic))
    shards = _sum_shards("halo", made[0], dim, _lengths(comm.size, tokens, local))
    comm.collective("seqparHaloAdjoint", left.data_ptr() or None, right.data_ptr() or None, made[0].data_ptr(),
             ctypes.byref(halo), ctypes.byref(shards), comm.handle, comm.stream())


def _redistribute_outputs(tensors, source, target, dim, name):
    comm, layout = find(name), Layout.from_key(target)
    local = layout.local_length(comm.rank)
    return [x.new_empty(_with(x.shape, dim, local)) for x in tensors]


def _redistribute_launch(made, tensors, source, target, dim, name):
    comm = find(name)
    tensors = [x.contiguous() for x in tensors]
    require_place("redistribute", comm, *tensors)
    sizes = []
    for i, x in enumerate(tensors):
        _agree_beside(comm, f"redistribute: tensor {i} of {len(tensors)}", dim % x.dim(), x)
        outer, inner = _split(x.shape, dim % x.dim())
        sizes.append((outer, inner * x.element_size()))

    def make():
        agree_once(comm, "redistribute", source=source, target=target, outer_and_row_bytes=tuple(sizes))
        plan = ctypes.c_void_p()
        outer, row = (_abi.int64s(part) for part in zip(*sizes))
        comm.collective("seqparRedistributePlanCreate", ctypes.byref(plan), ctypes.byref(Layout.from_key(source).struct()),
                 ctypes.byref(Layout.from_key(target).struct()), len(sizes), outer, row, comm.handle)
        return plan

    plan = comm.plan(("redistribute", source, target, *sizes), make,
                     lambda plan: comm.run("seqparRedistributePlanDestroy", plan))
    pointers = ctypes.c_void_p * len(tensors)
    comm.collective("seqparRedistribute", plan, pointers(*(x.data_ptr() for x in tensors)),
             pointers(*(x.data_ptr() for x in made)), comm.stream())


def _all_scan_outputs(state, transition, initial, op, reverse, decay, wire, flags, algorithm, name):
    return (torch.empty_like(state, memory_format=torch.contiguous_format),
            torch.empty_like(state, memory_format=torch.contiguous_format))


def _all_scan_launch(made, state, transition, initial, op, reverse, decay, wire, flags, algorithm, name):
    comm = find(name)
    require_place("all_scan", comm, state, transition, initial)
    state, transition, initial = (None if x is None else x.contiguous() for x in (state, transition, initial))
    heads, dk, dv = state.shape
    agree_once(comm, "all_scan", op=op, reverse=reverse, decay=decay, wire=wire, shape=tuple(state.shape), dtype=state.dtype,
                          flags=len(flags), initial=initial is not None, algorithm=algorithm)
    marks = (ctypes.c_uint8 * len(flags))(*flags) if flags else None
    params = _abi.AllScanParams(
        op=_abi.choose("op", op, _abi.OPS), direction=int(reverse), heads=heads, dk=dk, dv=dv,
        stateType=data_type("all_scan", state), wireType=_abi.choose("wire", wire, _abi.TYPES),
        decayForm=_abi.choose("decay", decay, _abi.DECAYS), sequences=max(1, len(flags)),
        flags=ctypes.addressof(marks) if flags else None,
        algorithm=_abi.choose("algorithm", algorithm, _abi.ALGORITHMS))
    comm.collective("seqparAllScan", state.data_ptr(), *(None if x is None else x.data_ptr() for x in (transition, initial, *made)),
             ctypes.byref(params), comm.handle, comm.stream())


def states_before(state, transition, reverse, flags, name):
    """The prefix alone of a MATRIX scan in fp32; without a derivative."""
    made = torch.empty_like(state)
    _all_scan_launch((made, None), state, transition, None, "matrix", reverse, "linear", "float32", flags, "auto", name)
    return made


def _merge_outputs(out, lse, tokens, name):
    comm = find(name)
    local = tokens[comm.rank] if tokens else out.shape[1] // comm.size
    return (out.new_empty(_with(out.shape, 1, local)), lse.new_empty(_with(lse.shape, 2, local)))


def _merge_launch(made, out, lse, tokens, name):
    comm, out, lse = find(name), out.contiguous(), lse.contiguous()
    require_place("merge", comm, out, lse)
    batch, whole, heads, _ = out.shape
    if lse.dtype != torch.float32 or lse.shape != (batch, heads, whole):
        raise ValueError(f"merge: lse is {lse.dtype} {tuple(lse.shape)}, expected float32 {(batch, heads, whole)}")
    lengths = _lengths(comm.size, tokens, whole // comm.size)
    if sum(lengths) != whole:
        raise ValueError(f"merge: got {whole} tokens, expected {sum(lengths)}, the sum of `tokens`, which are equal where "
                         "they are not given")
    comm.collective("seqparReduceScatterLse", out.data_ptr(), lse.data_ptr(), made[0].data_ptr(), made[1].data_ptr(), heads,
             ctypes.byref(_sum_shards("merge", out, 1, lengths)), comm.handle, comm.stream())


def _shift_outputs(tensors, by, name):
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]


def _shift_launch(made, tensors, by, name):
    comm, tensors = find(name), [x.contiguous() for x in tensors]
    require_place("shift", comm, *tensors)
    agree_once(comm, "shift", by=by % comm.size, shapes=tuple(tuple(x.shape) for x in tensors),
                          dtypes=tuple(x.dtype for x in tensors))
    pointers, sizes = ctypes.c_void_p * len(tensors), ctypes.c_size_t * len(tensors)
    bytes_of = sizes(*(x.nbytes for x in tensors))
    sent, received = pointers(*(x.data_ptr() for x in tensors)), pointers(*(x.data_ptr() for x in made))
    params = _abi.ShiftParams(
        sendPeer=(comm.rank + by) % comm.size, sendTensors=len(tensors), sendBuffers=ctypes.addressof(sent),
        sendBytes=ctypes.addressof(bytes_of), receivePeer=(comm.rank - by) % comm.size, receiveTensors=len(tensors),
        receiveBuffers=ctypes.addressof(received), receiveBytes=ctypes.addressof(bytes_of))
    comm.collective("seqparShift", ctypes.byref(params), comm.handle, comm.stream())


def _both(schema, outputs, launch, makes=False):
    """The operator, and its halves start_ and wait_."""
    return (define(schema, outputs, launch, makes), *define_started(schema, outputs, launch))


to_heads, start_to_heads, wait_to_heads = _both(
    "to_heads(Tensor x, int query_heads, int[] tokens, str comm) -> Tensor", _to_heads_outputs, _to_heads_launch)
to_sequence, start_to_sequence, wait_to_sequence = _both(
    "to_sequence(Tensor x, int heads, int query_heads, int[] tokens, str comm) -> Tensor",
    _to_sequence_outputs, _to_sequence_launch)
all_gather, start_all_gather, wait_all_gather = _both(
    "all_gather(Tensor x, int dim, int[] tokens, str comm) -> Tensor", _all_gather_outputs, _all_gather_launch, makes=True)
reduce_scatter, start_reduce_scatter, wait_reduce_scatter = _both(
    "reduce_scatter(Tensor x, int dim, int[] tokens, str comm) -> Tensor",
    _reduce_scatter_outputs, _reduce_scatter_launch)
halo, start_halo, wait_halo = _both(
    "halo(Tensor x, int dim, int left, int right, bool periodic, int[] tokens, str comm) -> (Tensor, Tensor)",
    _halo_outputs, _halo_launch)
halo_adjoint = define("halo_adjoint(Tensor left, Tensor right, int dim, SymInt local, bool periodic, int[] tokens, "
                      "str comm) -> Tensor", _halo_adjoint_outputs, _halo_adjoint_launch)
redistribute, start_redistribute, wait_redistribute = _both(
    "redistribute(Tensor[] tensors, str source, str target, int dim, str comm) -> Tensor[]",
    _redistribute_outputs, _redistribute_launch)
shift, start_shift, wait_shift = _both(
    "shift(Tensor[] tensors, int by, str comm) -> Tensor[]", _shift_outputs, _shift_launch)
merge = define("merge(Tensor out, Tensor lse, int[] tokens, str comm) -> (Tensor, Tensor)", _merge_outputs, _merge_launch)
all_scan, start_all_scan, wait_all_scan = _both(
    "all_scan(Tensor state, Tensor? transition, Tensor? initial, str op, bool reverse, str decay, str wire, int[] flags, "
    "str algorithm, str comm) -> (Tensor, Tensor)", _all_scan_outputs, _all_scan_launch)
