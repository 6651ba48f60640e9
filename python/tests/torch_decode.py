"""Decode steps over a KV cache that is distributed over the ranks, in CUDA graphs."""

import functools

import torch

import seqpar.torch as sp

PAGE = 4


class Cache:
    """A rank's slots of a layer's keys and values. Token i of a sequence belongs to rank i // PAGE % ranks; the last slot takes
    tokens of other ranks, which no query sees."""

    def __init__(self, comm, batch, tokens, kv_heads, dim, dtype):
        pages = -(-tokens // (PAGE * comm.size))
        slots = (pages * PAGE + 1 + 15) // 16 * 16  # a bias of the scores needs strides of 16 bytes
        self.comm, self.trash = comm, slots - 1
        self.keys, self.values = (torch.zeros(batch, slots, kv_heads, dim, dtype=dtype, device=comm.device) for _ in range(2))
        slot = torch.arange(slots, device=comm.device)
        position = (slot // PAGE * comm.size + comm.rank) * PAGE + slot % PAGE
        self.positions = position.masked_fill(slot >= pages * PAGE, torch.iinfo(torch.int64).max)
        self.batch = torch.arange(batch, device=comm.device)

    def append(self, k, v, lengths):
        """k, v [batch][kv heads][dim]: of the tokens at positions `lengths`."""
        page = lengths // PAGE
        slot = torch.where(page % self.comm.size == self.comm.rank, page // self.comm.size * PAGE + lengths % PAGE, self.trash)
        self.keys.index_put_((self.batch, slot), k)
        self.values.index_put_((self.batch, slot), v)

    def attention(self, lengths):
        """The kernel for sp.decode(): queries at positions `lengths`."""
        seen = self.positions <= lengths[:, None]  # [batch][slots]
        if self.comm.device.type == "cpu":
            k_positions = torch.where(seen, 0, -1)
            return lambda q: tuple(x[:, 0] for x in sp.local_attention(
                q[:, None], self.keys, self.values, q_positions=torch.zeros_like(lengths)[:, None], k_positions=k_positions))
        bias = torch.zeros_like(seen, dtype=self.keys.dtype).masked_fill(~seen, -torch.inf)[:, None, None]

        def kernel(q):
            group = q.shape[1] // self.keys.shape[2]
            k, v = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (self.keys, self.values))
            out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
                q[:, :, None], k, v, bias.expand(-1, q.shape[1], 1, -1), True)[:2]
            none = ~seen.any(1)[:, None, None]
            return out[:, :, 0].masked_fill(none, 0), lse[:, :, :1].masked_fill(none, -torch.inf)[:, :, 0]

        return kernel


class Layer:
    """A layer's attention with projections, replicated (by="all") or split by heads."""

    def __init__(self, comm, by, batch, tokens, heads, kv_heads, dim, dtype, seed):
        random = torch.Generator("cpu").manual_seed(seed)  # equal on all ranks
        width = heads * dim
        self.comm, self.by, self.heads, self.dim = comm, by, heads, dim
        each = heads // comm.size
        own = slice(comm.rank * each, (comm.rank + 1) * each) if by == "heads" else slice(0, heads)
        draw = functools.partial(torch.randn, generator=random, device="cpu")
        weights = [draw(width, n, dim).to(comm.device, dtype) / width ** 0.5 for n in (heads, kv_heads, kv_heads)]
        self.wq, self.wk, self.wv = (w.flatten(1) for w in (weights[0][:, own].contiguous(), *weights[1:]))
        self.cache = Cache(comm, batch, tokens, kv_heads, dim, dtype)

    def project(self, x):
        return tuple((x @ w).unflatten(1, (-1, self.dim)) for w in (self.wq, self.wk, self.wv))

    def __call__(self, x, lengths, rows):
        """[batch][heads, or heads of the rank][dim]: attention of new tokens, of which the first `rows` are in use."""
        q, k, v = self.project(x)
        self.cache.append(k, v, lengths)
        return sp.decode(q, self.cache.attention(lengths), self.comm, by=self.by, row_count=rows)


def captured(comm, function):
    """A function that replays `function`; on hosts, `function`."""
    if comm.device.type == "cpu":
        return function
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog queries events meanwhile
        function()
    return graph.replay


def replays_with_changing_batches(comm, seed, by):
    """One captured decode step, replayed for batches of 0 to 6 sequences that grow, end and start, equals fp64."""
    batch, tokens, heads, kv_heads, dim = 6, 40, 4 * comm.size, 2, 64
    dtype = torch.float32 if comm.device.type == "cpu" else torch.bfloat16
    layer = Layer(comm, by, batch, tokens, heads, kv_heads, dim, dtype, seed)
    x = torch.zeros(batch, heads * dim, dtype=dtype, device=comm.device)
    lengths = torch.zeros(batch, dtype=torch.int64, device=comm.device)
    rows = torch.zeros(1, dtype=torch.int32, device=comm.device)
    out = torch.zeros(batch, heads // (comm.size if by == "heads" else 1), dim, dtype=dtype, device=comm.device)

    def step():
        out.copy_(layer(x, lengths, rows))
        lengths.add_(torch.arange(batch, device=lengths.device) < rows)

    replay = captured(comm, step)
    lengths.zero_()
    random = torch.Generator("cpu").manual_seed(seed)
    whole = [[[], []] for _ in range(batch)]  # keys and values of each sequence
    first = comm.rank * out.shape[1] if by == "heads" else 0
    for count in [6, 3, 1, 6, 0, 5, 2, 4] * 3 + [6] * 12:
        ended = int(torch.randint(0, 4 * batch, (), generator=random, device="cpu"))
        if ended < batch:  # a new request takes the place of a finished one
            lengths[ended] = 0
            whole[ended] = [[], []]
        x.copy_(torch.randn(x.shape, generator=random, device="cpu"))
        rows.fill_(count)
        replay()
        full = Layer.project(layer, x)
        q = sp.all_gather(full[0], comm, dim=1) if by == "heads" else full[0]
        for b in range(count):
            for kept, new in zip(whole[b], full[1:]):
                kept.append(new[b].double())
            k, v = (torch.stack(kept).repeat_interleave(heads // kv_heads, 1) for kept in whole[b])
            weights = torch.softmax(torch.einsum("hd,nhd->hn", q[b].double(), k) / dim ** 0.5, 1)
            expected = torch.einsum("hn,nhd->hd", weights, v)[first:first + out.shape[1]]
            apart = (out[b].double() - expected).abs().max().item()
            assert apart <= (1e-4 if dtype == torch.float32 else 3e-2), (count, b, len(whole[b][0]), apart)
        assert lengths.tolist() == [len(kept) for kept, _ in whole], (lengths.tolist(), count)


def times(comm, in_turn, batch=8, tokens=16384, heads=32, kv_heads=8, dim=128, layers=20):
    """{name: us per layer} of decode steps in graphs: the exchanges of sp.decode(), next to the same step without them."""
    dtype = torch.bfloat16
    one = Layer(comm, "all", batch, tokens, heads, kv_heads, dim, dtype, 0)
    lengths = torch.full((batch,), tokens - 1, device=comm.device)
    rows = torch.full((1,), batch, dtype=torch.int32, device=comm.device)
    q = torch.randn(batch, heads, dim, device=comm.device).to(dtype)
    own = q[:, :heads // comm.size].contiguous()
    kernel = one.cache.attention(lengths)
    out, lse = kernel(q)
    calls = {"kernel alone": lambda: kernel(q), "decode, by all": lambda: sp.decode(q, kernel, comm, row_count=rows),
             "decode, by heads": lambda: sp.decode(own, kernel, comm, by="heads", row_count=rows),
             "merge, by all": lambda: sp.all_reduce_lse(out, lse, comm, row_count=rows),
             "merge, by heads": lambda: sp.reduce_scatter_lse(out, lse, comm, row_count=rows),
             "gather of queries": lambda: sp.all_gather(own, comm, dim=1)}

    def repeated(call):
        return lambda: [call() for _ in range(layers)]

    with torch.no_grad():
        replays = {name: captured(comm, repeated(call)) for name, call in calls.items()}
        return {name: ms / layers * 1e3 for name, ms in in_turn(replays, 15).items()}
