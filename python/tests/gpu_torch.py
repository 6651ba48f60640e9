"""All tests of seqpar.torch on GPUs, in one call:

    python3 python/tests/gpu_torch.py [--part NAME...] [--check NAME...] [--ranks N...]

Runs the parts, in the given order, with one rank and, if there are two GPUs, with two; each rank is one process for all
parts:

    checks     the checks of torch_ranks.py that need no host communicator
    caches     those of caches that are distributed over the ranks
    masks      those of masks as slices
    families   those of the delta rule and of Mamba-2
    compile    torch.compile, its graphs whole and equal to eager calls
    drop_ins   functions of ring-flash-attention, flash-linear-attention, torch's context_parallel, transformers
    graph      a CUDA graph of forward and backward passes, replayed
    decode     a CUDA graph of a decode step over a distributed KV cache, replayed with changing batches
    parity     attention and linear attention of GPU shapes against the definition
    boundary   the CPU time of a call, compared with the C call
    ulysses    to_heads, a kernel and to_sequence, compared with the C operator, 32K tokens
    gradients  a model in FSDP2 has the gradients of one rank
    fsdp       thousands of steps with FSDP2's gathers on another stream, concurrent with seqpar's collectives: no
               deadlock
    budget     an exchange concurrent with a matrix product and an NCCL gather, for 4 to 128 thread blocks per
               collective
    training   examples/train_gla.py, --sp 1 and --sp 2, in separate processes: equal losses

After a part that fails or does not finish within --timeout, the rest runs in new processes. The interpreter is the one
that runs this script, or SEQPAR_TORCH_VENV's. SEQPAR_LIBRARY names a library built with CUDA. Skipped (77) without a
GPU.
"""

import argparse
import contextlib
import csv
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time

import venvs

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = {
    "checks": ("heads_and_sequence", "gather_and_scatter", "halos", "redistribution", "scans", "transitions_before_sequences_have_no_effect",
               "batches", "merging_partial_attention", "shifts_and_rings", "work_in_two_halves", "short_convolutions",
               "kernels_of_the_caller", "kernels_of_the_caller_read_any_memory", "sdpa_of_many_documents",
               "sdpa_separates_packed_sequences", "compiled_flex_attention_separates_packed_sequences",
               "workspaces_of_one_kernel_call", "checkpoints_of_kernels_of_the_caller",
               "layouts_of_packed_sequences",
               "plans_are_evicted_in_order", "plans_in_graphs_are_kept", "other_default_devices", "equal_calls_on_two_streams", "explanations",
               "parity_finds_errors",
               "later_calls_return_equal_results", "operators_are_registered_well", "checkpointing_gives_equal_gradients",
               "plans_take_memory_without_pending_work", "forward_reserves_private_memory",
               "linear_attention_reserves_private_memory", "errors_name_the_argument",
               "tensors_that_do_not_fit", "arguments_that_are_not_tensors", "invalid_options",
               "shards_without_a_layout_are_contiguous", "strides_of_states_and_windows", "autocast_casts_as_for_sdpa",
               "groups_and_closing", "new_arguments_on_one_rank"),
    "caches": ("kernels_of_local_attention", "strides_of_local_attention", "blocks_of_local_attention", "merges_of_partial_attention",
               "unused_entries_of_a_cache_have_no_effect", "caches_that_do_not_fit_are_refused",
               "decode_over_a_sharded_cache", "chunks_of_prompts_to_a_sharded_cache", "chunks_of_prompts_in_pages",
               "schedules_of_chunks", "refusals_of_cache_functions"),
    "masks": ("masks_equal_dense_attention", "masks_of_large_rectangles", "blocks_of_scattered_keys_are_computed_by_flex_attention",
              "scattered_keys_on_any_shards", "solved_layouts_move_and_number_tokens", "masks_that_do_not_fit_are_refused"),
    "families": ("the_delta_rule_of_all_ranks", "families_of_all_ranks_equal_one_rank", "states_of_the_delta_rule",
                 "the_gated_delta_rule_of_qwen3_next", "delta_products_of_all_ranks", "states_of_delta_products",
                 "mamba2_against_a_recurrence", "mamba2_refusals", "mamba_ssm_layers"),
    "compile": ("compiled_graphs_are_whole_and_equal", "the_delta_rule_compiled", "compiled_with_dynamic_lengths"),
    "drop_ins": ("drop_ins", "drop_ins_of_the_delta_rule", "gates_that_fla_computes", "simple_gla_with_flas_arguments", "contexts_of_fla", "context_parallel_agrees_with_torch",
                 "attention_of_transformer_engine", "kernels_by_name", "models_of_transformers", "families_that_are_refused",
                 "positions_that_models_get", "compiled_models_get_positions", "models_without_attention_in_some_layers",
                 "delta_net_layers"),
}
PARITY = (
    "--algorithm ring zigzag striped burst allgather_kv ulysses auto --length 517 --heads 8 --kv-heads 2 --head-dim 64 "
    "--dtype bfloat16",
    "--algorithm ring allgather_kv ulysses --length 512 --full --head-dim 128 --dtype float16",
    "--algorithm ring zigzag --documents 1 2 137 372 --head-dim 64 --dtype bfloat16",
    "--algorithm ring allgather_kv ulysses --length 512 --head-dim 64 --dtype bfloat16 --window 100 --sinks",
    "--family gla --algorithm zeco lasp1 lasp2 --length 600 --heads 4 --head-dim 64 --dtype bfloat16",
    "--family gla --algorithm zeco --length 512 --heads 4 --head-dim 128 --dtype bfloat16 --initial",
    "--family gla --algorithm zeco --documents 1 2 137 372 --heads 4 --head-dim 64 --dtype bfloat16",
    "--family gla --algorithm zeco --documents 1 2 137 372 --heads 4 --head-dim 64 --dtype bfloat16 --initial",
    "--family scalar --algorithm zeco --length 512 --heads 4 --head-dim 64 --dtype bfloat16",
    "--family fixed --algorithm zeco --length 512 --heads 4 --head-dim 64 --dtype bfloat16")


def items(o, ranks):
    """The items for gpu_torch_rank.py, as its arguments."""
    wanted = {**{part: [f"check {name}" for name in names if not o.check or name in o.check] for part, names in CHECKS.items()},
              "graph": ["graph"],
              "decode": ["decode"],
              "parity": [f"parity {line}" for line in PARITY],
              "boundary": ["boundary"],
              "ulysses": ["ulysses 32768"] if ranks > 1 else [],
              "gradients": ["gradients"] if ranks > 1 else [],
              "fsdp": [f"fsdp {o.fsdp_steps} {o.fsdp_seconds}"] if ranks > 1 else [],
              "budget": [f"budget {ctas}" for ctas in (4, 8, 16, 32, 64, 128)] if ranks > 1 else []}
    return [item for part in o.part or wanted if part in wanted for item in wanted[part]]


class Ranks:
    """Processes that run items one after the other; forwards their output immediately."""

    def __init__(self, ranks, items):
        self.held = contextlib.ExitStack()
        port = self.held.enter_context(venvs.reserved_port())
        self.outcomes, self.processes = queue.Queue(), []
        device = os.environ.get("SEQPAR_TEST_DEVICE", "cuda")
        for rank in range(ranks):
            variables = venvs.environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                                          MASTER_PORT=str(port), SEQPAR_TEST_DEVICE=device)
            self.processes.append(subprocess.Popen([venvs.interpreter(), HERE / "gpu_torch_rank.py", *items], env=variables,
                                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        self.threads = [threading.Thread(target=self._read, args=(p,)) for p in self.processes]
        for thread in self.threads:
            thread.start()

    def _read(self, process):
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("==== "):
                self.outcomes.put(line.split()[1])
        self.outcomes.put("ended")

    def outcome(self, seconds):
        """The outcome of the next item: "ok", "FAILED", "ended" or "timeout"."""
        try:
            return self.outcomes.get(timeout=seconds)
        except queue.Empty:
            return "timeout"

    def end(self, seconds):
        """Waits up to `seconds`, then ends them. Returns whether all were done."""
        limit = time.monotonic() + seconds
        for process in self.processes:
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        for thread in self.threads:
            thread.join()
        self.held.close()
        return all(process.wait() == 0 for process in self.processes)


def run_items(o, ranks, left):
    """Runs the items, in new processes after each failure. Returns those that failed."""
    failed = []
    while left:
        running, bad = Ranks(ranks, left), None
        while left and bad is None:
            limit = o.timeout + (o.fsdp_seconds if left[0].startswith("fsdp") else 0)
            outcome = running.outcome(limit)
            if outcome != "ok":
                bad = outcome
            else:
                left = left[1:]
        if not running.end(30 if bad is None else 5) and bad is None:
            failed.append(f"{ranks} ranks: closing")
        if bad is not None:
            print(f"==== {bad} at: {left[0]}", flush=True)
            failed.append(f"{ranks} ranks: {left[0]}")
            left = left[1:]
    return failed


def train(o, ranks, folder):
    failed = []
    for sp in sorted({1, ranks}):
        statuses, output = venvs.run_ranks(ranks, [str(x) for x in (
            venvs.ROOT / "examples" / "train_gla.py", "--sp", sp, "--batch", 2 * sp // ranks, "--device", "cuda", "--dtype",
            "bfloat16", "--steps", 10, "--width", 256, "--heads", 4, "--tokens", 4096, "--log", folder / f"{ranks}.{sp}.csv")],
            timeout=o.timeout)
        print(f"==== training, {ranks} ranks, --sp {sp}: {statuses}", flush=True)
        if statuses != [0] * ranks:
            print(output[-3000:], flush=True)
            failed.append(f"{ranks} ranks: training --sp {sp}")
    return failed


def same_losses(folder):
    """The losses of all ways to train on equal sequences: they differ by bfloat16 rounding, which Adam magnifies, and
    by a small part of the steps' progress."""
    curves = {}
    for path in sorted(folder.glob("*.csv")):
        with open(path) as file:
            curves[path.stem] = [float(row["loss"]) for row in csv.DictReader(file)]
    print("first and last losses (ranks.sp):", {name: (c[0], c[-1]) for name, c in curves.items()})
    if not curves:
        return True
    exact = next(iter(curves.values()))
    apart = max(abs(a - b) for curve in curves.values() for a, b in zip(curve, exact))
    return all(len(c) == len(exact) for c in curves.values()) and apart <= (exact[0] - exact[-1]) / 10


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--part", nargs="+", choices=(*CHECKS, "graph", "decode", "parity", "boundary", "ulysses", "gradients", "fsdp",
                                                   "budget", "training"))
    p.add_argument("--check", nargs="+", help="of the parts' checks only these")
    p.add_argument("--ranks", type=int, nargs="+", help="default: 1, and 2 if there are two GPUs")
    p.add_argument("--fsdp-steps", type=int, default=10000)
    p.add_argument("--fsdp-seconds", type=float, default=600, help="duration of the part fsdp")
    p.add_argument("--timeout", type=float, default=60, help="seconds per item with its start; for fsdp, added to its own")
    o = p.parse_args()
    if not list(pathlib.Path("/dev").glob("nvidia[0-9]*")) and os.environ.get("SEQPAR_TEST_DEVICE") != "cpu":
        print("skipped: there is no GPU")
        sys.exit(77)
    if not os.environ.get("SEQPAR_TORCH_VENV"):  # the system's PyTorch
        venvs.interpreter = lambda name="torch": sys.executable
    gpus = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for ranks in o.ranks or ([1, 2] if gpus > 1 else [1]):
            print(f"==== {ranks} ranks", flush=True)
            failed += run_items(o, ranks, items(o, ranks))
            if not o.part or "training" in o.part:
                failed += train(o, ranks, folder)
        if not same_losses(folder):
            failed.append("training: losses differ")
    print(f"{len(failed)} failed", *failed, sep="\n  ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
