"""Structures of the library that describe shards."""

import ctypes
import functools

from .. import _abi


@functools.lru_cache(maxsize=256)
def struct(kind, lengths, **fields):
    """A structure with these fields; calls of one shape share it, since the library only reads it."""
    if kind is _abi.Shards and len(set(lengths)) == 1:
        return kind(tokens=lengths[0], **fields)
    shards = kind(**fields)
    shards.lengths = _abi.int64s(lengths)
    shards.tokensOfMembers = ctypes.addressof(shards.lengths)
    return shards
