"""One rank of the tests of seqpar.torch: torch_ranks.py [CHECK...]; test_torch.py starts one, two and three. On GPUs, where
SEQPAR_TEST_DEVICE=cuda, gpu_torch.py starts it."""

import os
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist

import seqpar.torch as sp
import torch_checks


def groups_of_another_session(comm):
    """torch restarts the numbers of groups in each session: a communicator that was not closed is not mistaken for
    another group's."""
    path = [tempfile.mkdtemp() if comm.rank == 0 else None]
    dist.broadcast_object_list(path, 0)
    everyone = sp.comm(dist.new_group())
    name = everyone.name
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(f"{path[0]}/store", comm.size), rank=comm.rank, world_size=comm.size)
    alone = [dist.new_group([rank]) for rank in range(comm.size)]
    found = [sp.comm(alone[comm.rank]) for _ in range(2)]
    assert found[0] is found[1] and found[0].size == 1 and everyone.size == comm.size, (name, found)
    assert sp.comm() is not comm and sp.comm().size == comm.size
    assert sp.all_gather(torch.full((1, 2), float(comm.rank)), sp.comm()).shape == (1, 2 * comm.size)


def main():
    torch_checks.load()
    if unknown := set(sys.argv[1:]) - {function.__name__ for function in torch_checks.CHECKS}:
        sys.exit(f"no checks: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    if os.environ.get("SEQPAR_TEST_DEVICE") == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        torch.set_default_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    seed = [torch.seed() % 2 ** 31]
    dist.broadcast_object_list(seed, 0)
    comm = sp.comm(timeout=300)
    failed = []
    for function in torch_checks.CHECKS:
        if len(sys.argv) > 1 and function.__name__ not in sys.argv[1:]:
            continue
        try:
            function(comm, seed[0])
            word = "ok"
        except torch_checks.Skip as reason:
            word = f"skipped: {reason}"
        except BaseException:
            traceback.print_exc()
            failed.append(function.__name__)
            word = "FAILED"
        if comm.rank == 0 or word == "FAILED":
            print(f"{function.__name__} ... {word} (rank {comm.rank} of {comm.size}, seed {seed[0]})", flush=True)
        if word == "FAILED":
            sys.exit(1)  # the other ranks get the error from the communicators
    if comm.device.type == "cpu":
        groups_of_another_session(comm)
    sp.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
