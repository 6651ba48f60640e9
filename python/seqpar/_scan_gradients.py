"""The arithmetic of an All-Scan's derivatives, in operations that the arrays of PyTorch and of JAX have alike."""


def expand(numbers, state):
    """Numbers a head or a row as factors of [heads][dk][dv]."""
    return numbers.reshape(*numbers.shape, *[1] * (state.ndim - numbers.ndim))


def transposed_product(op, factor, grad, reverse):
    """A^T grad of one position, A being what its scan multiplies by."""
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
