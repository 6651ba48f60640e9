"""The arithmetic of an All-Scan's derivatives, in operations common to PyTorch's and JAX's arrays."""


def expand(numbers, state):
    """Values per head or row as factors of [heads][dk][dv]."""
    return numbers.reshape(*numbers.shape, *[1] * (state.ndim - numbers.ndim))


def transposed_product(op, factor, grad, reverse):
    """A^T grad of one position; A is the scan's transition."""
    if op == "sum":
        return grad
    if op == "matrix":
        return (factor if reverse else factor.mT) @ grad
    return expand(factor, grad) * grad


def transition_gradient(op, grad, prefix, reverse):
    """Gradient of A, from the gradient of A x and x."""
    if op == "scalar":
        return (grad * prefix).sum((1, 2))
    if op == "diag":
        return (grad * prefix).sum(2)
    return prefix @ grad.mT if reverse else grad @ prefix.mT
