"""Programs of the indented Python blocks of docs/, which are parts of a program of the reader's: what precedes each of them."""

import re
import textwrap

import venvs

_START = """
import torch, torch.distributed as dist
import seqpar.torch as sp
dist.init_process_group("gloo")
torch.manual_seed(0)
comm = sp.comm()
"""
_END = """
sp.close()
dist.destroy_process_group()
"""
_MESH = "mesh = dist.device_mesh.init_device_mesh('cpu', (1, comm.size), mesh_dim_names=('dp_shard', 'cp'))\n"
_LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
"""
# (page, the start of the block): (the program before it, the one after it)
BLOCKS = {
    ("mamba.md", "y = sp.mamba2("): ("""
layout, chunk_size = sp.Layout("contiguous", 24, comm.size), 64
local = layout.lengths[comm.rank]
x, dt, B, C = (torch.randn(1, local, *shape) for shape in ((4, 8), (4,), (2, 8), (2, 8)))
A, D, dt_bias = -torch.rand(4), torch.rand(4), torch.rand(4)
""", "assert y.shape == x.shape"),
    ("masks.md", "mask = sp.Mask.shared_prefix("): ("""
ids = torch.randint(100, (1, 1024 + 512 + 700 + 300))
tokens = sp.solve_layout(sp.Mask.shared_prefix(1024, [512, 700, 300]), comm.size).lengths[comm.rank]
q = k = v = torch.randn(1, tokens, 2, 8)
""", "assert out.shape == q.shape"),
    ("pytorch.md", "mesh = init_device_mesh("): ("""
from torch.distributed.fsdp import fully_shard
dp, cp = 1, comm.size
init_device_mesh = lambda _, *rest, **named: dist.device_mesh.init_device_mesh("cpu", *rest, **named)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
model.blocks = list(model)
losses, mask = torch.randn(1, 5, requires_grad=True).square(), torch.ones(1, 5)
""", ""),
    ("pytorch.md", "with sp.context_parallel("): (_MESH + """
ids, positions, labels = torch.randint(100, (1, 27)), torch.arange(27), torch.randint(16, (1, 27))
embedding = torch.nn.Embedding(100, 16)
def model(ids, positions):
    x = (embedding(ids) + positions[:, None].sin()).unflatten(2, (2, 8)).transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).transpose(1, 2).flatten(2)
loss_of = lambda x, labels: torch.nn.functional.cross_entropy(x.flatten(0, 1), labels.flatten())
""", "assert embedding.weight.grad.abs().max() > 0 and ids.shape[1] == 27"),
    ("pytorch.md", "import seqpar.torch.transformers"): (_LLAMA + """
batch = torch.randint(64, (2, 29))
layout = sp.Layout("zigzag", 29, comm.size)
""", "assert logits.shape == (2, layout.lengths[comm.rank], 64)"),
    ("inference.md", "import seqpar.torch as sp"): (_LLAMA + """
model = LlamaForCausalLM(config).eval()
ids = torch.randint(3, 64, (2, 40))
mask = torch.ones_like(ids)
expected = model.generate(ids, attention_mask=mask, max_new_tokens=100, do_sample=False)
""", "assert out.equal(expected)"),
    ("accelerate.md", "import seqpar.torch.accelerate"): (_LLAMA.replace("config =", "llama =") + """
import functools
import accelerate
Accelerator = functools.partial(accelerate.Accelerator, cpu=True)
model = LlamaForCausalLM(llama)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
data = [{name: torch.randint(64, (17,)) for name in ("input_ids", "labels")} for _ in range(4)]
loader = torch.utils.data.DataLoader(data, batch_size=2)
""", "assert loss.isfinite()"),
}


def program_of(page, start):
    """The program with the indented block of docs/`page` that begins with `start`."""
    text = (venvs.ROOT / "docs" / page).read_text()
    found = [block for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, flags=re.M) if block.strip().startswith(start)]
    assert len(found) == 1, f"{page} has {len(found)} blocks that begin with {start!r}, expected one"
    before, after = BLOCKS[page, start]
    block = textwrap.dedent(found[0])
    if page == "accelerate.md":
        block = block.replace("cp_size=4", "cp_size=comm.size")
    return "\n".join((_START, before, block, after, _END))
