"""Collectives for sequence parallelism, on numpy arrays: Python access to the C library libseqpar.

    import numpy as np, seqpar
    with seqpar.Communicator.from_env() as comm:          # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
        state = np.ones((4, 16, 32), np.float32)          # [heads][dk][dv]
        decay = np.full((4, 16), 0.5, np.float32)         # [heads][dk]
        prefix, total = comm.all_scan(state, decay, op="diag")

The library is loaded from the package's folder, or by the system's loader; SEQPAR_LIBRARY names another file. Calls
block and release Python's lock, so ranks may be threads. Errors are seqpar.Error with the library's text.
"""

from ._abi import Error, version

__all__ = ["Communicator", "Error", "unique_id", "version"]
__version__ = version()


def __getattr__(name):
    """Communicator and unique_id need numpy; the other modules of the package do not."""
    if name in ("Communicator", "unique_id"):
        from . import communicator
        return getattr(communicator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
