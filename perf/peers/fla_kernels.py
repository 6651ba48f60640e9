"""How flash-linear-attention's Triton kernels are compiled and tuned in a measurement of a minute."""
import triton.runtime.autotuner as autotuner
import triton.runtime.jit as jit
import triton.testing


def few_configurations(count):
    """Tunes over the first `count` configurations that fit, and not for long; kernels of context parallelism over all, since
    with their first two a forward pass took 129 ms on an H200 and 2.4 without them."""
    prune, bench = autotuner.Autotuner.prune_configs, triton.testing.do_bench
    autotuner.Autotuner.prune_configs = lambda self, kwargs: prune(self, kwargs)[
        :None if "_cp_" in self.base_fn.__name__ else count]
    triton.testing.do_bench = lambda fn, warmup=None, rep=None, **named: bench(fn, warmup=5, rep=15, **named)


def compile_only(share, shares):
    """Kernels are compiled and not run; each process does those whose turn it is, by the order of their first use."""
    run, order = jit.JITFunction.run, {}

    def warm(self, *arguments, grid, warmup, **named):
        key = (id(self), str({name: x for name, x in named.items() if isinstance(x, (int, bool, str))}))
        if order.setdefault(key, len(order)) % shares == share:
            run(self, *arguments, grid=grid, warmup=True, **named)

    def tune(self, *arguments, **named):
        self.nargs = dict(zip(self.arg_names, arguments))
        for config in self.prune_configs(named) if len(self.configs) > 1 else self.configs:
            try:
                self.fn.run(*arguments, **named, **config.all_kwargs())
            except Exception as error:  # a configuration that does not fit
                print(f"{self.base_fn.__name__} {config}: {type(error).__name__}", flush=True)
        self.nargs = None

    jit.JITFunction.run, autotuner.Autotuner.run = warm, tune
