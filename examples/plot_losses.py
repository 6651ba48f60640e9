"""Plots the losses of the training examples of all frameworks."""


def plot(losses, path):
    try:
        import matplotlib
    except ImportError:
        print(f"no {path}: this needs matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.figure(figsize=(6, 4))
    pyplot.plot(losses)
    pyplot.xlabel("step")
    pyplot.ylabel("loss, nats a byte")
    pyplot.grid(alpha=0.3)
    pyplot.savefig(path, dpi=120, bbox_inches="tight")
