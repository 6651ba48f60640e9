"""Creates communicators over the groups of torch.distributed."""

import contextlib
import ctypes
import os

import torch
import torch.distributed as dist

from .. import _abi, _shapes
from ._comm import Comm, call, open_comms


def _config_of(device, timeout, transport, check_arguments, ctas):
    config = _abi.Config(device=-1 if device.type == "cpu" else device.index, ctas=ctas)
    if timeout is not None:
        config.timeoutMs = _shapes.milliseconds("comm: timeout", timeout)
    if transport is not None:
        config.transport = _abi.choose("transport", transport, _abi.TRANSPORTS)
    if check_arguments is not None:
        config.checkArguments = int(check_arguments)
    return config


def _device_of(device, group):
    if device is None:
        nccl = group is not None and "nccl" in str(dist.get_backend(group))
        device = (getattr(group, "bound_device_id", None) or "cuda") if nccl else "cpu"
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"comm: device is {device}, expected cpu or cuda")
    return device


def _is_single(group, single):
    """Whether comm() creates a communicator of one rank."""
    if single:
        if group is not None:
            raise ValueError("comm: got a group and single=True, expected one of them")
        return True
    if group is not None or (dist.is_available() and dist.is_initialized()):
        return False
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1":
        raise RuntimeError(f"comm: WORLD_SIZE is {ranks} and there is no process group, expected "
                           "torch.distributed.init_process_group() before, or single=True: a communicator of one rank")
    return True


def _bootstrap(group, config, device):
    """A communicator over `group`; ranks communicate through torch.distributed during initialization."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    errors = []

    def allgather(mine, everything, count, _):
        try:
            parts = [None] * size
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                dist.all_gather_object(parts, ctypes.string_at(mine, count), group=group)
            ctypes.memmove(everything, b"".join(parts), count * size)
            return 0
        except Exception as error:  # exceptions cannot pass through C; it is raised below
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


def comm(group=None, *, single=False, device=None, timeout=None, transport=None, check_arguments=None, ctas=16, plans=64, packings=4):
    """The communicator of a ProcessGroup, of a DeviceMesh of one dimension, or (None) of all ranks. Collective at the
    first call for a group; later calls return the same object. Without torch.distributed: a communicator of one rank,
    unless WORLD_SIZE is more than 1.

    single           True: a communicator of this process alone, whether torch.distributed is initialized or not
    device           None: with NCCL the GPU of the group, or else the current one (call torch.cuda.set_device() first); cpu with
                     other backends and without a group, as with single=True
    timeout          maximum wait for another rank: seconds, or a datetime.timedelta
    transport        "auto", "shared", "network"
    check_arguments  True: every call compares its arguments between the ranks (slow)
    ctas             thread blocks of a collective on a GPU, 1 to 128: few, because they share the GPU with other work
    plans            maximum number of cached plans of attention and layouts: beyond it, the least recently used plan is freed,
                     and created again when needed. Plans in CUDA graphs do not count, and are kept until close()
    packings         maximum number of cached plans that differ in `cu_seqlens` or `mask` only: batches that wait for their
                     backward passes. Each takes a workspace
    """
    if isinstance(group, Comm):
        return group
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise ValueError(f"comm: the mesh has {group.ndim} dimensions, expected 1: such as mesh['cp']")
        group = group.get_group()
    if group is not None and group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("comm: this rank is not in the group, expected a call of the group's ranks only")
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"comm: got {type(group).__name__}, expected a ProcessGroup or a DeviceMesh")
    alone = _is_single(group, single)
    if group is None and not alone:
        group = dist.group.WORLD
    if plans < 1:
        raise ValueError(f"comm: plans is {plans}, expected at least 1")
    if packings < 1:
        raise ValueError(f"comm: packings is {packings}, expected at least 1")
    device = _device_of(device, group)
    label = f"{'alone' if alone else group.group_name}/{device.type}"
    for one in list(open_comms.values()):  # another thread may create one
        if one._label == label and one.group is group:
            return one
    config = _config_of(device, timeout, transport, check_arguments, ctas)
    if alone:
        token, handle = _abi.UniqueId(), ctypes.c_void_p()
        call(_abi.check, _abi.lib.seqparGetUniqueId(ctypes.byref(token)))
        call(_abi.check, _abi.lib.seqparCommInitRankConfig(ctypes.byref(handle), 1, token, 0, ctypes.byref(config)))
    else:
        handle = _bootstrap(group, config, device)
    return Comm(label, handle, device, group, plans, packings)


def close():
    """Collective: closes all communicators, the newest first. Call it before destroy_process_group()."""
    for one in list(open_comms.values())[::-1]:
        one.close()
