"""Attention and linear attention against the dense definitions."""

import seqpar.torch as sp
from seqpar.testing import parity
from torch_checks import check, whole


@check
def parity_of_all_algorithms(comm, seed):
    for line in (
            "--algorithm ring ring_pass_q zigzag striped burst double_ring allgather_kv ulysses auto "
            "--length 41 --kv-heads 2 --head-dim 8 --value-dim 12 --batch 2",
            "--algorithm ring burst allgather_kv ulysses --length 37 --full --head-dim 8 --softcap 3 --scale 0.5",
            "--algorithm ring allgather_kv ulysses --length 37 --head-dim 8 --window 9 --sinks",
            "--algorithm ring allgather_kv ulysses --layout zigzag --documents 1 2 17 20 --head-dim 8",
            "--algorithm ring --length 5 --head-dim 8 --heads 1", "--algorithm ulysses --length 1 --head-dim 8 --heads 3",
            "--algorithm zigzag ulysses --length 32 --head-dim 16 --dtype bfloat16",
            "--family gla --algorithm zeco lasp1 lasp2 auto --length 41 --batch 2 --head-dim 8 --kv-heads 2 --initial",
            "--family gla --algorithm zeco lasp2 --documents 1 2 17 20 --head-dim 8 --initial",
            "--family scalar --algorithm zeco --length 40 --head-dim 8 --value-dim 12",
            "--family fixed --algorithm zeco --length 40 --head-dim 8 --batch 2",
            "--family sum --algorithm zeco lasp1 --length 40 --head-dim 8",
            "--family gla --algorithm zeco --length 40 --head-dim 16 --dtype bfloat16"):
        lines, good = parity.run(parity.parse(line.split()), comm, seed)
        assert good, line + "\n" + "\n".join(lines)


@check
def parity_finds_what_is_wrong(comm, seed):
    options = parity.parse("--length 20 --head-dim 8 --algorithm ring".split())
    original = parity.dense
    try:
        parity.dense = lambda *arguments: {name: x * 1.001 for name, x in original(*arguments).items()}
        assert not parity.run(options, comm, seed)[1]
    finally:
        parity.dense = original


@check
def explanations(comm, seed):
    x = whole(seed, 1, 4, 2, 8)
    told = sp.explain(x, x, x, comm, causal=True)
    assert told["ranks"] == comm.size and told["algorithm"]
