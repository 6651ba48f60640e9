"""Times of two implementations of an operator as CUDA graphs, in turns in the same run."""
import torch


def passes(operator, tensors, grad):
    """The functions to time: a forward pass, and both passes."""
    def forward():
        with torch.no_grad():
            return operator(*tensors)

    def both():
        return torch.autograd.grad(operator(*tensors), tensors, grad)

    return {"forward": forward, "forward+backward": both}


def graph_of(function):
    """A CUDA graph of a call, after two that compile, tune and allocate; or why there is none."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = function()
        return graph, kept
    except Exception as error:  # what a library refuses
        return str(error).strip().splitlines()[0][:100], None


def median_us(graph, repeats):
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in events)
    return 1e3 * times[len(times) // 2]


def header(peer):
    return f"{'family':<12} {'shape':<18} {'pass':<17} {'seqpar us':>10} {peer + ' us':>12} {'times':>7}"


def compare(family, shape, peer, ours, theirs, tensors, grad, repeats):
    """Prints a line for each pass: both times, their ratio, and how far the outputs are apart."""
    ours, theirs = (passes(operator, tensors, grad) for operator in (ours, theirs))
    for what in ours:
        graphs = {"seqpar": graph_of(ours[what]), peer: graph_of(theirs[what])}
        times, notes = {name: [] for name in graphs}, []
        for _ in range(3):  # in turns: clocks drift
            for name, (graph, _) in graphs.items():
                if not isinstance(graph, str):
                    times[name].append(median_us(graph, repeats))
        shown = {name: sorted(x)[len(x) // 2] if x else float("nan") for name, x in times.items()}
        for name, (graph, _) in graphs.items():
            if isinstance(graph, str):
                notes.append(f"{name}: {graph}")
        if not notes and what == "forward":
            a, b = (kept.float() for _, kept in graphs.values())
            notes.append(f"apart {((a - b).norm() / b.norm()).item():.1e}")
        print(f"{family:<12} {shape:<18} {what:<17} {shown['seqpar']:10.1f} {shown[peer]:12.1f} "
              f"{shown[peer] / shown['seqpar']:7.2f}  {'; '.join(notes)}", flush=True)
        del graphs
