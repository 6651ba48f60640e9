# Types of seqpar.torch.diffusers; a test compares them with the module.
from .._names import Softmax as _Softmax

def register(algorithm: _Softmax | None = None) -> None: ...
