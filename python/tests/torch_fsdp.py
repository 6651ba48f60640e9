"""One rank of the test of seqpar.torch inside of FSDP2: data parallel x sequence parallel, parameters sharded over
both. Gradients and the loss equal those of one rank with all data."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import seqpar.torch as sp
from seqpar.testing.reference import softmax
from torch_checks import whole

TOKENS, HEADS, DIM = 13, 2, 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(HEADS * DIM, 3 * HEADS * DIM), torch.nn.Linear(HEADS * DIM, HEADS * DIM)

    def forward(self, x, attend):
        q, k, v = (y.unflatten(2, (HEADS, DIM)) for y in self.qkv(x).chunk(3, 2))
        return x + self.out(attend(q, k, v).flatten(2)).tanh()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(HEADS * DIM, 20)

    def forward(self, x, attend):
        for block in self.blocks:
            x = block(x, attend)
        return self.head(x)


def losses_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-100)


def gradients_of_one_rank(device, seed):
    """Compares them, on all ranks: pairs share sequences. Also called by gpu_torch.py."""
    ranks = dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh(device.type, (ranks // 2, 2), mesh_dim_names=("dp_shard", "cp"))
    joint = mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    comm, everyone = sp.comm(mesh["cp"]), sp.comm(joint)
    groups = ranks // 2
    random = torch.Generator("cpu").manual_seed(seed)
    x = whole(seed, groups, TOKENS, HEADS * DIM).to(device)
    labels = torch.randint(20, (groups, TOKENS), generator=random, device="cpu").to(device)
    labels[0, :5] = -100  # groups and ranks have different numbers of counted tokens
    torch.manual_seed(seed)
    exact, model = Model().to(device), Model().to(device)
    model.load_state_dict(exact.state_dict())
    losses = losses_of(exact(x, lambda q, k, v: softmax(q, k, v, causal=True)), labels)
    expected = losses.sum() / (labels != -100).sum()
    expected.backward()

    for block in model.blocks:
        fully_shard(block, mesh=joint)
    fully_shard(model, mesh=joint)
    layout = sp.Layout("zigzag", TOKENS, comm.size)
    row = mesh["dp_shard"].get_local_rank()
    mine, mine_labels = (sp.shard(t[row:row + 1], layout, comm) for t in (x, labels))
    for _ in range(2):  # the second time with the plans of the first
        model.zero_grad()
        logits = model(mine, lambda q, k, v: sp.attention(q, k, v, comm, causal=True, layout=layout, algorithm="zigzag"))
        share = sp.token_mean(losses_of(logits, mine_labels), mine_labels.flatten() != -100, everyone)
        (share * ranks).backward()  # FSDP2 averages the ranks' gradients; the mean's are their sum
    total = share.detach().clone()
    dist.all_reduce(total)
    assert abs(total - expected) <= 64 * 2.0 ** -24 * expected, (seed, total, expected)
    for (name, one), other in zip(model.named_parameters(), exact.parameters()):
        assert one.to_local().numel() < other.numel()
        error = (one.grad.full_tensor() - other.grad).abs().max() / other.grad.abs().max()
        assert error <= 64 * TOKENS ** 0.5 * 2.0 ** -24, (seed, name, error)
    if dist.get_rank() == 0:
        print(f"FSDP2: {groups} x {comm.size} ranks give the gradients of one (seed {seed})")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seed = [torch.seed() % 2 ** 31]
    dist.broadcast_object_list(seed, 0)
    gradients_of_one_rank(torch.device("cpu"), seed[0])
    sp.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
