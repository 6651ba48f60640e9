"""One rank of the tests of seqpar.torch: torch_ranks.py [CHECK...]; test_torch.py starts two and three. On GPUs, where
SEQPAR_TEST_DEVICE=cuda, gpu_torch.py starts it."""

import os
import sys
import traceback

import torch
import torch.distributed as dist

import seqpar.torch as sp
import torch_checks
import torch_checks.arguments
import torch_checks.attention
import torch_checks.collectives
import torch_checks.composition
import torch_checks.drop_ins
import torch_checks.pieces


def main():
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
        except BaseException:
            traceback.print_exc()
            failed.append(function.__name__)
            word = "FAILED"
        if comm.rank == 0 or word != "ok":
            print(f"{function.__name__} ... {word} (rank {comm.rank} of {comm.size}, seed {seed[0]})", flush=True)
        if word != "ok":
            sys.exit(1)  # the others learn of it from the communicators
    sp.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
