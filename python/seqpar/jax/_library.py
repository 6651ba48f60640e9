"""The library of custom calls: compiled once per jaxlib, against its headers, by the machine's C++ compiler."""

import ctypes
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import jax

_SOURCE, _HEADER = (pathlib.Path(__file__).with_name(name) for name in ("handlers.cpp", "order.h"))
_library = None


def _compile(target):
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "c++", "g++", "clang++"))), None)
    if compiler is None:
        raise RuntimeError("seqpar.jax: there is no C++ compiler: install one, or name a library that was compiled from "
                           f"{_SOURCE} in SEQPAR_JAX_LIBRARY")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(dir=target.parent, suffix=".so", delete=False)
    except OSError as error:
        raise RuntimeError(f"seqpar.jax: cannot store the compiled handlers in {target.parent} ({error}): name a folder in "
                           "SEQPAR_CACHE, or a compiled library in SEQPAR_JAX_LIBRARY") from error
    with file:
        command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-isystem", jax.ffi.include_dir(), str(_SOURCE), "-o",
                   file.name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            os.unlink(file.name)
            raise RuntimeError(f"seqpar.jax: {' '.join(command)} failed:\n{done.stdout[-2000:]}")
        os.replace(file.name, target)  # atomically, since other processes may do the same


def library():
    """The library, registered with JAX for CPUs and GPUs. SEQPAR_JAX_LIBRARY names an existing one; else it is stored
    in SEQPAR_CACHE, by default ~/.cache/seqpar."""
    global _library
    if _library is None:
        path = os.environ.get("SEQPAR_JAX_LIBRARY")
        if path is None:
            import jaxlib
            folder = pathlib.Path(os.environ.get("SEQPAR_CACHE") or pathlib.Path.home() / ".cache" / "seqpar")
            digest = hashlib.sha256(_SOURCE.read_bytes() + _HEADER.read_bytes()).hexdigest()[:12]
            path = folder / f"jax-{jaxlib.__version__}-{digest}.so"
            if not path.exists():
                _compile(path)
        _library = ctypes.CDLL(str(path))
        _library.seqparJaxDefine.argtypes = [ctypes.c_int64, *[ctypes.c_int32] * 3, ctypes.c_int64, *[ctypes.c_void_p] * 7,
                                             ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
        _library.seqparJaxDefine.restype = None
        _library.seqparJaxForget.argtypes = [ctypes.c_int64, ctypes.c_int32]
        _library.seqparJaxForget.restype = None
        _library.seqparJaxRunning.argtypes = [ctypes.c_int32]
        for address in (_library.seqparJaxSiteId, _library.seqparJaxSiteInfo):
            address.restype = ctypes.c_void_p
        capsule = lambda address: jax.ffi.pycapsule(ctypes.c_void_p(address))
        jax.ffi.register_ffi_type("seqpar_site", {"type_id": capsule(_library.seqparJaxSiteId()),
                                                  "type_info": capsule(_library.seqparJaxSiteInfo())}, platform="cpu")
        jax.ffi.register_ffi_target("seqpar_host", {"instantiate": jax.ffi.pycapsule(_library.seqparJaxSite),
                                                    "execute": jax.ffi.pycapsule(_library.seqparJaxHost)}, platform="cpu")
        jax.ffi.register_ffi_target("seqpar_gpu", jax.ffi.pycapsule(_library.seqparJaxGpu), platform="CUDA")
    return _library
