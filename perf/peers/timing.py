"""Times of the peers' scripts on several GPUs."""
import torch
import torch.distributed as dist


def slowest_rank(run, repeats, warmups=2):
    """The median time of `run` on the slowest rank, in milliseconds."""
    for _ in range(warmups):
        run()
    times = []
    for _ in range(repeats):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    median = torch.tensor(sorted(times)[len(times) // 2], device="cuda")
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return median.item()
