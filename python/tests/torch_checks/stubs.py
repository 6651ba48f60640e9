"""What type checkers are told, seqpar/torch/__init__.pyi, is what the functions take."""

import pathlib

import stub_file
from seqpar import _abi
import seqpar.torch as sp
from seqpar.torch import _attention, _linear
from torch_checks import check


@check
def stubs_are_the_functions(comm, seed):
    stub = stub_file.read(pathlib.Path(sp.__file__).with_suffix(".pyi"))
    options = {"attention": _attention._OPTIONS, "explain": {"**options"},
               **dict.fromkeys(_linear.FAMILIES, _linear._OPTIONS)}
    stub_file.compare(stub, sp, options, ignored={"_run"})
    stub_file.compare_names(_abi)
