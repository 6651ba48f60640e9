"""Results of earlier calls with the same tensor."""

from torch.utils.weak import WeakTensorKeyDictionary


class Remembered:
    """Results by tensor and key, until the tensor changes or is freed. Tensors of torch.inference_mode() have no version that
    would tell a change: their results are not kept."""

    def __init__(self):
        self._known = WeakTensorKeyDictionary()  # tensor -> (version, an alias that keeps its memory, {key: result})

    def of(self, tensor, key, compute):
        """compute(), or its earlier result for this tensor and key."""
        if tensor.is_inference():
            return compute()
        known = self._known.get(tensor)
        if known is None or known[0] != tensor._version or not known[1].is_set_to(tensor):  # other memory: an assignment to `data`
            known = self._known[tensor] = (tensor._version, tensor.detach(), {})
        if key not in known[2]:
            known[2][key] = compute()
        return known[2][key]
