#!/usr/bin/env python3
"""Trains a causal transformer whose sequences are sharded over ranks; the training survives the death of ranks.

    python examples/elastic.py --ranks 4              4 processes
    python examples/elastic.py --ranks 4 --kill 2     2 of them are killed at random places; the same losses
    python examples/elastic.py --ranks 2 --kill 1 --device cuda     rank r on GPU r

After a failure the living ranks shrink the communicator, shard the sequence over fewer ranks, and go on with the step that
failed. All state (parameters, optimizer, step) is replicated on the ranks of a sequence, so none is lost while one rank
lives. State that is sharded over ranks (FSDP, ZeRO) needs replicas on other ranks or a checkpoint; this example has none.

The launcher is not torchrun, which ends all ranks after the first that dies. torch.distributed only connects the ranks.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

import seqpar.torch as sp
import training
from train_gpt import Attention

PLACES = ("before", "forward", "backward", "sum", "update")


def options():
    p = training.parser(__doc__, algorithm="zigzag", batch=1)
    p.add_argument("--ranks", type=int, default=2, help="processes")
    p.add_argument("--kill", type=int, default=0, help="processes that are killed at random steps and places")
    p.add_argument("--kill-seed", type=int, default=0, help="seed of the ranks, steps and places of --kill")
    p.add_argument("--timeout", type=float, default=60, help="seconds after which a silent rank is left out")
    p.add_argument("--store", help="host:port of the launcher's store; set by the launcher")
    p.add_argument("--rank", type=int, help="set by the launcher")
    p.add_argument("--die", action="append", default=[], help="STEP:PLACE at which this rank ends; set by the launcher")
    return p.parse_args()


def launch(o):
    """Starts the ranks; some of them with a place to die. Exits with 0 if all others finish."""
    draw = random.Random(o.kill_seed)
    victims = dict.fromkeys(draw.sample(range(o.ranks), o.kill))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    for rank in range(o.ranks):
        more = ["--die", f"{draw.randrange(o.steps)}:{draw.choice(PLACES)}"] if rank in victims else []
        if more:
            print(f"rank {rank} is killed at {more[1]}", flush=True)
        processes.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--store",
                                           f"127.0.0.1:{store.port}", *more]))
    statuses = [process.wait() for process in processes]
    expected = [-signal.SIGKILL if rank in victims else 0 for rank in range(o.ranks)]
    if statuses != expected:
        raise SystemExit(f"the ranks ended with {statuses}, expected {expected}")


def connect(o):
    host, port = o.store.rsplit(":", 1)
    dist.init_process_group("gloo", store=dist.TCPStore(host, int(port)), rank=o.rank, world_size=o.ranks)
    comm = sp.comm(timeout=o.timeout, device=device_of(o))
    dist.destroy_process_group()
    return comm


def device_of(o):
    return torch.device("cuda", o.rank % torch.cuda.device_count()) if o.device == "cuda" else torch.device("cpu")


class Training:
    """The replicated state: parameters, optimizer, `step` (the number of applied steps) and their losses."""

    def __init__(self, o):
        self.o, self.step, self.losses = o, 0, []
        self.data = training.bytes_of(o.data)
        self.device = device_of(o)
        torch.manual_seed(o.seed)  # equal parameters on all ranks
        with self.device:
            blocks = [training.Block(o.width, Attention(o.width, o.heads, 1)) for _ in range(o.layers)]
            self.model = training.Model(o.width, blocks)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.0)
        for parameter in self.parameters:  # a step without a change creates the optimizer's state
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.param_groups[0]["lr"] = o.lr
        for state in self.optimizer.state.values():
            state["step"].zero_()

    def reach(self, place):
        """Ends this process if the launcher has chosen this place."""
        if f"{self.step}:{place}" in self.o.die:
            os.kill(os.getpid(), signal.SIGKILL)

    def gradients(self, comm):
        """The loss and the gradients of the next step: sums over all ranks. Nothing is changed if a rank fails."""
        self.reach("before")
        layout = sp.Layout("zigzag", self.o.tokens, comm.size)  # tokens // ranks or one more on each rank
        batch = training.batch_of(self.data, self.step, 0, self.o)
        ids, labels, positions = (x.to(self.device) for x in sp.shard_batch(batch, layout, comm))
        self.reach("forward")
        logits = self.model(ids, positions, comm, layout=layout, algorithm=self.o.algorithm)
        count = (self.o.tokens - 1) * self.o.batch
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count
        self.reach("backward")
        parts = torch.autograd.grad(loss, self.parameters)
        self.reach("sum")
        mine = torch.cat([loss.detach().view(1), *(part.flatten() for part in parts)])
        # In rank order and in fp64, so that all ranks apply identical bits.
        total = sp.all_gather(mine[None], comm).view(comm.size, -1).double().sum(0)
        loss = total[0].item()
        comm.check()  # a GPU's calls return before they are complete
        return loss, total[1:].float()

    def apply(self, loss, gradients):
        """Without communication: a rank applies a step entirely or not at all."""
        at = 0
        for parameter in self.parameters:
            parameter.grad = gradients[at:at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        self.reach("update")
        self.optimizer.step()
        self.losses.append(loss)
        self.step += 1

    def tensors(self):
        states = [self.optimizer.state[parameter] for parameter in self.parameters]
        return [*self.parameters, *(state[name] for state in states for name in ("exp_avg", "exp_avg_sq", "step"))]

    def equalize(self, comm):
        """Ranks can differ by one step: the lowest rank with the last step sends its state to the others."""
        mine = torch.tensor([[float(self.step)]], device=self.device)
        steps = sp.all_gather(mine, comm).flatten().tolist()
        comm.check()
        if min(steps) == max(steps):
            return
        source = steps.index(max(steps))
        latest = [self.losses[-1] if self.losses else 0.0]
        parts = [torch.tensor(latest), *(tensor.detach().flatten().float() for tensor in self.tensors())]
        mine = torch.cat([part.to(self.device) for part in parts])
        state = sp.all_gather(mine[None], comm).view(comm.size, -1)[source].cpu()
        comm.check()
        if self.step == steps[source]:
            return
        at = 1
        for tensor in self.tensors():
            tensor.data.copy_(state[at:at + tensor.numel()].view_as(tensor))
            at += tensor.numel()
        self.losses.append(state[0].item())
        self.reach("update")  # this rank takes the step from another one
        self.step += 1


def require_lost(error):
    """Raises the error again unless a rank was lost."""
    if error.result != "RemoteError":
        raise error


def recover(comm, state):
    """The communicator of the living ranks, on which all have the same state. Further ranks may die meanwhile."""
    while True:
        comm = comm.shrink()
        try:
            state.equalize(comm)
        except sp.Error as error:
            require_lost(error)
            print(f"rank {state.o.rank}: {error}", file=sys.stderr)
            continue
        if comm.rank == 0:
            print(f"step {state.step}: ranks that go on: {comm.size}", flush=True)
        return comm


def main():
    o = options()
    if o.kill >= o.ranks:
        raise SystemExit(f"--kill is {o.kill}, expected fewer than --ranks = {o.ranks}")
    if o.rank is None:
        return launch(o)
    torch.set_num_threads(1)
    comm, state = connect(o), Training(o)
    while state.step < o.steps:
        try:
            state.apply(*state.gradients(comm))
        except sp.Error as error:
            require_lost(error)
            comm = recover(comm, state)
            continue
        if comm.rank == 0:
            print(f"step {state.step - 1:4d}  loss {state.losses[-1]:.6f}  {comm.size} ranks", flush=True)
    while True:  # a rank may have died after the last sum
        try:
            state.equalize(comm)
            break
        except sp.Error as error:
            require_lost(error)
            comm = recover(comm, state)
    if comm.rank == 0:
        training.finish(state.losses, o)
        print(f"parameters {sum(p.double().abs().sum() for p in state.parameters):.9g}", flush=True)
    with contextlib.suppress(sp.Error):  # a rank that dies now is of no importance
        sp.close()


if __name__ == "__main__":
    main()
