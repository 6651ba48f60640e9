"""Arguments of comm(): the configuration, the device, and whether it has one rank."""

import os

import torch
import torch.distributed as dist

from .. import _abi


def config_of(device, timeout, transport, check_arguments, ctas):
    config = _abi.Config(device=-1 if device.type == "cpu" else device.index, ctas=ctas)
    if timeout is not None:
        config.timeoutMs = round(timeout * 1000)
    if transport is not None:
        config.transport = _abi.choose("transport", transport, _abi.TRANSPORTS)
    if check_arguments is not None:
        config.checkArguments = int(check_arguments)
    return config


def device_of(device, group):
    if device is None:
        nccl = group is not None and "nccl" in str(dist.get_backend(group))
        device = (getattr(group, "bound_device_id", None) or "cuda") if nccl else "cpu"
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"comm: device is {device}, expected cpu or cuda")
    return device


def is_single(group, single):
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
