"""Batches of training stacks: whole batches in the form of transformers, and this rank's part of them."""

import dataclasses
import hashlib

import torch

from .. import _shapes
from ._agreement import require_agreement
from ._collectives import all_gather
from ._context import layout_of
from ._layout import bounds_of
from ._refusals import collective
from ._sharding import IGNORED, shard, shift_labels, unshard

_WHAT = "seqpar batch"
_TENSORS = frozenset({"input_ids", "labels", "shift_labels", "attention_mask", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k"})
_DERIVED = frozenset({"max_length_q", "max_length_k", "seq_idx"})  # follow from the bounds
_OPTIONS = frozenset({"use_cache", "return_dict", "output_hidden_states", "output_attentions"})


@dataclasses.dataclass
class Whole:
    """A batch before it is sharded.

    ids      [rows][tokens]; one row if `bounds` are given
    shifted  the label of each token, None: no labels
    bounds   packed sequences, None: each row is one sequence
    kept     bool [rows][tokens] of the given batch: the tokens of the one row; None: the rows are those of the batch
    """

    ids: torch.Tensor
    shifted: "torch.Tensor | None"
    bounds: "tuple[int, ...] | None"
    kept: "torch.Tensor | None"


class Shard(dict):
    """The arguments of a model for this rank's tokens. `labels` and `shift_labels` are the shifted labels.

    given        the labels of the whole batch, not shifted; None: no labels
    label_count  the number of shifted labels of the whole batch, a tensor; None: no labels
    whole        the Whole

    shard["attention_mask"] is ones if the batch has such a mask and no padding, for counts of tokens. It is not an argument of
    the model, since compiled models do not know its values.
    """

    def __init__(self, arguments, whole, given, layout, comm, mask=None):
        super().__init__(arguments)
        self.whole, self.given, self.layout, self.comm, self._mask = whole, given, layout, comm, mask
        self.label_count = None if whole.shifted is None else whole.shifted.ne(IGNORED).sum()

    def __contains__(self, name):
        return super().__contains__(name) or (name == "attention_mask" and self._mask is not None)

    def __missing__(self, name):
        if name in self:
            return self._mask
        raise KeyError(name)

    def unshard(self, x):
        """Collective: [rows][tokens of the batch][...] on every rank from [rows][tokens of the rank][...]; 0 at padding."""
        together = unshard(x.contiguous(), self.layout, self.comm)
        if self.whole.kept is None:
            return together
        kept = self.whole.kept
        found = x.new_zeros((*kept.shape, *x.shape[2:]))
        found[kept] = together[0, :int(kept.sum())]
        return found


def _like_ids(batch, name, ids):
    """batch[name], [rows][tokens] as the ids; None: absent."""
    x = batch.get(name)
    if x is None:
        return None
    if not isinstance(x, torch.Tensor) or x.shape != ids.shape:
        shape = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(f"{_WHAT}: {name} has the shape {shape}, expected {list(ids.shape)}, the shape of input_ids")
    return x


def _lengths(mask, ids):
    """The number of tokens of each row."""
    rows, tokens = ids.shape
    if mask is None:
        return [tokens] * rows
    lengths = mask.ne(0).sum(1)
    expected = torch.arange(tokens, device=mask.device)[None] < lengths[:, None]
    if not mask.eq(expected).all():
        row = int(mask.ne(expected).any(1).nonzero()[0, 0])
        raise ValueError(f"{_WHAT}: row {row} of attention_mask is not ones followed by zeros, expected padding on the right: set "
                         "padding_side=\"right\" in the tokenizer, or pack sequences with position_ids that restart at each")
    return lengths.tolist()


def _starts(positions, bounds, row, length):
    """The first tokens of the sequences of a row."""
    if positions is None:
        starts = [x for x in bounds[:-1] if x < length] if bounds is not None else [0]
        return sorted(set(starts)) if length else []
    own = positions[:length]
    starts = (own == 0).nonzero()[:, 0].tolist()
    if length and starts[:1] != [0]:
        raise ValueError(f"{_WHAT}: row {row} of position_ids begins at {int(own[0])}, expected 0: positions of whole sequences")
    within = torch.arange(length) - torch.repeat_interleave(torch.tensor(starts, dtype=torch.int64),
                                                            torch.tensor([*starts[1:], length]) - torch.tensor(starts)) if length else own
    wrong = (own != within).nonzero()
    if len(wrong):
        index = int(wrong[0, 0])
        raise ValueError(f"{_WHAT}: position_ids[{row}][{index}] is {int(own[index])}, expected {int(within[index])}: positions ascend by 1 "
                         "and restart at 0 with each packed sequence")
    if bounds is not None and sorted({*starts, length}) != sorted(set(bounds)):
        raise ValueError(f"{_WHAT}: cu_seq_lens_q is {bounds}, and position_ids restart at {tuple(starts)}, expected equal bounds")
    return starts


def _given_bounds(batch, rows, tokens):
    found = [bounds_of(batch[name].flatten() if isinstance(batch[name], torch.Tensor) else batch[name])
             for name in ("cu_seq_lens_q", "cu_seq_lens_k") if batch.get(name) is not None]
    if not found:
        return None
    if rows != 1 or any(x != found[0] for x in found) or found[0][0] != 0 or found[0][-1] != tokens:
        raise ValueError(f"{_WHAT}: cu_seq_lens_q and cu_seq_lens_k are {found} in a batch of {rows} rows of {tokens} tokens, expected equal "
                         f"bounds from 0 to {tokens} in a batch of 1")
    _shapes.require_bounds(_WHAT, found[0], tokens)
    return found[0]


def whole_of(batch):
    """The Whole of a batch in the form of transformers: input_ids, and optionally labels (not shifted) or shift_labels,
    attention_mask (padding on the right), position_ids, and cu_seq_lens_q of packed sequences. Padding is dropped. The last
    token of each sequence has no label."""
    ids = batch.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
        shape = f" {list(ids.shape)}" if isinstance(ids, torch.Tensor) else ""
        raise ValueError(f"{_WHAT}: input_ids are {type(ids).__name__}{shape}, expected an integer tensor [batch][tokens], not empty")
    unknown = sorted(name for name, x in batch.items() if x is not None and name not in _TENSORS | _DERIVED | _OPTIONS)
    if unknown:
        raise ValueError(f"{_WHAT}: got {', '.join(unknown)}, which cannot be sharded: expected {', '.join(sorted(_TENSORS))}")
    rows, tokens = ids.shape
    labels, shifted = _like_ids(batch, "labels", ids), _like_ids(batch, "shift_labels", ids)
    lengths = _lengths(_like_ids(batch, "attention_mask", ids), ids)
    positions, bounds = batch.get("position_ids"), _given_bounds(batch, rows, tokens)
    if positions is not None:
        if not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape not in (ids.shape, (1, tokens)):
            raise ValueError(f"{_WHAT}: position_ids have the shape {list(getattr(positions, 'shape', ()))}, expected {list(ids.shape)}")
        positions = positions.detach().cpu().expand(rows, tokens)
    starts = [_starts(None if positions is None else positions[row], bounds, row, length) for row, length in enumerate(lengths)]
    if all(length == tokens for length in lengths) and all(len(x) <= 1 for x in starts):
        return Whole(ids, shifted if shifted is not None else None if labels is None else shift_labels(labels), None, None)
    if not any(lengths):
        raise ValueError(f"{_WHAT}: attention_mask is 0 everywhere, expected a token")
    kept = (torch.arange(tokens)[None] < torch.tensor(lengths)[:, None]).to(ids.device)
    for name, x in (("labels", labels), ("shift_labels", shifted)):
        if x is not None and x[~kept].ne(IGNORED).any():
            raise ValueError(f"{_WHAT}: {name} of padding are not {IGNORED}, expected {IGNORED}: tokens that attention_mask excludes have no "
                             "label")
    before = [sum(lengths[:row]) for row in range(rows)]
    bounds = (*(first + start for first, own in zip(before, starts) for start in own), sum(lengths))
    if shifted is not None:
        shifted = shifted[kept][None]
    elif labels is not None:
        shifted = shift_labels(labels[kept][None], bounds)
    return Whole(ids[kept][None], shifted, bounds, kept)


def _filled(whole, tokens):
    """The Whole with a sequence of this many tokens behind it, without labels: for batches of fewer tokens than ranks."""
    ids, bounds = whole.ids.reshape(1, -1), whole.bounds
    if bounds is None:
        rows, length = whole.ids.shape
        bounds = tuple(length * row for row in range(rows + 1))
    shifted = None if whole.shifted is None else torch.cat([whole.shifted.reshape(1, -1), ids.new_full((1, tokens), IGNORED)], 1)
    kept = torch.ones_like(whole.ids, dtype=torch.bool) if whole.kept is None else whole.kept
    return Whole(torch.cat([ids, ids[:, :1].expand(1, tokens)], 1), shifted, (*bounds, bounds[-1] + tokens), kept)


def _digest(x):
    """A checksum of a tensor's values."""
    return None if x is None else hashlib.sha256(x.detach().cpu().contiguous().numpy()).hexdigest()[:16]


class BatchSharder:
    """Cuts whole batches, which are equal on all ranks of a sequence, and describes them to the registered attention.

        shard = sharder(batch)
        loss = model(**shard, num_items_in_batch=shard.label_count).loss * sharder.comm.size    # averaged over all ranks by DDP

    layout  the kind of layout, None: "zigzag" except for algorithms with another one
    """

    def __init__(self, registration, layout=None):
        self.registration, self.comm, self.layout = registration, registration.comm, layout

    @collective
    def __call__(self, batch):
        """This rank's Shard. Raises ValueError on all ranks if the batch differs between ranks. Collective."""
        whole = whole_of(batch)
        require_agreement(self.comm, f"{_WHAT}: the ranks of a sequence have different batches", {
            "shape": tuple(whole.ids.shape), "input_ids": _digest(whole.ids), "labels": _digest(whole.shifted),
            "sequences": whole.bounds}, "equal batches: the data loader must give all ranks of a sequence the same samples (accelerate's "
            "with seqpar.torch.accelerate.ParallelismConfig, dispatch_batches=False)")
        layout = layout_of(whole.ids.shape[1], self.comm, self.registration.algorithm, self.layout)
        if 0 in layout.lengths:  # models do not take shards without tokens
            whole = _filled(whole, 2 * self.comm.size)
            layout = layout_of(whole.ids.shape[1], self.comm, self.registration.algorithm, self.layout)
        self.registration.layout, self.registration.cu_seqlens, self.registration.unpacked = layout, whole.bounds, whole.bounds is None
        arguments = {name: batch[name] for name in batch if name in _OPTIONS}
        arguments["input_ids"] = shard(whole.ids, layout, self.comm)
        arguments["position_ids"] = layout.positions(self.comm.rank, cu_seqlens=whole.bounds, device=whole.ids.device)[None]
        if whole.shifted is not None:
            arguments["labels"] = arguments["shift_labels"] = shard(whole.shifted, layout, self.comm)
        counted = batch.get("attention_mask") is not None and whole.bounds is None
        return Shard(arguments, whole, batch.get("labels"), layout, self.comm, torch.ones_like(arguments["input_ids"]) if counted else None)

    @collective
    def mean(self, x):
        """The mean of a scalar over the ranks of a sequence. Collective."""
        return all_gather(x.detach().reshape(1, 1).float(), self.comm).mean()
