"""The bounds of packed sequences from seq_idx, Mamba-2's index of the sequence of each token."""

import torch

from . import _ops
from ._remembered import Remembered

_known = Remembered()  # the bounds of seq_idx


def _establish(what, seq_idx, lengths, comm):
    with torch.no_grad():
        rows = seq_idx.detach().to(torch.int32).contiguous()
        whole = _ops.all_gather.implementation(rows, 1, lengths, comm.name).cpu()
    if not whole.shape[1]:
        return None
    if whole.min() < 0:
        raise ValueError(f"{what}: seq_idx contains {int(whole.min())}, expected at least 0: there is no padding")
    if not (whole == whole[:1]).all():
        raise ValueError(f"{what}: the rows of seq_idx differ, expected equal ones: packed sequences have batch 1")
    starts = (whole[0, 1:] != whole[0, :-1]).nonzero()[:, 0] + 1
    return (0, *starts.tolist(), whole.shape[1]) if len(starts) else None


def bounds_from(what, seq_idx, local, lengths, comm):
    """The bounds in the whole, None: one sequence. seq_idx: int [batch][local tokens]. Collective at the first use of a
    tensor, and of a changed one."""
    if torch.compiler.is_compiling():
        raise ValueError(f"{what}: got seq_idx under torch.compile, expected cu_seqlens: the packing is a constant of a compiled graph")
    if not isinstance(seq_idx, torch.Tensor) or seq_idx.is_floating_point() or seq_idx.dim() != 2 or seq_idx.shape[1] != local:
        shape = (tuple(seq_idx.shape), seq_idx.dtype) if isinstance(seq_idx, torch.Tensor) else type(seq_idx).__name__
        raise ValueError(f"{what}: seq_idx is {shape}, expected integers [batch][{local}]: of this rank's tokens")
    return _known.of(seq_idx, (tuple(lengths), comm.name), lambda: _establish(what, seq_idx, lengths, comm))
