"""What every algorithm can do, as parity finds it: outputs and all gradients are compared with the definition for each
feature, or the call is refused with a reason."""

import pathlib
import re

import seqpar.torch as sp
from seqpar import _abi
from seqpar.testing import parity

BEGIN, END = "<!-- made by seqpar.testing.parity --matrix: begin -->\n", "<!-- made by seqpar.testing.parity --matrix: end -->\n"
LINEAR = ("zeco", "lasp1", "lasp2")
# Beside a causal mask and 40 tokens, unless said otherwise.
SOFTMAX = {"causal": "", "full": "--full", "window": "--window 9", "packed": "--documents 1 2 17 20", "GQA": "--kv-heads 2",
           "MQA": "--kv-heads 1", "cross": "--full --kv-length 27", "sinks": "--sinks", "softcap": "--softcap 3",
           "other value dim": "--value-dim 12", "batch": "--batch 2", "bf16": "--dtype bfloat16", "fp16": "--dtype float16",
           "partial results in bf16": "--wire bfloat16", "uneven shards": "--length 41", "contiguous": "--layout contiguous",
           "zigzag": "--layout zigzag", "striped": "--layout striped", "heads fewer than ranks": "--heads 3"}
RECURRENT = {"alone": "", "packed": "--documents 1 2 17 20", "initial state": "--initial", "GQA": "--kv-heads 2",
             "other value dim": "--value-dim 12", "batch": "--batch 2", "bf16": "--dtype bfloat16", "fp16": "--dtype float16",
             "states in bf16": "--wire bfloat16", "uneven shards": "--length 41", "heads fewer than ranks": "--heads 3"}
FAMILIES = {"gla": "`gla`", "scalar": "`simple_gla`", "fixed": "`retention`", "sum": "`linear_attention`"}


def _reason(error):
    """Of a refusal, without the argument's name and the algorithms that could."""
    text = str(error).split("; expected")[0]
    return text.split("), which ", 1)[-1] if "), which " in text else text.split(": ", 1)[-1]


def _cells(features, base, algorithms, comm, seed):
    """{(feature, algorithm): None where it agrees, or why not}, and lines on what does not agree."""
    cells, wrong = {}, []
    for feature, words in features.items():
        o = parity.parse([*base.split(), *words.split()])
        o.device = comm.device.type
        tensors, grad = parity.inputs(o, seed)
        exact = parity.dense(o, tensors, grad)
        for algorithm in algorithms:
            try:
                rows = parity.compare(o, algorithm, comm, tensors, grad, exact)
            except sp.Error as error:
                cells[feature, algorithm] = _reason(error)
                continue
            cells[feature, algorithm] = None
            for _, tensor, error, tolerance in rows:
                if not error <= tolerance:
                    cells[feature, algorithm] = "does not agree with the definition"
                    wrong.append(f"{algorithm}, {feature}: {tensor} is off by {error:.2e}, tolerance {tolerance:.2e}, seed {seed}")
    return cells, wrong


def _table(features, algorithms, cells, notes):
    lines = ["| | " + " | ".join(algorithms) + " |", "|---" * (len(algorithms) + 1) + "|"]
    for feature in features:
        marks = []
        for algorithm in algorithms:
            reason = cells[feature, algorithm]
            if reason is not None and reason not in notes:
                notes.append(reason)
            marks.append("yes" if reason is None else f"no ({notes.index(reason) + 1})")
        lines.append(f"| {feature} | " + " | ".join(marks) + " |")
    return lines


def _text(comm, seed):
    """The tables, and what does not agree with the definition."""
    softmax = [name for name in _abi.ATTN_ALGORITHMS if name not in (*LINEAR, "auto", "local")]
    notes = []
    cells, wrong = _cells(SOFTMAX, "--length 40 --head-dim 8", softmax, comm, seed)
    lines = ["Softmax:", "", *_table(SOFTMAX, softmax, cells, notes), "", "Linear:", ""]
    columns, found = [], {}
    for family, name in FAMILIES.items():
        cells, more = _cells(RECURRENT, f"--family {family} --length 40 --head-dim 8", LINEAR, comm, seed)
        wrong += [f"{name}, {line}" for line in more]
        columns += [f"{name} {algorithm}" for algorithm in LINEAR]
        found |= {(feature, f"{name} {algorithm}"): reason for (feature, algorithm), reason in cells.items()}
    lines += _table(RECURRENT, columns, found, notes)
    if notes:
        lines += ["", *(f"({i + 1}) {note}  " for i, note in enumerate(notes))]
    return "\n".join(lines) + "\n", wrong


def run(o, comm, seed):
    """Lines to print, and whether all that is not refused agrees with the definition and the table is the file's."""
    text, wrong = _text(comm, seed)
    if o.matrix == "-":
        return [text, *wrong], not wrong
    path = pathlib.Path(o.matrix)
    page = path.read_text()
    if not re.search(re.escape(BEGIN) + ".*" + re.escape(END), page, flags=re.S):
        return [f"{path} has no place for the table: {BEGIN.strip()} and {END.strip()}"], False
    before, after = page.split(BEGIN)[0], page.split(END, 1)[1]
    made = before + BEGIN + "\n" + text + "\n" + END + after
    if o.write and not wrong and comm.rank == 0:
        path.write_text(made)
    if made == page or o.write:
        return wrong, not wrong
    command = f"torchrun --nproc-per-node {comm.size} -m seqpar.testing.parity --matrix {path} --write"
    return [*wrong, f"{path} has another table; {command} makes it anew:", text], False
