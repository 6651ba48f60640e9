"""transformers' Trainer and TRL's SFTTrainer with sharded sequences."""

import contextlib
import functools
import sys

import torch

from ._batches import Shard, whole_of
from ._models import base_of
from ._refusals import tell

_OWN = ("transformers.", "trl.", "seqpar.")
_TRL = frozenset({"SFTTrainer", "_BaseTrainer"})
_USED = ("_prepare_inputs", "_get_num_items_in_batch", "prediction_step", "compute_loss", "get_cp_size")


class _Loss:
    """A model's loss function that requires labels that were shifted before sharding, and notes its calls."""

    def __init__(self, function, model):
        self.function, self.model, self.called = function, type(model).__name__, False

    def __call__(self, *arguments, **named):
        missing = [name for name in ("shift_labels", "num_items_in_batch") if named.get(name) is None]
        if missing:
            raise ValueError(f"TrainerMixin: {self.model} does not pass {' and '.join(missing)} to its loss function: it would shift the labels "
                             "of each shard, or divide by a rank's own tokens. Expected a model that passes its keyword arguments on")
        self.called = True  # a counter would be a constant of compiled graphs, a new one each step
        return self.function(*arguments, **named)


def _is_fused(trainer):
    """Whether the trainer is TRL's SFTTrainer, which does not use the model's loss function."""
    return any(kind.__module__.startswith("trl.") for kind in type(trainer).__mro__)


def _require_classes(trainer):
    import transformers
    kinds = [kind for kind in type(trainer).__mro__ if kind not in (TrainerMixin, object)]
    if not issubclass(type(trainer), transformers.Trainer):
        raise TypeError(f"TrainerMixin: {type(trainer).__name__} is not a Trainer, expected class {type(trainer).__name__}(TrainerMixin, Trainer)")
    missing = [name for name in _USED if not hasattr(transformers.Trainer, name)]
    if missing:
        raise TypeError(f"TrainerMixin: Trainer of transformers {transformers.__version__} has no {', '.join(missing)}, expected 5.0 or later")
    for kind in kinds:
        name = kind.__name__
        if kind.__module__.startswith("trl.") and issubclass(kind, transformers.Trainer) and name not in _TRL or name == "Seq2SeqTrainer":
            raise TypeError(f"TrainerMixin: {name} needs whole sequences for its loss or for generation, expected Trainer or SFTTrainer")
        if "compute_loss" in vars(kind) and not kind.__module__.startswith(_OWN):
            raise TypeError(f"TrainerMixin: {name} has its own compute_loss(), which would get this rank's tokens only: expected the loss of "
                            "the model")


def _refused(trainer):
    """(what is given, what is expected) of each option that cannot be sharded."""
    args, model = trainer.args, base_of(trainer.model)
    text = model.config.get_text_config()
    accelerator = args.accelerator_config
    yield args.label_smoothing_factor, f"label_smoothing_factor is {args.label_smoothing_factor}", "0"
    yield trainer.compute_loss_func is not None, "compute_loss_func is given", "None: it would get this rank's tokens only"
    yield args.n_gpu > 1, f"n_gpu is {args.n_gpu} (DataParallel)", "1: start a process per GPU with torchrun"
    yield args.neftune_noise_alpha, f"neftune_noise_alpha is {args.neftune_noise_alpha}", "None: the noise depends on the length of a sequence"
    yield trainer.is_deepspeed_enabled, "DeepSpeed is enabled", "DDP or FSDP2"
    yield args.eval_use_gather_object, "eval_use_gather_object is True", "False"
    yield accelerator.dispatch_batches, "accelerator_config.dispatch_batches is True", "False: it would give the ranks of a sequence other rows"
    yield accelerator.split_batches, "accelerator_config.split_batches is True", "False"
    yield (getattr(text, "output_router_logits", False) or getattr(trainer, "aux_loss_enabled", False), "output_router_logits is True",
           "False: the load balancing loss would see this rank's tokens only (SFTTrainer: router_aux_loss_coef=0)")
    if _is_fused(trainer):
        yield not args.average_tokens_across_devices, "average_tokens_across_devices is False", "True with SFTTrainer"
        return
    yield args.use_liger_kernel, "use_liger_kernel is True", "False: its loss is not the model's"
    yield not trainer.model_accepts_loss_kwargs, f"{type(model).__name__} does not take num_items_in_batch", "a model that does"
    yield (not trainer._loss_shifts_labels or hasattr(model, "_loss_function"), f"the loss of {type(model).__name__} is not ForCausalLMLoss",
           "a causal language model with the loss of transformers")


def _require_options(trainer):
    told = [f"{given}, expected {expected}" for refused, given, expected in _refused(trainer) if refused]
    if told:
        raise ValueError(f"TrainerMixin: {'; '.join(told)}")


def require_mixin():
    """Lets a Trainer without TrainerMixin raise TypeError at its first batch if it has seqpar's ParallelismConfig: it would
    train on whole sequences, with a loss that counts each of them once per rank."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    original = getattr(trainer, "_prepare_inputs", None)
    if original is None or hasattr(original, "seqpar_requires"):
        return

    @functools.wraps(original)
    def prepare_inputs(self, *arguments, **named):
        config = getattr(self.accelerator, "parallelism_config", None)
        if not isinstance(self, TrainerMixin) and hasattr(config, "sharder") and config.cp_size > 1:
            name = type(self).__name__
            raise TypeError(f"ParallelismConfig: {name} has cp_size={config.cp_size} without TrainerMixin, which shards the batches: expected "
                            f"class Seqpar{name}(TrainerMixin, {name}), with seqpar.torch.transformers.TrainerMixin")
        return original(self, *arguments, **named)

    prepare_inputs.seqpar_requires = True
    trainer._prepare_inputs = prepare_inputs


class TrainerMixin:
    """Sequence parallelism for transformers' Trainer and TRL's SFTTrainer.

        class SeqparTrainer(TrainerMixin, SFTTrainer):
            pass

        arguments = SFTConfig(..., parallelism_config=seqpar.torch.accelerate.ParallelismConfig(cp_size=4))
        SeqparTrainer(model, arguments, train_dataset=data).train()

    Sets the model's attention. Batches are sharded in training and evaluation: labels are shifted before the cut, padding on
    the right is dropped, packed sequences are read from position_ids or cu_seq_lens_q. Losses and gradients are those of
    whole sequences. Logits of evaluation, and of predict(), are gathered. Options, models and trainers whose results would
    differ raise an error with their name. Without seqpar's ParallelismConfig, or with cp_size=1, the trainer is unchanged.
    """

    _seqpar = None  # BatchSharder
    _seqpar_loss = None

    def __init_subclass__(cls, **named):
        super().__init_subclass__(**named)
        bases = [kind.__name__ for kind in cls.__mro__[1:cls.__mro__.index(TrainerMixin)] if hasattr(kind, "training_step")]
        if bases and not issubclass(cls.__mro__[1], TrainerMixin):
            raise TypeError(f"TrainerMixin: {cls.__name__} has the base {bases[0]} before TrainerMixin, whose methods would not be called: "
                            f"expected class {cls.__name__}(TrainerMixin, {bases[0]})")

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        config = getattr(self.accelerator, "parallelism_config", None)
        if config is None or config.cp_size == 1:
            return
        if not hasattr(config, "sharder"):
            raise TypeError("TrainerMixin: parallelism_config is accelerate's, expected seqpar.torch.accelerate.ParallelismConfig")
        _require_classes(self)
        _require_options(self)
        sharder = config.sharder(self.model)
        if not _is_fused(self):
            model = base_of(self.model)
            self._seqpar_loss = model.loss_function = _Loss(model.loss_function, model)
        self._seqpar = sharder

    # Batches

    def _prepare_inputs(self, inputs):
        if isinstance(inputs, Shard):
            return inputs
        inputs = super()._prepare_inputs(inputs)
        return inputs if self._seqpar is None else self._seqpar(inputs)

    def _get_num_items_in_batch(self, batch_samples, device):
        """Counts the labels of whole batches, also of batches that were sharded."""
        if self._seqpar is not None:
            wholes = [x.whole if isinstance(x, Shard) else whole_of(x) for x in batch_samples]
            batch_samples = [{} if x.shifted is None else {"labels": x.shifted, "shift_labels": x.shifted} for x in wholes]
        return super()._get_num_items_in_batch(batch_samples, device)

    # Losses

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if self._seqpar is None:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        if num_items_in_batch is None and inputs.label_count is not None:  # evaluation by SFTTrainer: the mean of a batch's tokens
            scale = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
            num_items_in_batch = inputs.label_count * scale / self._seqpar.comm.size
        if self._seqpar_loss is not None:
            self._seqpar_loss.called = False
        with self._gathering_shards():
            found = super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        if self._seqpar_loss is not None and not self._seqpar_loss.called:
            raise self._told(ValueError(f"TrainerMixin: {self._seqpar_loss.model} did not call its loss function, expected a model that computes "
                                        "its loss with self.loss_function()"))
        return found

    def _told(self, error):
        tell(self._seqpar.comm, error)
        return error

    @contextlib.contextmanager
    def _gathering_shards(self):
        """Metrics that are sums over a rank's tokens are gathered from all ranks of a sequence."""
        def gather_for_metrics(x, *_, **named):
            return self._last(self.accelerator.gather(x).unflatten(0, (-1, self._seqpar.comm.size))).flatten(0, 1)

        self.accelerator.gather_for_metrics = gather_for_metrics
        try:
            yield
        finally:
            del self.accelerator.gather_for_metrics

    # Evaluation

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        if self._seqpar is None:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        shard = self._prepare_inputs(inputs)
        loss, logits, labels = super().prediction_step(model, shard, prediction_loss_only, ignore_keys=ignore_keys)
        if loss is not None:
            loss = self._seqpar.mean(loss)
        if logits is not None:
            if not isinstance(logits, torch.Tensor) or logits.dim() != 3:
                raise self._told(ValueError(f"TrainerMixin: the model returned {type(logits).__name__} in evaluation, expected logits "
                                            "[batch][tokens][vocabulary] alone: set config.keys_to_ignore_at_inference, or "
                                            "prediction_loss_only=True"))
            logits = shard.unshard(logits)
        return loss, logits, None if labels is None else shard.given

    @property
    def gather_function(self):
        """Gathers per-sample results: once per sequence, not once per rank."""
        return self._seqpar_gather if self._seqpar is None else self._gather_sequences

    @gather_function.setter
    def gather_function(self, function):
        self._seqpar_gather = function

    def _gather_sequences(self, x, *_, **named):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"TrainerMixin: got {type(x).__name__} to gather in evaluation, expected a tensor")
        ranks = self._seqpar.comm.size
        return self._last(self.accelerator.gather(x).unflatten(0, (-1, ranks, len(x)))[:, 0].flatten(0, 1))

    def _last(self, x):
        """Without the samples that the data loader repeats at its end."""
        state = self.accelerator.gradient_state
        return x[:state.remainder] if state.end_of_dataloader and state.remainder > 0 else x

    # Statistics

    def floating_point_ops(self, inputs):
        found = super().floating_point_ops(inputs)
        return found if self._seqpar is None else found // self._seqpar.comm.size

    def _track_num_input_tokens(self, inputs):
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)
        if self._seqpar is not None:
            self.state.num_input_tokens_seen = before + (self.state.num_input_tokens_seen - before) // self._seqpar.comm.size
