"""Packed sequences as batches: one call of a kernel for dense batches computes the short documents of similar lengths."""

import functools

import torch

from ._define import define

_LONGEST = 512  # longer documents get a call each, and no padding
_BLOCK = 128    # queries and keys of a block of FlexAttention


@functools.lru_cache(maxsize=64)
def _indices(starts, lengths, device):
    with torch.inference_mode(False):  # a later call may need a gradient
        starts, lengths = (torch.tensor(x, dtype=torch.int64, device="cpu") for x in (starts, lengths))
        first = (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths)
        return (first + torch.arange(len(first), device="cpu")).to(device)


# An operator, so that a compiled graph contains a call instead of a constant of the sequence's length.
_runs = define("token_runs(Tensor like, int[] starts, int[] lengths, int tokens) -> Tensor",
               lambda like, starts, lengths, tokens: (like.new_empty(tokens, dtype=torch.int64),),
               lambda made, like, starts, lengths, tokens: made[0].copy_(_indices(tuple(starts), tuple(lengths), like.device)))


def _form(queries, keys, causal, on_gpu):
    """(queries, keys) of a short document with padding: documents of one form are a batch. On hosts padding costs more than calls,
    so forms are closer to each other."""
    if not causal or queries != keys:
        return queries, keys
    step = max(16, (1 << queries.bit_length()) // (4 if on_gpu else 8))  # causal queries do not see the padding behind them
    return (-(-queries // step) * step,) * 2


class _Places:
    """Where the tokens of documents are in a tensor of batches: the documents of the first form, of the second form, ..."""

    def __init__(self, lengths, batches):
        """batches: (tokens of a document with padding, indices of the documents)"""
        self.lengths, self.starts, self.sizes, self.tokens = lengths, [0] * len(lengths), [], 0
        for longest, documents in batches:
            for i in documents:
                self.starts[i] = self.tokens
                self.tokens += longest
            self.sizes.append(longest * len(documents))
        ends = [start + length for start, length in zip(self.starts, lengths)]
        self.as_they_are = self.starts == [0, *ends[:-1]]  # also in a longer tensor

    def _where(self, x):
        return _runs(x, self.starts, self.lengths, sum(self.lengths))

    def scatter(self, x):
        """The tensor of batches with the tokens x [batch][tokens][...], and zeros behind them."""
        if self.as_they_are and x.shape[1] == self.tokens:
            return x
        return x.new_zeros(x.shape[0], self.tokens, *x.shape[2:]).index_copy_(1, self._where(x), x)

    def gather(self, x):
        """The tokens in their order."""
        return x if self.as_they_are and sum(self.lengths) == x.shape[1] else x.index_select(1, self._where(x))


def attend(kernel, q, k, v, bounds_q, bounds_k, causal):
    """Attention of packed sequences with kernel(q, k, v), which computes the documents of a batch alone. They have padding behind
    them only where a document has as many queries as keys and the mask is causal."""
    q_lengths, k_lengths = ([end - begin for begin, end in zip(x, x[1:])] for x in (bounds_q, bounds_k))
    forms, unseen = {}, []
    for i, (queries, keys) in enumerate(zip(q_lengths, k_lengths)):
        if queries == 0:
            unseen += [(keys, [i])]
        elif queries > _LONGEST:
            forms[queries, keys, i] = [i]
        else:
            forms.setdefault((*_form(queries, keys, causal, q.is_cuda), -1), []).append(i)
    if not forms:
        return q.new_zeros(*q.shape[:3], v.shape[3])
    queries = _Places(q_lengths, [(form[0], documents) for form, documents in forms.items()])
    keys = _Places(k_lengths, [(form[1], documents) for form, documents in forms.items()] + unseen)
    # Not slices: the gradient of each would be a whole tensor.
    parts = zip(forms.values(), *(places.scatter(x).split(places.sizes, 1) for places, x in ((queries, q), (keys, k), (keys, v))))
    outputs = [_of_batch(kernel, len(documents), *qkv) for documents, *qkv in parts]
    return queries.gather(outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1))


def _described(lengths, sizes, shifts):
    """int32 [2][tokens]: the document of each token and its position; -1 in the padding that makes `lengths` `sizes`."""
    lengths, sizes, shifts = (torch.tensor(x, dtype=torch.int64, device="cpu") for x in (lengths, sizes, shifts))
    document = torch.arange(len(sizes), device="cpu").repeat_interleave(sizes)
    position = torch.arange(len(document), device="cpu") - (sizes.cumsum(0) - sizes)[document]
    return torch.stack([document.where(position < lengths[document], -1), position + shifts[document]]).int()


# An operator for the same reason; also, PyTorch 2.15 has no kernel on hosts for masks that read a tensor of the graph.
_description = define("documents_of_tokens(Tensor like, int[] lengths, int[] sizes, int[] shifts) -> Tensor",
                      lambda like, lengths, sizes, shifts: (like.new_empty(2, sum(sizes), dtype=torch.int32),),
                      lambda made, like, lengths, sizes, shifts: made[0].copy_(_described(lengths, sizes, shifts)))


def attend_blocks(kernel, q, k, v, call):
    """Attention of packed sequences with one kernel(q, k, v, mask_mod) that computes blocks: zeros behind each document fill its
    last block, so that masked NaN and infinity reach no other document."""
    lengths = [[end - begin for begin, end in zip(x, x[1:])] for x in (call.cu_seqlens_q, call.cu_seqlens_k)]
    sizes = [[-(-n // _BLOCK) * _BLOCK for n in x] for x in lengths]
    queries, keys = (_Places(n, [(size, [i]) for i, size in enumerate(m)]) for n, m in zip(lengths, sizes))
    # Padding sees the keys of its document: a row of the scores without keys has no log-sum-exp.
    document_q, position_q = _description(q, sizes[0], sizes[0], [n - m for m, n in zip(*lengths)])
    document_k, position_k = _description(k, lengths[1], sizes[1], [0] * len(sizes[1]))
    left, right = call.window[0], 0 if call.causal else call.window[1]

    def mask_mod(batch, head, i, j):
        seen = document_q[i] == document_k[j]
        if left >= 0:
            seen = seen & (position_k[j] >= position_q[i] - left)
        return seen & (position_k[j] <= position_q[i] + right) if right >= 0 else seen

    return queries.gather(kernel(queries.scatter(q), keys.scatter(k), keys.scatter(v), mask_mod))


def _of_batch(kernel, documents, *qkv):
    """kernel() of parts [batch][tokens of all documents][heads][dim]."""
    if documents == 1:
        return kernel(*qkv)
    out = kernel(*(x.unflatten(1, (documents, x.shape[1] // documents)).flatten(0, 1) for x in qkv))
    return out.unflatten(0, (-1, documents)).flatten(1, 2)
