"""mamba2() and mamba_ssm's layer against a recurrence in float64: results, gradients, packed sequences, refusals."""

import math

import torch
from torch.nn import functional as F

import seqpar.torch as sp
from seqpar.torch import mamba
from torch_checks import check, raises, same, summed, whole

_GROUPS, _HEADS, _DIM, _STATE = 2, 4, 16, 32  # kernels on GPUs take multiples of 16


def _reference(x, dt, A, B, C, bounds, D=None, z=None, dt_bias=None, initial=None, limit=(0.0, math.inf)):
    """(y, last state) in float64, token by token."""
    dt = F.softplus(dt + dt_bias).clamp(*limit)
    B, C = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B, C))
    rows, state = [], None
    for t in range(x.shape[1]):
        if t in bounds[:-1]:
            one = None if initial is None else initial if len(bounds) == 2 else initial[bounds.index(t)][None]
            state = x.new_zeros(len(x), *x.shape[2:], B.shape[3]) if one is None else one
        step = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        state = state * (dt[:, t] * A).exp()[..., None, None] + step
        rows.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(rows, 1) + x * (D if D.dim() == 2 else D[:, None])
    return (y if z is None else y * F.silu(z)), state


def _tensors(seed, batch, tokens, sequences, wide):
    shapes = {"x": (batch, tokens, _HEADS, _DIM), "dt": (batch, tokens, _HEADS), "A": (_HEADS,), "B": (batch, tokens, _GROUPS, _STATE),
              "C": (batch, tokens, _GROUPS, _STATE), "D": (_HEADS, _DIM) if wide else (_HEADS,), "z": (batch, tokens, _HEADS, _DIM),
              "dt_bias": (_HEADS,), "initial": (sequences, _HEADS, _DIM, _STATE)}
    made = {name: whole(seed + i, *shape, dtype=torch.float64) for i, (name, shape) in enumerate(shapes.items())}
    made["A"] = -made["A"].exp()
    return made


def _cases(tokens):
    yield 2, (0, tokens), True, (0.0, 0.8)
    yield 1, (0, 5, 6, tokens - 3, tokens), False, (0.01, 1.5)


@check
def mamba2_against_a_recurrence(comm, seed):
    tokens = 11 * comm.size
    layout = sp.Layout("contiguous", tokens, comm.size)
    for batch, bounds, wide, limit in _cases(tokens):
        exact = _tensors(seed, batch, tokens, batch if len(bounds) == 2 else len(bounds) - 1, wide)
        given = {name: (sp.shard(x, layout, comm) if x.shape[1:2] == (tokens,) else x).float().clone().requires_grad_()
                 for name, x in exact.items()}
        exact = {name: x.requires_grad_() for name, x in exact.items()}
        initial = exact.pop("initial")
        expected, last = _reference(**exact, bounds=bounds, initial=initial, limit=limit)
        packed = {} if len(bounds) == 2 else {"cu_seqlens": bounds}
        options = dict(chunk_size=16, dt_softplus=True, dt_limit=limit, return_final_states=True, comm=comm, **packed)

        def run(**more):
            named = {**given, **more}
            return sp.mamba2(**{"initial_states" if name == "initial" else name: x for name, x in named.items()}, **options)

        y, state = run()
        same(y, sp.shard(expected, layout, comm).float(), 200)
        if comm.rank == comm.size - 1:
            same(state, last.float(), 200)
        expected.square().sum().backward()
        y.square().sum().backward()
        for name, x in {**exact, "initial": initial}.items():
            found = given[name].grad
            if name in ("A", "D", "dt_bias", "initial"):
                found, reference = summed(found, comm), x.grad
                if name == "initial" and len(bounds) == 2:
                    found = sp.all_gather(given[name].grad[None].contiguous(), comm, dim=0)[0]
            else:
                reference = sp.shard(x.grad, layout, comm)
            scale = max(1.0, reference.abs().max().item())
            same(found / scale, reference.float() / scale, 400)
        grads = {name: x.grad.clone() for name, x in given.items()}
        for x in given.values():
            x.grad = None
        again = torch.utils.checkpoint.checkpoint(lambda: run()[0], use_reentrant=False)
        again.square().sum().backward()
        same(again, y, 20)
        for name, x in given.items():
            same(x.grad, grads[name], 200)
        compiled = torch.compile(lambda: run()[0], backend="aot_eager", fullgraph=True)
        same(compiled(), y, 20)
        torch.compiler.reset()
        if packed:
            index = torch.bucketize(torch.arange(tokens, device="cpu"), torch.tensor(bounds, device="cpu")[1:], right=True)[None]
            options.pop("cu_seqlens")
            mine = sp.shard(index.to(comm.device, torch.int32), layout, comm)
            for _ in range(2):
                same(run(seq_idx=mine)[0], y, 20)
                with torch.inference_mode():  # tensors have no version there
                    same(run(seq_idx=mine.clone())[0], y, 20)
            options["cu_seqlens"] = torch.tensor(bounds)
            same(run(seq_idx=mine)[0], y, 20)
            options["cu_seqlens"] = (0, 4, tokens)
            raises(ValueError, "expected the bounds in cu_seqlens", run, seq_idx=mine)
            mine.data = torch.zeros_like(mine)  # no new version
            raises(ValueError, "seq_idx changes at None", run, seq_idx=mine)


@check
def mamba2_refusals(comm, seed):
    given = {name: x.float() for name, x in _tensors(seed, 1, 5, 1, False).items()}
    initial = given.pop("initial")
    for text, more in {"dt has the shape": {"dt": given["dt"][:, 1:]}, "A has the shape": {"A": given["A"][1:]},
                       "B has 3 groups": {"B": given["B"].new_zeros(1, 5, 3, _STATE)}, "B has 0 groups": {"B": given["B"].new_zeros(1, 5, 0, _STATE)},
                       "D has the shape": {"D": given["D"][None, None]},
                       "z has the shape": {"z": given["z"][..., 1:]}, "mamba2: x has the shape": {"x": given["x"][..., :0], "z": None},
                       "mamba2: got a tensor on meta": {name: given[name].to("meta") for name in ("x", "B", "C")}, "return_varlen_states": {"return_varlen_states": True},
                       "state_dtype is torch.bfloat16": {"state_dtype": torch.bfloat16},
                       "initial_states has the shape": {"initial_states": initial.mT},
                       "seq_idx is": {"seq_idx": torch.zeros(1, 4, dtype=torch.int32)},
                       "seq_idx contains -1": {"seq_idx": torch.full((1, 5), -1)}}.items():
        raises(ValueError, text, sp.mamba2, **{**given, **more}, comm=comm)
    raises(TypeError, "mamba2: x, B and C are ", sp.mamba2, **{**given, "B": given["B"].bfloat16()}, comm=comm)
    for name, kind in (("A", torch.complex64), ("dt", torch.complex64), ("D", torch.int32), ("z", torch.complex64), ("dt_bias", torch.bool),
                       ("initial_states", torch.complex64)):  # conversions to float32 would drop imaginary parts
        raises(TypeError, f"mamba2: {name} is {kind}, expected a real", sp.mamba2, **{**given, name: {**given, "initial_states": initial}[
            name].to(kind)}, comm=comm)
    raises(TypeError, "z is int", sp.mamba2, **{**given, "z": 1}, comm=comm)


class _Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width))

    def forward(self, x, z):
        x = x * F.silu(z)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Mamba2(torch.nn.Module):
    """The attributes of mamba_ssm's layer: its own kernels need a GPU."""

    def __init__(self, rmsnorm, mlp, process_group=None):
        super().__init__()
        self.d_ssm, self.ngroups, self.headdim, self.d_state, self.nheads = _HEADS * _DIM, _GROUPS, _DIM, _STATE, _HEADS
        self.rmsnorm, self.D_has_hdim, self.activation, self.chunk_size, self.dt_limit = rmsnorm, not rmsnorm, "silu", 8, (0.0, math.inf)
        self.process_group = process_group
        channels = self.d_ssm + 2 * _GROUPS * _STATE
        self.in_proj = torch.nn.Linear(16, 2 * mlp + self.d_ssm + channels + _HEADS, bias=False)
        self.conv1d = torch.nn.Conv1d(channels, channels, 4, groups=channels, padding=3)
        self.dt_bias, self.A_log = torch.nn.Parameter(torch.rand(_HEADS)), torch.nn.Parameter(torch.rand(_HEADS))
        self.D = torch.nn.Parameter(torch.rand(_HEADS if rmsnorm else self.d_ssm))
        if rmsnorm:
            self.norm = _Norm(self.d_ssm)
        self.out_proj = torch.nn.Linear(mlp + self.d_ssm, 16, bias=False)

    def forward(self, u, seqlen=None, seq_idx=None, cu_seqlens=None, inference_params=None):
        """Of whole sequences."""
        assert seqlen is None and seq_idx is None and cu_seqlens is None and inference_params is None
        channels = self.conv1d.in_channels
        z0, x0, z, mixed, dt = self.in_proj(u).split(mamba.sizes_of(self), -1)
        mixed = F.silu(self.conv1d(mixed.mT)[..., :u.shape[1]].mT)
        x, B, C = mixed.split([self.d_ssm, (channels - self.d_ssm) // 2, (channels - self.d_ssm) // 2], -1)
        x, B, C = x.unflatten(-1, (_HEADS, -1)), B.unflatten(-1, (_GROUPS, -1)), C.unflatten(-1, (_GROUPS, -1))
        D = self.D if self.rmsnorm else self.D.unflatten(0, (_HEADS, -1))
        y, _ = _reference(x, dt, -self.A_log.exp(), B, C, (0, u.shape[1]), D, None if self.rmsnorm else z.unflatten(-1, (_HEADS, -1)),
                          self.dt_bias)
        y = self.norm(y.flatten(2), z) if self.rmsnorm else y.flatten(2)
        return self.out_proj(torch.cat([F.silu(z0) * x0, y], -1))


@check
def mamba_ssm_layers(comm, seed):
    tokens = 9 * comm.size
    layout = sp.Layout("contiguous", tokens, comm.size)
    for rmsnorm, mlp, bounds in ((True, 0, (0, tokens)), (False, 8, (0, 4, 5, tokens))):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(Mamba2(rmsnorm, mlp), torch.nn.Linear(16, 16)).to(comm.device)
        u = whole(seed, 1, tokens, 16)
        expected = torch.cat([model(part) for part in u.split([e - b for b, e in zip(bounds, bounds[1:])], 1)], 1)
        expected.square().sum().backward()
        exact = {name: x.grad.clone() for name, x in model.named_parameters()}
        model.zero_grad()
        mine = sp.shard(u, layout, comm)
        with mamba.context_parallel(model, comm, cu_seqlens=bounds):
            out = model(mine)
            if comm.size > 1:
                raises(ValueError, "inference_params", model[0], mine, inference_params=object())
        out.square().sum().backward()
        same(out, sp.shard(expected, layout, comm), 400)
        for name, x in model.named_parameters():
            scale = max(1.0, exact[name].abs().max().item())
            same(summed(x.grad, comm) / scale, exact[name] / scale, 800)
        same(model(u[:, :bounds[1]]), expected[:, :bounds[1]], 20)  # the layer's own forward again
    raises(ValueError, "no layer of the class Mamba2", mamba.context_parallel(torch.nn.Linear(2, 2), comm).__enter__)
    raises(ValueError, "process_group", mamba.context_parallel(Mamba2(True, 0, process_group=object()), comm).__enter__)
