"""Runs seqpar_sim, which predicts sequence parallelism on machines that a file describes, and returns its rows.

    from seqpar import sim
    rows = sim.run(machine="h200x8", nodes=[1, 2, 4], tokens="1M", model="llama3-8b", algo="all")

The result is a pandas DataFrame if pandas is installed, otherwise a list of dictionaries; records=True always returns the
list. Keys are the columns of --csv: ranks, operation, size, algorithm, inner, auto, forward_us, step_us, ... The program
is the one that SEQPAR_SIM names, or `seqpar_sim` of the package, or in PATH. This module needs only Python.
"""

import csv
import os
import pathlib
import shutil
import subprocess
import tempfile

__all__ = ["program", "run"]

_TEXTS = ("operation", "algorithm")
_WHOLE = ("ranks", "size", "inner", "auto")
_PACKAGE = pathlib.Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE, *_PACKAGE.parents[3:5])  # with bin/: a wheel's package, an installed tree
_NOT_HERE = ("csv", "help", "measure", "measure_gpus", "choose")  # run() sets --csv; the others return no rows


def program():
    """The path of seqpar_sim. FileNotFoundError if there is none."""
    named = os.environ.get("SEQPAR_SIM")
    path = os.pathsep.join([*(str(folder / "bin") for folder in _FOLDERS), os.environ.get("PATH", os.defpath)])
    found = shutil.which(named or "seqpar_sim", path=None if named else path)
    if found is None:
        where = f"SEQPAR_SIM={named} is" if named else "the package and PATH have"
        raise FileNotFoundError(f"seqpar.sim: {where} no program seqpar_sim; builds without CUDA install it")
    return found


def _arguments(options):
    """Command-line arguments: tokens_per_gpu=True is --tokens-per-gpu; lists are joined."""
    arguments = []
    for name, value in options.items():
        if hasattr(value, "tolist"):  # of NumPy
            value = value.tolist()
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        elif isinstance(value, (list, tuple, range)):
            arguments += [flag, (";" if name == "what_if" else ",").join(str(each) for each in value)]
        else:
            arguments += [flag, str(value)]
    return arguments


def _typed(row):
    return {key: value if key in _TEXTS else int(value) if key in _WHOLE else float(value) for key, value in row.items()}


def run(records=False, **options):
    """Simulates cases. Options are those of `seqpar_sim --help`, with _ for -: machine, nodes, tokens, model, algo, ...

    Cases that the library refuses have no row. ValueError with the program's text for wrong options.
    """
    for name in _NOT_HERE:
        if name in options:
            raise ValueError(f"seqpar.sim: {name} is not an option of run(), expected options of cases or files")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.csv"
        done = subprocess.run([program(), *_arguments(options), "--csv", str(path)], capture_output=True, text=True, check=False)
        if done.returncode < 0:
            raise RuntimeError(f"seqpar.sim: seqpar_sim ended by signal {-done.returncode}")
        if done.returncode != 0:
            raise ValueError("seqpar.sim: " + (done.stderr.strip() or done.stdout.strip()))
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = [_typed(row) for row in reader], reader.fieldnames
    if records:
        return rows
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=columns)
