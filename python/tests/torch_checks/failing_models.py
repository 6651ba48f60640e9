"""An exception in a model of transformers, outside of its attention, on one rank: the other ranks get it at once."""

import torch
import torch.distributed as dist

import seqpar.torch as sp
from torch_checks import check, lost, raises
from torch_checks.families import FAMILIES, models_of
from torch_checks.refusals import until_lost


@check
def an_exception_in_a_model_on_one_rank(comm, seed):
    try:
        import transformers
    except ImportError:
        print("skipped: no transformers")
        return
    from seqpar.torch.transformers import register
    if comm.size == 1:
        return
    for tokens, text in ((4 * comm.size, "no such expert"), (comm.size - 1, "IndexError")):  # transformers' masks need a token on each rank
        one = sp.comm(dist.new_group(list(range(comm.size))))
        layout, failing = sp.Layout("contiguous", tokens, comm.size), comm.rank == comm.size - 1
        register(one, layout=layout)
        model = models_of(transformers, "Llama", FAMILIES["Llama"], seed)[1]
        mine, _, positions = sp.shard_batch(torch.full((1, tokens), 5), layout, one)
        if tokens >= comm.size:
            for _ in range(2):  # an exception that the caller handles is not this call's
                try:
                    raise ArithmeticError("of the caller")
                except ArithmeticError:
                    model(mine, position_ids=positions[None])
            one.check()

            def fail(x):
                raise KeyError(text)

            model.model.layers[0].mlp.forward = fail if failing else model.model.layers[0].mlp.forward
        dist.barrier()  # an exception ends calls that other ranks have not finished

        def run():
            model(mine, position_ids=positions[None])
            until_lost(one)  # a rank that needs no data of the failing one has finished the call

        raises((KeyError, IndexError) if failing else sp.Error, "" if failing else text, run)
        lost(one)
    register(comm)
