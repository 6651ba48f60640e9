"""The type stubs, seqpar/torch/__init__.pyi, match the functions."""

import importlib
import inspect
import pathlib

import stub_file
from seqpar import _abi, _families
import seqpar.torch as sp
from seqpar.torch import _attention, _linear, fla, mamba, ring_flash_attn, te
from torch_checks import check


@check
def stubs_are_the_functions(comm, seed):
    stub = stub_file.read(pathlib.Path(sp.__file__).with_suffix(".pyi"))
    options = {"attention": _attention._OPTIONS, "explain": {"**options"},
               **{name: _families.options_of(family, _linear._OPTIONS) for name, family in _families.FUNCTIONS.items()}}
    stub_file.compare(stub, sp, options, ignored={"_run"})
    stub_file.compare_names(_abi)
    for module in (fla, mamba, ring_flash_attn, te):
        stub_file.compare(stub_file.read(pathlib.Path(module.__file__).with_suffix(".pyi")), stub_file.public(module), {})


@check
def functions_take_the_gates_of_their_families(comm, seed):
    assert {"softmax", *_families.NAMES} == set(_abi.FAMILIES)
    for name, family in _families.FUNCTIONS.items():
        parameters = list(inspect.signature(getattr(sp, name)).parameters)
        assert parameters[:parameters.index("comm")] == ["q", "k", "v", *(gate for gate, _ in _families.GATES[family])], name
        assert _families.GATES[family] == _families.gates_of_library(family), family


@check
def stubs_of_transformers(comm, seed):
    from seqpar.torch import transformers
    stub = stub_file.read(pathlib.Path(transformers.__file__).with_suffix(".pyi"))
    stub_file.compare(stub, transformers, {})
    assert list(inspect.signature(transformers.Registration).parameters) == ["comm", "layout", "cu_seqlens", "algorithm", "kernel"]


@check
def stubs_of_clients(comm, seed):
    """The modules that import their library."""
    for name, library in (("accelerate", "accelerate"), ("megatron", "megatron.core"), ("diffusers", "diffusers"), ("torchtitan", "torchtitan")):
        try:
            importlib.import_module(library)
        except ImportError:
            print(f"skipped: no {library}")
            continue
        ours = importlib.import_module(f"seqpar.torch.{name}")
        stub_file.compare(stub_file.read(pathlib.Path(ours.__file__).with_suffix(".pyi")), ours, {})
