"""An exception in a model of transformers, outside of its attention, on one rank: the other ranks get it at once; models on ranks
without tokens."""

import torch
import torch.distributed as dist

import seqpar.torch as sp
from torch_checks import Skip, check, lost, raises
from torch_checks.families import FAMILIES, config_of, models_of
from torch_checks.refusals import until_lost


@check
def an_exception_in_a_model_on_one_rank(comm, seed):
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    if comm.size == 1:
        raise Skip("one rank")
    one = sp.comm(dist.new_group(list(range(comm.size))))
    layout, failing = sp.Layout("contiguous", 4 * comm.size, comm.size), comm.rank == comm.size - 1
    register(one, layout=layout)
    model = models_of(transformers, "Llama", FAMILIES["Llama"], seed)[1]
    mine, _, positions = sp.shard_batch(torch.full((1, layout.tokens), 5), layout, one)
    for _ in range(2):  # an exception that the caller handles is not this call's
        try:
            raise ArithmeticError("of the caller")
        except ArithmeticError:
            model(mine, position_ids=positions[None])
    one.check()

    def fail(x):
        raise KeyError("no such expert")

    model.model.layers[0].mlp.forward = fail if failing else model.model.layers[0].mlp.forward
    dist.barrier()  # an exception ends calls that other ranks have not finished

    def run():
        model(mine, position_ids=positions[None])
        until_lost(one)  # a rank that needs no data of the failing one has finished the call

    raises(KeyError if failing else sp.Error, "no such expert", run)
    lost(one)
    register(comm)


@check
def models_on_ranks_without_tokens(comm, seed):
    """All ranks raise the same error, after which the communicator is usable."""
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers")
    from seqpar.torch.transformers import register
    if comm.size == 1:
        raise Skip("one rank")
    for name in ("Llama", "Mamba2"):
        if config_of(transformers, name, FAMILIES[name]) is None:
            continue
        short = sp.Layout("contiguous", comm.size - 1, comm.size)
        registration = register(comm, layout=short)
        model = models_of(transformers, name, FAMILIES[name], seed)[1]
        mine, _, positions = sp.shard_batch(torch.full((1, short.tokens), 5), short, comm)
        raises(ValueError, f"got no tokens on rank {comm.size - 1}, expected at least one", model, mine, position_ids=positions[None])
        comm.check()
        registration.layout = sp.Layout("contiguous", comm.size, comm.size)
        mine, _, positions = sp.shard_batch(torch.full((1, comm.size), 5), registration.layout, comm)
        assert model(mine, position_ids=positions[None]).logits.isfinite().all()
    register(comm)
