"""A data collator that packs the examples of a batch into one sequence."""

import itertools

import torch

from ._sharding import IGNORED, shift_labels


class PackingCollator:
    """Concatenates examples into one packed sequence, without padding between them: input_ids, labels, shift_labels
    (shifted within each sequence), position_ids and cu_seq_lens_q. Works with and without sequence parallelism.

    tokens        the length of the result, filled with pad_token_id, without labels; None: the length of the examples
    pad_token_id  the token of the filling

    An example has input_ids, and optionally labels (not shifted), attention_mask (0: the token is dropped), and seq_lengths
    (it is packed itself).
    """

    def __init__(self, tokens=None, pad_token_id=0):
        self.tokens, self.pad_token_id = tokens, pad_token_id

    def __call__(self, examples):
        ids, labels, lengths = [], [], []
        for example in examples:
            own = torch.as_tensor(example["input_ids"]).tolist()
            mask = torch.as_tensor(example.get("attention_mask", [1] * len(own))).tolist()
            own_labels = torch.as_tensor(example.get("labels", own)).tolist()
            if len(mask) != len(own) or len(own_labels) != len(own):
                raise ValueError(f"PackingCollator: an example has {len(own)} input_ids, {len(own_labels)} labels and {len(mask)} values of "
                                 "attention_mask, expected equally many")
            parts = [int(x) for x in example.get("seq_lengths", [sum(x != 0 for x in mask)])]
            ids += itertools.compress(own, mask)
            labels += itertools.compress(own_labels, mask)
            lengths += [x for x in parts if x]
            if sum(lengths) != len(ids):
                raise ValueError(f"PackingCollator: seq_lengths of an example are {parts}, expected a sum of {sum(x != 0 for x in mask)}, its "
                                 "tokens")
        if self.tokens is not None and self.tokens != len(ids):
            missing = self.tokens - len(ids)
            if missing < 0:
                raise ValueError(f"PackingCollator: the examples have {len(ids)} tokens, expected at most tokens={self.tokens}")
            ids, labels, lengths = ids + [self.pad_token_id] * missing, labels + [IGNORED] * missing, [*lengths, missing]
        bounds = [0, *itertools.accumulate(lengths)]
        labels = torch.tensor(labels)[None]
        labels[0, bounds[:-1]] = IGNORED
        shifted = shift_labels(labels, bounds)
        bounds = torch.tensor(bounds, dtype=torch.int32)
        return {"input_ids": torch.tensor(ids)[None], "labels": labels, "shift_labels": shifted,
                "position_ids": torch.cat([torch.arange(x) for x in lengths])[None], "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds,
                "max_length_q": max(lengths), "max_length_k": max(lengths)}
