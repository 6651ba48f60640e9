"""Rotary embeddings of transformers' models with frequencies that depend on the longest sequence ("dynamic", "longrope"): each
rank would choose them by its own tokens. They get the largest position of all ranks as one more position."""

import torch

from ._collectives import all_gather


def depends_on_length(module):
    """Whether a module of a model is such an embedding."""
    parameters = getattr(getattr(module, "config", None), "rope_parameters", None)
    if not type(module).__name__.endswith("RotaryEmbedding") or not isinstance(parameters, dict):
        return False
    kinds = [x.get("rope_type") for x in (parameters, *parameters.values()) if isinstance(x, dict)]  # also by types of layers
    return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in kinds)


def _extended(positions, comm):
    """position_ids [...][tokens of the rank], and the largest one of all ranks in each row."""
    own = torch.cat((positions.new_full((1,), -1), positions.reshape(-1))).max()  # ranks may be without tokens
    largest = all_gather(own.reshape(1), comm, dim=0).max()
    return torch.cat((positions, largest.expand(*positions.shape[:-1], 1)), -1)


def follow(module, registration_of):
    """Hooks of the embedding. registration_of(module): its Registration, None without."""
    if getattr(module, "_seqpar_follows", False):
        return
    module._seqpar_follows, module._seqpar_registration_of = True, registration_of
    module.register_forward_pre_hook(_before, with_kwargs=True)
    module.register_forward_hook(_after)


def _sharded(module):
    registration = module._seqpar_registration_of(module)
    return registration if registration is not None and registration.comm.size > 1 else None


def _before(module, arguments, named):
    registration = _sharded(module)
    if registration is None:
        return None
    if "position_ids" in named:
        return arguments, {**named, "position_ids": _extended(named["position_ids"], registration.comm)}
    x, positions, *rest = arguments
    return (x, _extended(positions, registration.comm), *rest), named


def _after(module, arguments, output):
    if _sharded(module) is None:
        return None
    return output[..., :-1, :] if isinstance(output, torch.Tensor) else tuple(x[..., :-1, :] for x in output)
