"""A custom call on one rank: a function of the library and its arguments."""

import ctypes
import struct

from .. import _abi

STREAM, COMM = object(), object()


class Operand(int):
    """The address of operand number ..."""


class Result(int):
    """The address of result number ..."""


class Filled:
    """The address of a copy of a structure (or array) with buffers' addresses filled in at these offsets. The structure
    and the memory that it points to stay alive with it."""

    def __init__(self, structure, places):
        self.structure, self.places = structure, places


class Call:
    """`function` with `arguments`: integers, addresses, structures of ctypes, and placeholders for values known
    later."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def define(self, library, key, device, rank, ranks, timeout, group, comm, operands):
        """Registers it as call `key` of the device, which is this rank; results follow the `operands` operands. timeout: in
        ms, for a device that does not arrive at the call. group: the communicator of rank 0, the same for all ranks."""
        attn = self.function.startswith(("seqparAttn", "seqparShortConv"))
        source = _abi.attn_lib() if attn else _abi.lib
        slots, blob, patches = [], b"", []

        def number(x):
            return int(x) + (operands if isinstance(x, Result) else 0)

        for x in self.arguments:
            if x is STREAM:
                slots.append((3, 0))
            elif x is COMM:
                slots.append((0, comm.value))
            elif isinstance(x, (Operand, Result)):
                slots.append((1, number(x)))
            elif isinstance(x, Filled):
                slots.append((2, len(blob)))
                patches += [(len(blob) + offset, number(buffer)) for offset, buffer in x.places]
                blob += bytes(x.structure)
                blob += b"\0" * (-len(blob) % 16)
            elif isinstance(x, (ctypes.Structure, ctypes.Array)):
                slots.append((2, len(blob)))
                blob += bytes(x)
                blob += b"\0" * (-len(blob) % 16)
            else:
                slots.append((0, (x.value if isinstance(x, ctypes.c_void_p) else x) or 0))
        packed = [b"".join(struct.pack("=qq", *pair) for pair in pairs) for pairs in (slots, patches)]
        text = ctypes.cast(source.seqparAttnGetLastError if attn else source.seqparGetLastError, ctypes.c_void_p)
        fail = ctypes.cast(_abi.lib.seqparCommFail, ctypes.c_void_p)
        library.seqparJaxDefine(key, device, rank, ranks, timeout, group, comm, fail, ctypes.cast(getattr(source, self.function), ctypes.c_void_p), text,
                                None if attn else comm, packed[0], len(slots), blob, len(blob), packed[1], len(patches))
