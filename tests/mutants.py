"""Mutants: small mistakes that the tests must notice.

    python tests/mutants.py            # every mutant against the tests named for it, survivors against the whole suite
    python tests/mutants.py 3 17       # only some, by number

Each mutant is put into a copy of the repository, where its tests are run with -x. Exit code 1 if more than ALLOWED
survive. `pytest -m slow tests/test_mutants.py` does the same without the whole suite.

A mutant is anchored by a function and a piece of its syntax tree: neither another layout nor another name of a local
variable makes it stale.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rewrite import rewrite

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = 3
SECONDS = 600  # for a mutant's own tests
IGNORED = shutil.ignore_patterns(".git", ".venv*", "runs", "__pycache__", ".*_cache", ".hypothesis")


class Mutant(NamedTuple):
    """One mistake.

    Attributes:
        file: the module, from the repository's root.
        place: the function in it (`name` or `Class.name`), a class, or nothing for the module's own lines.
        before: an expression, or statements, that stand once in that place.
        after: what stands there instead.
        tests: the test files that should notice, by name.
    """

    file: str
    place: str
    before: str
    after: str
    tests: str


EVALUATION_IN_TRAINING = """
if schedule.evaluates(state.step):
    with monitor.paused(), average.applied(), eager(accelerator):
        evaluation = evaluate(accelerator, model, val_loader, criterion, state.step)
        improved = state.update(evaluation)
        publish_evaluation(
            accelerator, network, evaluation, improved, checkpoints.best_model, monitor, info, section
        )
"""

MUTANTS = [
    # masks with invented values on their borders
    Mutant(
        "data_utils/analysis/spoiled_masks.py",
        "BorderCounts.classes",
        "invented < max(FEWEST, len(classes))",
        "invented < FEWEST",
        "test_spoiled_masks.py",
    ),
    # train.py: flags and the step
    Mutant("train.py", "main", "args.class_weights", "None", "test_flags.py"),
    Mutant("train.py", "main", "args.loss", "'ce+dice'", "test_flags.py"),
    Mutant(
        "train.py",
        "main",
        "set_seed(args.seed, deterministic=args.deterministic)",
        "set_seed(args.seed, deterministic=False)",
        "test_flags.py",
    ),
    Mutant("train.py", "main", "tuning.of(shapes.largest)", "tuning.of(())", "test_memory.py"),
    Mutant("train.py", "train_step", "max_grad_norm or torch.inf", "torch.inf", "test_flags.py"),
    Mutant(
        "train.py",
        "train_step",
        "torch.as_tensor(grad_norm, device=accelerator.device)",
        "torch.as_tensor(grad_norm)",
        "test_device.py",
    ),
    Mutant(
        "train.py", "main", "WeightAverage(network, args.ema_decay)", "WeightAverage(network, 0.0)", "test_flags.py"
    ),
    Mutant(
        "train.py",
        "train_step",
        "is_made = guard.judge(loss, grad_norm, counts[-1])\noptimizer.step()",
        "optimizer.step()\nis_made = guard.judge(loss, grad_norm, counts[-1])",
        "test_nan_guard.py",
    ),
    Mutant("train.py", "add_gradients", "counts[:-1]", "criterion.counts(targets)", "test_flags.py test_train.py"),
    Mutant("train.py", "train_step", "loss = accelerator.reduce(loss, 'sum')", "pass", "test_train.py"),
    Mutant("train.py", "main", "device.type == 'cpu' or schedule.pauses(state.step)", "False", "test_flags.py"),
    Mutant("train.py", "add_gradients", "share * accelerator.num_processes", "share", "test_equality.py test_train.py"),
    Mutant(
        "train.py",
        "main",
        "average.applied()",
        "nullcontext()",
        "test_flags.py",
    ),
    Mutant(
        "train.py",
        "main",
        "seed_step(args.seed, state.step, accelerator.process_index)",
        "pass",
        "test_resume.py test_flags.py",
    ),
    Mutant("train.py", "add_gradients", "reduction.wait", "counts.zero_", "test_equality.py test_train.py"),
    Mutant(
        "train.py",
        "evaluate",
        "task.finish(partial).to(counts.dtype)",
        "2 * task.finish(partial).to(counts.dtype)",
        "test_published_numbers.py",
    ),
    Mutant(
        "train.py",
        "evaluate",
        "(sums / counts.clamp_min(1)).sum",
        "(sums / counts.clamp_min(1)).mean",
        "test_published_numbers.py",
    ),
    Mutant("tasks/classes.py", "ClassScores.add", "(index, 0)", "(0, 0)", "test_published_numbers.py"),
    Mutant("train.py", "add_gradients", "not micro_batches", "True", "test_equality.py test_train.py"),
    Mutant("train_utils/buckets.py", "rebuild_buckets", "model.zero_grad()", "pass", "test_buckets.py"),
    Mutant("train_utils/buckets.py", "rebuild_buckets", "buffer.copy_(buffers[name])", "pass", "test_buckets.py"),
    Mutant(
        "train_utils/buckets.py",
        "rebuild_buckets",
        "torch.stack([level.sum() for level in levels]).sum().backward()",
        "pass",
        "test_buckets.py",
    ),
    # what a cluster does
    Mutant("runtime/lock.py", "lock_folder", "lock.acquire(timeout=0)", "pass", "test_lock.py"),
    Mutant("runtime/lock.py", "locks_released", "lock.release()", "pass", "test_lock.py"),
    Mutant("runtime/parallel.py", "workers_ended", "_kill(workers)", "pass", "test_failures.py"),
    Mutant("runtime/signals.py", "StopRequest._remember", "self._leave_terminal()", "pass", "test_signals.py"),
    Mutant("runtime/signals.py", "_outlasts_terminal", "number == HANG_UP", "False", "test_signals.py"),
    Mutant("data_utils/analysis/content.py", "_file_size", "os.stat(path).st_size", "0", "test_content.py"),
    Mutant("data_utils/analysis/content.py", "_file_checksum", "checksum.update", "bytes", "test_content.py"),
    # schedule, optimizer, average, guard
    # schedule, optimizer, average, guard
    Mutant("train_utils/schedule.py", "Schedule.set_learning_rate", "self.kind", "'cosine'", "test_flags.py"),
    Mutant(
        "train_utils/schedule.py",
        "Schedule.from_args",
        "total_steps // 20 if args.warmup_steps is None else args.warmup_steps",
        "total_steps // 20",
        "test_flags.py",
    ),
    Mutant("train_utils/schedule.py", "learning_rate", "step + 1", "step", "test_flags.py test_optim.py"),
    Mutant(
        "train_utils/schedule.py",
        "Schedule.is_out_of_patience",
        "state.evaluations_since_best >= self.patience",
        "state.evaluations_since_best > self.patience",
        "test_flags.py",
    ),
    Mutant(
        "train_utils/optim.py",
        "build_optimizer",
        "weight_decay if key == 'weight' and isinstance(module, DECAYED) else 0.0",
        "0.0 if key == 'weight' and isinstance(module, DECAYED) else 0.0",
        "test_flags.py",
    ),
    Mutant(
        "train_utils/optim.py",
        "build_optimizer",
        "weight_decay if key == 'weight' and isinstance(module, DECAYED) else 0.0",
        "weight_decay if key == 'weight' else weight_decay",
        "test_flags.py",
    ),
    Mutant(
        "data_utils/targets/classes.py",
        "class_weight_tensor",
        "(pixels.sum() / (len(pixels) * pixels)).sqrt()",
        "pixels.sum() / (len(pixels) * pixels)",
        "test_optim.py test_flags.py",
    ),
    Mutant("data_utils/targets/classes.py", "class_weight_tensor", "pixels > 0", "pixels >= 0", "test_optim.py"),
    Mutant(
        "train_utils/optim.py",
        "build_optimizer",
        "torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True, fused=fused)",
        "torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=False, fused=fused)",
        "test_flags.py",
    ),
    Mutant(
        "train_utils/ema.py",
        "WeightAverage.update",
        "min(self.decay, (1 + step) / (10 + step))",
        "self.decay",
        "test_flags.py",
    ),
    Mutant(
        "train_utils/ema.py",
        "WeightAverage.update",
        "is_made * (1 - min(self.decay, (1 + step) / (10 + step)))",
        "torch.ones(()) * (1 - min(self.decay, (1 + step) / (10 + step)))",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "StepGuard.judge",
        "self._values[:2].isfinite().all",
        "self._values[1].isfinite",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "StepGuard.judge",
        "torch.where(is_made, _joined(buffers), kept)",
        "_joined(buffers)",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "StepGuard._count",
        "gather_object(indices)[:MOST_NAMES]",
        "gather_object(indices)",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "StepGuard.__init__",
        "_start_momentum(self._optimizer)",
        "pass",
        "test_nan_guard.py",
    ),
    Mutant("train_utils/nan_guard.py", "StepGuard._count", "self._in_a_row = 0", "pass", "test_nan_guard.py"),
    Mutant(
        "train_utils/nan_guard.py",
        "StepGuard._count",
        "self.accelerator.scaler is not None and math.isfinite(result.loss)",
        "self.accelerator.scaler is not None",
        "test_half.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "StepGuard.settle",
        "results += self.settle(everything=True)",
        "pass",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "_sums",
        "var.double() + difference.square()",
        "var.double()",
        "test_sync_batchnorm.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "leave_out_of_batch_norm",
        "not is_filler",
        "True",
        "test_sync_batchnorm.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "_means",
        "sums / count if is_counted else torch.zeros_like(sums)",
        "sums / count",
        "test_sync_batchnorm.py",
    ),
    Mutant(
        "train_utils/evaluation.py",
        "read_bands",
        "tuple(map(torch.add, sums, partial)) if sums else partial",
        "partial",
        "test_evaluation.py",
    ),
    Mutant(
        "train_utils/preflight.py",
        "largest_evaluation",
        "size.bytes_for(config)",
        "math.prod(size.input)",
        "test_memory.py",
    ),
    Mutant(
        "train.py",
        "main",
        "check_evaluation(accelerator, model, criterion, info.channels, evaluated, args.optimizer, keeps_average)",
        "pass",
        "test_memory.py",
    ),
    Mutant(
        "unet/norms.py",
        "BatchNorm3d.forward",
        "super().forward(x.flatten(3)).view_as(x)",
        "super().forward(x)",
        "test_norms.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "BatchSplit.sizes",
        "min(in_proportion, math.ceil(images / self.processes))",
        "self.accumulation",
        "test_batch_sampler.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "SynchronizedBatchNorm.forward",
        "count / (count - 1)",
        "1",
        "test_sync_batchnorm.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "_means",
        "dist.all_reduce(sums, group=_process_group())",
        "pass",
        "test_sync_batchnorm.py",
    ),
    # checkpoints
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints._write",
        "complete_folder(path)",
        "[[shutil.rmtree(old) for old in newest_first(self.folder)[self.keep - 1 :]], complete_folder(path)][1]",
        "test_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints._prune",
        "path != best",
        "True",
        "test_checkpoints.py test_resume.py",
    ),
    Mutant("train_utils/checkpoints/save.py", "Checkpoints._prune", "self.keep", "self.keep + 1", "test_flags.py"),
    Mutant(
        "train_utils/checkpoints/find.py",
        "_read_state",
        "fingerprint(path / name) != expected",
        "False",
        "test_resume.py",
    ),
    Mutant(
        "train_utils/run_state.py",
        "RunState.update",
        "comparison > self.best",
        "comparison >= self.best",
        "test_flags.py",
    ),
    Mutant(
        "runtime/files.py",
        "complete_folder",
        "for path in (*temporary.iterdir(), temporary):\n    sync(path)",
        "pass",
        "test_checkpoints.py",
    ),
    Mutant(
        "runtime/files.py", "replaced_file", "temporary.replace(path)", "shutil.copy(temporary, path)", "test_files.py"
    ),
    Mutant(
        "train_utils/checkpoints/save.py", "Checkpoints._prune", "reversed(complete)", "complete", "test_checkpoints.py"
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints.resume",
        "on_main(self.accelerator, self.best_model.folder.exists)",
        "self.best_model.folder.exists()",
        "test_checkpoints.py",
    ),
    # what is published
    Mutant("tasks/classes.py", "ClassScores.record", "values[metric]", "values['iou']", "test_published_numbers.py"),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.summary",
        "window.images / window.seconds",
        "window.images / (window.seconds + window.data)",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.paused",
        "self._step.pauses.append((before, self._now()))",
        "pass",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.end_step",
        "_Marks(step.end)",
        "_Marks(None)",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/monitor.py",
        "Monitor.log_training",
        "self.window.mean()",
        "2 * (self.window.mean() or 0)",
        "test_flags.py",
    ),
    Mutant("tasks/confusion.py", "scores", "2 * hits", "hits", "test_metrics.py"),
    Mutant("tasks/confusion.py", "scores", "ratios(hits, predicted)", "ratios(hits, truth)", "test_metrics.py"),
    Mutant(
        "tasks/confusion.py",
        "confusion_matrix",
        "masks * num_classes + preds",
        "preds * num_classes + masks",
        "test_metrics.py",
    ),
    Mutant("tasks/confusion.py", "count_replicated", "cells * REPLICAS", "cells", "test_metrics.py"),
    # losses
    Mutant(
        "tasks/classes.py",
        "Classes.partial",
        "log_probs.exp() * valid.unsqueeze(1)",
        "log_probs.exp()",
        "test_losses.py",
    ),
    Mutant("tasks/classes.py", "Classes.partial", "log_truth.exp() * valid", "log_truth.exp()", "test_losses.py"),
    Mutant(
        "tasks/classes.py",
        "Classes.partial",
        "self.class_weights.to(logits.dtype).index_select(0, truth.flatten()).view_as(valid) * valid",
        "self.class_weights.to(logits.dtype).index_select(0, truth.flatten()).view_as(valid)",
        "test_losses.py",
    ),
    Mutant("tasks/classes.py", "", "FOCAL_GAMMA = 2.0", "FOCAL_GAMMA = 1.0", "test_losses.py test_flags.py"),
    Mutant("tasks/classes.py", "Classes.finish", "missed * (size > 0)", "missed", "test_losses.py"),
    # network
    Mutant("unet/model.py", "UNet._way_down", "(images - self.mean) / self.std", "images - self.mean", "test_model.py"),
    Mutant(
        "unet/recompute.py",
        "frozen_statistics",
        "norm.momentum = 0.0",
        "norm.momentum = norm.momentum",
        "test_memory.py test_model.py",
    ),
    Mutant(
        "unet/norms.py",
        "_GroupNorm.backward",
        "-(weights * grads).mean(2, keepdim=True) * rstd / pixels - slope * mean",
        "-(weights * grads).mean(2, keepdim=True) * rstd / pixels",
        "test_norms.py",
    ),
    Mutant("unet/norms.py", "_GroupNorm.forward", "x.dtype.itemsize == 2", "x.dtype.itemsize <= 4", "test_norms.py"),
    Mutant(
        "unet/norms.py",
        "_GroupNorm.forward",
        "variances.mean(2, keepdim=True) + means.var(2, correction=0, keepdim=True)",
        "variances.mean(2, keepdim=True)",
        "test_norms.py",
    ),
    # data: order, crops, masks, padding
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "epoch_batches",
        "[seed, epoch]",
        "[0, epoch]",
        "test_flags.py test_batch_sampler.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py", "epoch_batches", "[seed, epoch]", "[seed, 0]", "test_batch_sampler.py"
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "TrainingSampler._micro_batches",
        "slots[0]._replace(filler=True)",
        "slots[0]",
        "test_batch_sampler.py test_equality.py",
    ),
    Mutant(
        "data_utils/image_io/resize.py",
        "nearest",
        "(2 * np.arange(want) + 1) * have // (2 * want)",
        "np.arange(want) * have // want",
        "test_dataset.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "TrainingDataset._pad",
        "self.target.unknown(shape)",
        "self.target.unknown(shape).map(np.zeros_like)",
        "test_dataset.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.read",
        "self.target.unknown(target.shape) if slot.filler else target",
        "target",
        "test_dataset.py test_equality.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "TrainingDataset.sample",
        "[self.config.seed, slot.epoch, slot.index, 1]",
        "[self.config.seed, slot.index, 1]",
        "test_dataset.py test_crops.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "TrainingDataset.__getitem__",
        "self.config.augment",
        "'basic'",
        "test_dataset.py test_flags.py",
    ),
    Mutant("data_utils/loading/crop.py", "", "1 / 3", "0", "test_crops.py"),
    Mutant("data_utils/loading/draws.py", "draw", "[seed, *key]", "[*key]", "test_augment.py"),
    Mutant(
        "data_utils/loading/draws.py",
        "_turns",
        "matrix * spacing / spacing[:, None]",
        "matrix",
        "test_volumes_loading.py",
    ),
    Mutant("data_utils/loading/draws.py", "", "ALIKE = 2", "ALIKE = 9", "test_volumes_loading.py"),
    Mutant("data_utils/loading/draws.py", "draw", "[seed, *key, 3]", "[seed, 3]", "test_volumes_loading.py"),
    Mutant(
        "data_utils/loading/samples.py",
        "VolumeSamples.choose_window",
        "crop_around(locations, own_size, target.shape, tuple(crop_size), rng)",
        "crop_around(locations, target.shape, target.shape, tuple(crop_size), rng)",
        "test_volumes_loading.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "digest(*kind, how, resampled, content, *self.reader.key, self.split.bad)",
        "digest(type(self).__name__, how, content, *self.reader.key, self.split.bad)",
        "test_volumes_loading.py",
    ),
    Mutant(
        "data_utils/loading/noise.py",
        "_xor_shift",
        "shifted.bitwise_and_(2 ** (32 - bits) - 1)",
        "shifted",
        "test_noise.py",
    ),
    Mutant(
        "data_utils/loading/augment.py", "_moved", "picked.masked_fill(outside, unknown)", "picked", "test_augment.py"
    ),
    Mutant("data_utils/class_map.py", "ClassMap.encode", "codes - np.uint8(1)", "codes", "test_class_map.py"),
    Mutant(
        "data_utils/analysis/normalization.py",
        "channel_statistics",
        "squares - mean ** 2",
        "squares",
        "test_published_numbers.py",
    ),
    Mutant(
        "data_utils/sources/holdout.py",
        "hold_out",
        "np.random.default_rng(seed).permutation",
        "np.arange",
        "test_sources.py",
    ),
    Mutant("data_utils/image_io/reader.py", "_upright", "orientation(image) == 1", "True", "test_preprocess.py"),
    # encoders
    Mutant("unet/lite.py", "ConvNorm.__init__", "kernel - stride - before", "before", "test_lite.py"),
    Mutant("unet/lite.py", "InvertedResidual.forward", "x + y", "y", "test_lite.py"),
    Mutant(
        "train_utils/settings/lite0.py",
        "lite0_weights",
        "torch.load(files[0], map_location='cpu', weights_only=True)",
        "torch.load(files[0], map_location='cpu', weights_only=False)",
        "test_lite.py",
    ),
    Mutant(
        "train_utils/settings/plan.py",
        "_is_color",
        "len(channels) == 3 and len(set(channels)) > 1",
        "len(channels) == 3",
        "test_plan.py",
    ),
    Mutant("unet/backbone.py", "Encoder.train", "mode and (not self.frozen)", "mode", "test_encoders.py"),
    Mutant(
        "unet/backbone.py",
        "Encoder.take",
        "weights[name][:, channels] * (have[1] / want[1])",
        "weights[name][:, channels]",
        "test_encoders.py",
    ),
    Mutant(
        "unet/backbone.py", "Encoder.__init__", "parameter.requires_grad_(grad is not None)", "pass", "test_encoders.py"
    ),
    Mutant(
        "train_utils/settings/starting_point.py",
        "StartingPoint._fit_encoder",
        "trained_on is not None and preprocess.pixel_types == ('uint8',) and (len(mean) == len(trained_on.mean))",
        "trained_on is not None and len(mean) == len(trained_on.mean)",
        "test_encoders.py",
    ),
    Mutant(
        "train_utils/settings/starting_point.py",
        "starting_point",
        "checkpoint is None and backbone",
        "backbone",
        "test_encoder_training.py",
    ),
    Mutant(
        "train_utils/schedule.py",
        "Schedule.set_learning_rate",
        "self.encoder_factor if group['of_encoder'] else 1",
        "1 if True else 1",
        "test_flags.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "synchronize_batchnorm",
        "isinstance(m, BATCH_NORMS) and m.training",
        "isinstance(m, BATCH_NORMS)",
        "test_encoder_training.py",
    ),
    Mutant(
        "inference/tiling/receptive_field.py",
        "_measured_reach",
        "difference < ROUNDING",
        "difference < 1",
        "test_encoders.py",
    ),
    # prediction
    Mutant(
        "inference/tiling/resizing.py",
        "resize_logits",
        "F.interpolate(full_precision(logits), size=tuple(size), mode=mode, align_corners=False)",
        "F.interpolate(full_precision(logits), size=tuple(size), mode='nearest')",
        "test_tiling.py",
    ),
    Mutant("inference/tiling/cuts.py", "_weights", "half if index else 0", "0", "test_tiling.py"),
    Mutant(
        "inference/decoding/views.py",
        "averaged_views",
        "not network.config.preprocess.turned",
        "False",
        "test_predict.py",
    ),
    Mutant(
        "inference/decoding/views.py",
        "averaged_views",
        "network(batch.rot90(turn, (2, 3)).flip(axes)).flip(axes)",
        "network(batch.rot90(turn, (2, 3)).flip(axes))",
        "test_predict.py test_tiling.py",
    ),
    Mutant(
        "inference/tiling/cuts.py",
        "Cuts.first_sums",
        "sums[:, :self.rest.shape[1]] = self.rest",
        "sums[:, :self.rest.shape[1]] = 0",
        "test_volumes_predict.py",
    ),
    Mutant("inference/tiling/receptive_field.py", "_reach_along", "2 * (kernel // 2)", "2", "test_volumes_predict.py"),
    Mutant(
        "inference/scoring/volume.py",
        "_surface_distances",
        "distance_transform_edt(~second, sampling=spacing)",
        "distance_transform_edt(~second)",
        "test_volumes_predict.py",
    ),
    Mutant(
        "inference/scoring/volume.py",
        "surface_scores",
        "missed[index] = True\ndice[index] = 0",
        "pass",
        "test_volumes_predict.py",
    ),
    Mutant(
        "inference/scoring/volume.py",
        "VolumeScorer._read_truth",
        "not same_grid(of_truth, header)",
        "False",
        "test_volumes_predict.py",
    ),
    Mutant(
        "inference/predictor.py",
        "Predictor._logits",
        "upload(batch, network.mean.device)",
        "batch.to(network.mean.device)",
        "test_predict_device.py",
    ),
    Mutant("inference/page.py", "page_job", "height * width", "height", "test_app.py"),
    Mutant(
        "inference/page.py", "prediction_html", "_address(indices, transparency=0)", "_address(indices)", "test_app.py"
    ),
    Mutant(
        "inference/outputs/writer.py",
        "PredictionWriter.is_finished",
        "file.st_mtime >= begun",
        "True",
        "test_predict.py test_predict_outputs.py",
    ),
    Mutant(
        "inference/provenance.py",
        "record_provenance",
        "said and (not overwrite) and (said != _essence(provenance))",
        "False",
        "test_predict_outputs.py",
    ),
    # launch, memory
    Mutant("runtime/launch.py", "start_process", "keep_process_group()", "pass", "test_failures.py"),
    Mutant(
        "runtime/launch.py", "start_process", "notice_lost_machines(COLLECTIVE_TIMEOUT)", "pass", "test_failures.py"
    ),
    Mutant("runtime/distributed.py", "on_main", "raise problem", "return None", "test_failures.py test_train.py"),
    Mutant(
        "train_utils/preflight.py",
        "preflight",
        "int(accelerator.gather(upload(torch.tensor([mine]), accelerator.device)).min())",
        "mine",
        "test_memory.py",
    ),
    Mutant("train_utils/preflight.py", "", "STEPS_HELD = 2", "STEPS_HELD = 1", "test_memory.py"),
    Mutant("runtime/memory.py", "", "'unable to find an engine'", "'unable to find a motor'", "test_memory.py"),
    Mutant("runtime/launch.py", "", "MOST_GRAPHS = 1024", "MOST_GRAPHS = 8", "test_profiles.py"),
    Mutant(
        "train_utils/step_memory.py", "StepMemory.shortage_recorded", "math.ceil(size / 2)", "size", "test_memory.py"
    ),
    Mutant(
        "train_utils/checkpoints/best_model.py",
        "BestModel.is_saved",
        "self._refused = None",
        "pass",
        "test_hub.py test_resume.py",
    ),
    # masks of another size, boundaries
    Mutant(
        "data_utils/image_io/resize.py", "same_proportions", "max(largest)", "2 * max(largest)", "test_mask_sizes.py"
    ),
    Mutant(
        "data_utils/loading/samples.py",
        "ImageSamples.load_crop",
        "crop_around(locations, target.size, image.size, tuple(crop_size), rng)",
        "crop_around(locations, image.size, image.size, tuple(crop_size), rng)",
        "test_crops.py",
    ),
    Mutant(
        "inference/scoring/truth.py",
        "TruthScorer.__init__",
        "nearest(truth.size[0], size[0])",
        "np.minimum(np.arange(truth.size[0]), size[0] - 1)",
        "test_mask_sizes.py",
    ),
    Mutant(
        "inference/scoring/boundary.py",
        "_boundary_overlap",
        "true_boundary | predicted_boundary",
        "true | predicted",
        "test_boundary.py",
    ),
    Mutant(
        "inference/scoring/boundary.py",
        "_hausdorff",
        "max(np.percentile(from_true, PERCENTILE), np.percentile(from_predicted, PERCENTILE))",
        "min(np.percentile(from_true, PERCENTILE), np.percentile(from_predicted, PERCENTILE))",
        "test_boundary.py",
    ),
    Mutant(
        "inference/scoring/boundary.py",
        "boundary_scores",
        "np.where(truth == IGNORE_INDEX, IGNORE_INDEX, pred)",
        "pred",
        "test_boundary.py",
    ),
    Mutant("data_utils/sources/holdout.py", "hold_out_fold", "-sizes[order]", "sizes[order]", "test_dataset_info.py"),
    Mutant(
        "runtime/signals.py",
        "_end_at_second_interrupt.watch",
        "now - first >= ONE_PRESS_SECONDS",
        "now > first",
        "test_signals.py",
    ),
    Mutant(
        "runtime/signals.py",
        "_end_at_second_interrupt.watch",
        "now - first >= ONE_PRESS_SECONDS",
        "False",
        "test_signals.py",
    ),
    Mutant(
        "unet/config.py",
        "_is_number",
        "isinstance(value, int | float) and (not isinstance(value, bool)) and (abs(value) <= sys.float_info.max)",
        "isinstance(value, int | float) and True",
        "test_model.py",
    ),
    # annotations
    Mutant(
        "data_utils/sources/annotations/coco_mask.py", "CocoMask.draw", "-pixels", "pixels", "test_annotations_coco.py"
    ),
    Mutant(
        "data_utils/sources/annotations/coco_mask.py",
        "CocoMask.draw",
        "(True, 0, IGNORE_INDEX, runs)",
        "(True, 0, value, runs)",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco_mask.py",
        "CocoMask.draw",
        "not layer[0]",
        "layer[0]",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco_mask.py",
        "encode",
        "not all((isinstance(run, int) and run >= 0 for run in runs)) or sum(runs) != height * width",
        "not all((isinstance(run, int) and run >= 0 for run in runs))",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco.py",
        "CocoRecords.digest",
        "('COCO', self.classes, self.values)",
        "'COCO'",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco.py",
        "gather_classes",
        "number or number in used or name not in supercategories",
        "number or name not in supercategories",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/load.py",
        "open_folder",
        "has_masks = holds_masks(path, named_splits)",
        "has_masks = False",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme_mask.py",
        "draw_shape",
        "pen.line(points.ravel().tolist(), fill=value, width=LINE_WIDTH, joint='curve')",
        "pen.line(points.ravel().tolist(), fill=value, width=LINE_WIDTH)",
        "test_annotations_labelme.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme.py",
        "load",
        "{IGNORED: IGNORE_INDEX}",
        "{IGNORED: 0}",
        "test_annotations_labelme.py",
    ),
    Mutant(
        "data_utils/sources/annotations/yolo.py",
        "YoloMask.draw",
        "shares * (width, height)",
        "shares * (height, width)",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "data_utils/sources/annotations/yolo.py",
        "YoloMask.draw",
        "area(outline.points)",
        "0",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "data_utils/sources/annotations/cityscapes.py",
        "EvaluatedIds.draw",
        "EVALUATED.take(read_mask(self.file, self.file), mode='clip')",
        "read_mask(self.file, self.file)",
        "test_annotations_folders.py",
    ),
    Mutant("data_utils/sources/records.py", "Subset.__init__", "records.classes", "()", "test_annotations_coco.py"),
    Mutant(
        "data_utils/sources/records.py",
        "annotation_summaries",
        "id(records.annotations)",
        "id(records)",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "PairedRecords.digest",
        "(type(self).__name__, self.classes, self.values)",
        "(type(self).__name__, self.classes)",
        "test_annotations_yolo.py",
    ),
    # statistics, length and record of a run
    Mutant("train.py", "evaluate", "share_statistics(accelerator, model)", "pass", "test_sync_batchnorm.py"),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "Rehearsal.__init__",
        "copy.deepcopy(model)",
        "model",
        "test_rehearsal.py",
    ),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "count_steps",
        "evaluation + times.save + 3 * PICTURES * times.image",
        "evaluation + times.save",
        "test_rehearsal.py",
    ),
    Mutant(
        "train_utils/results.py",
        "publish_evaluation",
        "barrier_without_timeout(accelerator)",
        "pass",
        "test_failures.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints.save",
        "barrier_without_timeout(self.accelerator)",
        "pass",
        "test_failures.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints.resume",
        "(self.folder.parent / FINISHED).unlink(missing_ok=True)",
        "pass",
        "test_repeat.py",
    ),
    Mutant(
        "train_utils/settings/record.py",
        "flags_as_json",
        "redact_all(_unredacted(args))",
        "_unredacted(args)",
        "test_redact.py",
    ),
    Mutant("train_utils/settings/record.py", "describe_run", "map(redact, sys.argv)", "sys.argv", "test_redact.py"),
    Mutant("runtime/console.py", "say", "redact(message)", "message", "test_redact.py"),
    Mutant("runtime/console.py", "say_error", "redact(line)", "line", "test_redact.py"),
    Mutant("runtime/errors.py", "UserError.__str__", "redact(text)", "text", "test_redact.py"),
    Mutant(
        "data_utils/sources/streams/parquet.py",
        "ParquetRecords._row_name",
        "f'{PurePosixPath(redact(self.files[file])).name} row {first + row}'",
        "f'{PurePosixPath(self.files[file]).name} row {first + row}'",
        "test_redact.py",
    ),
    Mutant(
        "train_utils/run_dir.py",
        "finished_line",
        "{k: v for k, v in flags.items() if k not in (*LENGTH_AND_PLACE, *open_ones)}",
        "{k: v for k, v in flags.items()}",
        "test_repeat.py",
    ),
    Mutant(
        "train_utils/settings/like.py",
        "repeated_arguments",
        "group & given_flags",
        "group - given_flags",
        "test_repeat.py",
    ),
    Mutant(
        "train.py",
        "main",
        "schedule.saves(state.step) or schedule.is_over(state) or improved or guard.stopping",
        "schedule.saves(state.step) or improved or guard.stopping",
        "test_repeat.py",
    ),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "Rehearsal._count",
        "time.monotonic() - STARTED",
        "time.time()",
        "test_rehearsal.py",
    ),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "",
        "time.monotonic() - time.process_time()",
        "time.monotonic()",
        "test_rehearsal.py",
    ),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "Rehearsal.__init__",
        "replace(Schedule.from_args(args, len(info.train), None), peak=0.0)",
        "replace(Schedule.from_args(args, len(info.train), None), peak=args.learning_rate)",
        "test_rehearsal.py",
    ),
    Mutant(
        "train_utils/monitoring/rehearsal.py", "Rehearsal.__init__", "exit_on_sigterm()", "pass", "test_rehearsal.py"
    ),
    Mutant("tasks/task.py", "Task.at_level", "factor // 2", "0", "test_losses.py"),
    Mutant(
        "tasks/step_loss.py",
        "StepLoss.__init__",
        "stride = [above * factor for above, factor in zip(self.level_factors[-1], stride, strict=True)]",
        "pass",
        "test_volumes_network.py",
    ),
    Mutant(
        "unet/config.py",
        "Preprocess.__post_init__",
        "tuple(map(float, getattr(self, name)))",
        "getattr(self, name)",
        "test_model.py",
    ),
    Mutant("unet/axes.py", "_stride", "is_long and length < 2 * finest", "is_long", "test_volumes_network.py"),
    Mutant(
        "unet/model.py",
        "UNet._pad",
        "padded_size.append(2 * divisor)",
        "padded_size.append(divisor)",
        "test_volumes_network.py test_model.py",
    ),
    Mutant("tasks/step_loss.py", "StepLoss.__call__", "weight * share", "share", "test_losses.py"),
    Mutant(
        "tasks/step_loss.py", "StepLoss.__call__", "level_logits = level_logits[..., *sides]", "pass", "test_losses.py"
    ),
    Mutant(
        "unet/model.py",
        "DeeplySupervisedUNet.published_state",
        "{name: value for name, value in self.state_dict().items() if not name.startswith('heads.')}",
        "{name: value for name, value in self.state_dict().items()}",
        "test_deep_supervision.py",
    ),
    Mutant(
        "train_utils/sharding.py",
        "whole_network",
        "network.published_state",
        "network.state_dict",
        "test_encoder_training.py",
    ),
    Mutant("unet/blocks.py", "DoubleConv.forward", "y + self.shortcut(x)", "y", "test_model.py"),
    Mutant("train_utils/settings/plan.py", "_scale", "detail_kept(info, scale) < DETAIL_KEPT", "False", "test_plan.py"),
    Mutant(
        "train_utils/settings/plan.py",
        "Plan.decided",
        "{name: getattr(self, name) for name in self.names() if getattr(settings, name) is None}",
        "{name: getattr(self, name) for name in self.names()}",
        "test_plan.py",
    ),
    Mutant("train_utils/settings/plan.py", "_has_rare_class", "RARE * sum(pixels)", "0", "test_plan.py"),
    Mutant("train_utils/run_dir.py", "RunStart.plan", "self.checkpoint.state is None", "True", "test_plan.py"),
    # numbers that the documentation gives, what is on disk when, and what names a data set
    Mutant("inference/scoring/boundary.py", "", "DILATION_RATIO = 0.02", "DILATION_RATIO = 0.03", "test_boundary.py"),
    Mutant("train_utils/settings/plan.py", "", "EVALUATION_SHARE = 0.1", "EVALUATION_SHARE = 0.2", "test_plan.py"),
    Mutant("train_utils/settings/plan.py", "", "STEPS = 2000", "STEPS = 1000", "test_plan.py"),
    Mutant("train_utils/settings/plan.py", "", "SIDE_STEP = 32", "SIDE_STEP = 16", "test_plan.py"),
    Mutant(
        "train_utils/settings/plan.py",
        "",
        "CROPPED_PIXELS = {True: 192 * 256, False: 512 * 512}",
        "CROPPED_PIXELS = {True: 192 * 256, False: 256 * 512}",
        "test_plan.py",
    ),
    Mutant("train_utils/settings/plan.py", "", "RARE = 0.02", "RARE = 0.04", "test_plan.py"),
    Mutant("train_utils/settings/plan.py", "_has_rare_class", "len(pixels) > 2", "len(pixels) > 1", "test_plan.py"),
    Mutant(
        "train_utils/settings/plan.py",
        "_has_rare_class",
        "min(filter(None, pixels), default=0)",
        "min(pixels)",
        "test_plan.py",
    ),
    Mutant(
        "train_utils/settings/plan.py",
        "plan_run",
        "_has_rare_class(info.reader.class_pixels) and not is_volumes",
        "_has_rare_class(info.reader.class_pixels)",
        "test_plan.py",
    ),
    Mutant("inference/scoring/volume.py", "", "TOLERANCES = (1, 2)", "TOLERANCES = (1, 3)", "test_volumes_predict.py"),
    Mutant("train_utils/preflight.py", "", "CPU_SHARE = 0.65", "CPU_SHARE = 0.8", "test_memory.py"),
    Mutant("train_utils/monitoring/throughput.py", "", "WARMUP_STEPS = 3", "WARMUP_STEPS = 2", "test_throughput.py"),
    Mutant("train_utils/monitoring/rehearsal.py", "", "PLANNED = 0.92", "PLANNED = 0.98", "test_rehearsal.py"),
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "inspect_files",
        "reader.with_pixels(usable_pixels)",
        "reader.with_pixels(pixels)",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/class_map.py",
        "ClassMap.index_of",
        "if self.has_colors:\n    value = as_color(value)",
        "pass",
        "test_optim.py",
    ),
    Mutant("runtime/files.py", "replaced_files", "sync(file)", "pass", "test_files.py"),
    Mutant("runtime/files.py", "replaced_files", "sync(folder)", "pass", "test_files.py"),
    Mutant(
        "runtime/files.py",
        "_private_folder",
        "if _is_temporary(entry.name, path):\n    shutil.rmtree(entry, ignore_errors=True)",
        "pass",
        "test_files.py",
    ),
    Mutant("runtime/files.py", "sync", "os.fsync(descriptor)", "pass", "test_files.py"),
    Mutant("runtime/files.py", "replaced_file", "os.fsync(descriptor)", "pass", "test_files.py"),
    Mutant("runtime/files.py", "replaced_path", "sync(temporary)", "pass", "test_files.py"),
    Mutant("runtime/files.py", "_temporary_path", "secrets.token_hex(4)", "'0123abcd'", "test_files.py"),
    Mutant(
        "train_utils/checkpoints/best_model.py",
        "BestModel._write",
        "network.save_pretrained(folder)",
        "network.save_pretrained(self.folder)",
        "test_checkpoints.py",
    ),
    Mutant(
        "inference/outputs/images.py",
        "ImageWriter._output_files",
        "replaced_file(job.file(extension))",
        "job.file(extension).open('wb')",
        "test_predict_device.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints._prune",
        "isinstance(score, int | float)",
        "score",
        "test_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints._prune",
        "[path for path in newest_first(self.folder) if (path / MANIFEST).exists()]",
        "newest_first(self.folder)",
        "test_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints.save",
        "run = replace(run, best=-1.0)",
        "pass",
        "test_checkpoints.py",
    ),
    Mutant("train_utils/checkpoints/save.py", "Checkpoints.resume", "run.forget_best()", "pass", "test_checkpoints.py"),
    Mutant(
        "train_utils/checkpoints/find.py",
        "_with_its_best",
        "best_step > state.run.step",
        "best_step >= state.run.step",
        "test_checkpoints.py",
    ),
    Mutant(
        "train.py",
        "main",
        "checkpoints.save(state, evaluation)",
        "checkpoints.save(state, None)",
        "test_checkpoints.py",
    ),
    Mutant(
        "train.py",
        "main",
        "schedule.saves(state.step) or schedule.is_over(state) or improved or guard.stopping",
        "schedule.saves(state.step) or schedule.is_over(state) or guard.stopping",
        "test_checkpoints.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme_mask.py",
        "draw_shape",
        "level > 0",
        "level > 127",
        "test_annotations_labelme.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme.py",
        "load",
        "dict.fromkeys(BACKGROUND_NAMES, 0)",
        "{}",
        "test_annotations_labelme.py",
    ),
    Mutant(
        "data_utils/analysis/label_warnings.py",
        "_mixed_binary_encodings",
        "all_values == {0, 1, IGNORE_INDEX}",
        "all_values >= {0, 1, IGNORE_INDEX}",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/analysis/label_warnings.py",
        "label_warnings",
        "class_map is not None and not ignored",
        "class_map is not None",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/sources/annotations/voc.py",
        "_is_original",
        "all(re.fullmatch('20\\\\d\\\\d_\\\\d{6}', stem) for stem in stems)",
        "any(re.fullmatch('20\\\\d\\\\d_\\\\d{6}', stem) for stem in stems)",
        "test_annotations_folders.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme.py",
        "find",
        "any(_holds_shapes(files) for _, files in splits.values())",
        "all(_holds_shapes(files) for _, files in splits.values())",
        "test_annotations_labelme.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "PairedRecords.digest",
        "range(len(self))",
        "range(1)",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "PairedRecords.digest",
        "[path for path in self.paths(i) if path]",
        "[self.paths(i)[1]]",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "PairedRecords.digest",
        "[drawn, *self.files[0], *self.files[1]]",
        "[drawn]",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "data_utils/sources/volumes.py",
        "VolumeRecords.digest",
        "paths += case.images",
        "paths += case.images[:1]",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/sources/volumes.py",
        "VolumeRecords.digest",
        "(self.cases, self.spacing)",
        "self.cases",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/sources/volumes.py",
        "read_description",
        "all(isinstance(name, str) for name in labels.values())",
        "any(isinstance(name, str) for name in labels.values())",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/sources/folder.py",
        "detect_suffix.is_common",
        "all(stem.endswith(ending) for stem in masks)",
        "any(stem.endswith(ending) for stem in masks)",
        "test_sources.py",
    ),
    Mutant(
        "runtime/cache.py",
        "_size_and_time",
        "stat.st_size, stat.st_mtime_ns",
        "0, stat.st_mtime_ns",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "DatasetInfo.fingerprint",
        "[len(split), names, rows_as_text(split.sizes)]",
        "[len(split), rows_as_text(split.sizes)]",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "DatasetInfo.fingerprint",
        "(self.train, self.val)",
        "(self.train,)",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/sources/tiff_stacks.py",
        "pair_pages",
        "is_tiff(image) or is_tiff(mask)",
        "is_tiff(image) and is_tiff(mask)",
        "test_sources.py",
    ),
    Mutant(
        "data_utils/analysis/label_warnings.py",
        "label_warnings",
        "class_map is not None and not ignored",
        "class_map is not None and not ignored and not named",
        "test_annotations_folders.py",
    ),
    Mutant(
        "data_utils/sources/hf_datasets.py",
        "HFRecords.__init__",
        "digest(self.fingerprint, self.columns)",
        "digest(self.columns)",
        "test_sources.py",
    ),
    # keys, modes, seeds, groups, crops, published numbers
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "digest(*kind, how, resampled, content, *self.reader.key, self.split.bad)",
        "digest(*kind, how, resampled, content, self.split.bad)",
        "test_decoded_cache.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "digest(*kind, how, resampled, content, *self.reader.key, self.split.bad)",
        "digest(*kind, how, resampled, content, *self.reader.key)",
        "test_decoded_cache.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "(type(self).__name__, self.target.__name__)",
        "(type(self).__name__,)",
        "test_decoded_cache.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "preprocess.scale",
        "None",
        "test_decoded_cache.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "preprocess.draft",
        "None",
        "test_decoded_cache.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py", "SegmentationDataset.cache", "self.channels", "None", "test_decoded_cache.py"
    ),
    Mutant(
        "data_utils/targets/classes.py",
        "ClassReader.key",
        "(class_map.values, class_map.ignore_value)",
        "(class_map.ignore_value,)",
        "test_decoded_cache.py",
    ),
    Mutant(
        "runtime/cache.py",
        "_size_and_time",
        "(stat.st_size, stat.st_mtime_ns)",
        "(0, stat.st_mtime_ns)",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/analysis/inspectors.py", "Inspector._key", "(windows, False)", "(windows,)", "test_dataset_info.py"
    ),
    Mutant(
        "data_utils/analysis/normalization.py",
        "measure_normalization",
        "digest('normalization', records.digest, windows, sample)",
        "digest('normalization', records.digest, windows)",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/analysis/normalization.py",
        "measure_normalization",
        "digest('normalization', records.digest, windows, sample)",
        "digest('normalization', records.digest, sample)",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/sources/records.py",
        "Subset.digest",
        "digest(whole, self.indices.tobytes())",
        "digest(whole, len(self.indices))",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "DatasetInfo.fingerprint",
        "[len(split), names, rows_as_text(split.sizes)]",
        "[len(split), names]",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/sources/volumes.py",
        "VolumeRecords.digest",
        "(self.cases, self.spacing)",
        "(self.cases,)",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/sources/volumes.py",
        "VolumeRecords.digest",
        "paths += case.images",
        "pass",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/sources/volume_slices.py",
        "SliceRecords.__init__",
        "digest('slices', volumes.digest)",
        "volumes.digest",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco.py",
        "CocoRecords.digest",
        "paths.append(os.path.join(self.folder, os.fsdecode(name.item())))",
        "pass",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "PairedRecords.digest",
        "[path for path in self.paths(i) if path]",
        "[path for path in self.paths(i)[:1] if path]",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "inference/provenance.py",
        "",
        "('config.json', 'model.safetensors')",
        "('model.safetensors',)",
        "test_predict_outputs.py",
    ),
    Mutant(
        "inference/provenance.py",
        "_checksum",
        "zlib.crc32(chunk, checksum)",
        "zlib.crc32(chunk)",
        "test_predict_outputs.py",
    ),
    Mutant("inference/provenance.py", "provenance_of", "args.scale", "None", "test_predict_outputs.py"),
    Mutant("train_utils/settings/record.py", "resolve_settings", "args.optimizer", "None", "test_resume.py"),
    Mutant("train.py", "evaluate", "model.eval()", "pass", "test_train.py"),
    Mutant("train.py", "main", EVALUATION_IN_TRAINING + "    model.train()", EVALUATION_IN_TRAINING, "test_train.py"),
    Mutant(
        "train_utils/ema.py",
        "WeightAverage.applied",
        "for name, value in own_values.items():\n    self._live[name].copy_(value)",
        "pass",
        "test_train.py",
    ),
    Mutant(
        "train_utils/ema.py",
        "WeightAverage.applied",
        "{name: self._live[name].clone() for name in self.tensors}",
        "{name: self._live[name] for name in self.tensors}",
        "test_train.py",
    ),
    Mutant(
        "train_utils/ema.py",
        "WeightAverage.__init__",
        "value.is_floating_point()",
        "value.is_floating_point() and 'running' not in name",
        "test_train.py",
    ),
    Mutant("runtime/distributed.py", "seed_step", "[seed, step, process]", "[step, process]", "test_train.py"),
    Mutant("runtime/distributed.py", "seed_step", "[seed, step, process]", "[seed, step]", "test_train.py"),
    Mutant("train.py", "main", "accelerator.process_index", "0", "test_train.py"),
    Mutant("data_utils/sources/holdout.py", "_groups", "1 if expression.groups else 0", "0", "test_dataset_info.py"),
    Mutant(
        "data_utils/sources/holdout.py",
        "_groups",
        "1 if expression.groups else 0",
        "expression.groups",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/loading/crop.py",
        "crop_window",
        "pixels[int(pixel_share * len(pixels))]",
        "pixels[0]",
        "test_crops.py",
    ),
    Mutant("data_utils/loading/crop.py", "crop_window", "label != unknown", "True", "test_crops.py"),
    Mutant(
        "data_utils/loading/crop.py",
        "crop_around",
        "locations[int(pixel_share * len(locations))]",
        "locations[0]",
        "test_crops.py",
    ),
    Mutant("data_utils/loading/crop.py", "_starts_around", "int(share * want)", "want // 2", "test_crops.py"),
    Mutant(
        "data_utils/loading/crop.py", "_starts_around", "int(share * want)", "int(share * want) + 1", "test_crops.py"
    ),
    Mutant(
        "data_utils/loading/crop.py", "_starts_around", "int(share * want)", "int(share * (want - 1))", "test_crops.py"
    ),
    Mutant(
        "data_utils/loading/crop.py", "_starts_around", "int(share * want)", "int(shares[0] * want)", "test_crops.py"
    ),
    Mutant(
        "data_utils/loading/crop.py",
        "_starts_around",
        "int(np.clip(start, 0, max(have - want, 0)))",
        "int(np.clip(start, 0, max(have - want - 1, 0)))",
        "test_crops.py",
    ),
    Mutant(
        "data_utils/loading/crop.py",
        "_starts_around",
        "int(np.clip(start, 0, max(have - want, 0)))",
        "max(start, 0)",
        "test_crops.py",
    ),
    Mutant(
        "data_utils/loading/crop.py", "_draw", "max(have - want, 0) + 1", "max(have - want, 0) or 1", "test_crops.py"
    ),
    Mutant("data_utils/loading/crop.py", "", "1 / 3", "1 / 2", "test_crops.py"),
    Mutant("data_utils/loading/batch_sampler.py", "stream_batches", "[seed, epoch]", "[0, epoch]", "test_streams.py"),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "stream_batches",
        "rng.permutation(len(lengths))",
        "range(len(lengths))",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "TrainingSampler.batches",
        "stream_batches(self.group_sizes, shape, self.split.batch_size, self.seed, epoch)",
        "stream_batches(self.group_sizes, shape, self.split.batch_size, 0, epoch)",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "TrainingSampler.batches",
        "stream_batches(self.group_sizes, shape, self.split.batch_size, self.seed, epoch)",
        "stream_batches(self.group_sizes, shape, self.split.batch_size, self.seed, 0)",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/loading/loaders.py",
        "",
        "STREAM_WORKERS = (0, 1, 2, 4)",
        "STREAM_WORKERS = (0, 1, 2, 3, 4)",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/sources/streams/remote.py",
        "content_key",
        "digest(_without_query(file), info['size'], versions)",
        "digest(_without_query(file), info['size'])",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/sources/streams/remote.py",
        "_may_pass",
        "isinstance(error, OSError) and not isinstance(error, LASTING)",
        "isinstance(error, OSError)",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/sources/holdout.py",
        "hold_out_shards",
        "np.random.default_rng(seed)",
        "np.random.default_rng(0)",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "sample_stream",
        "np.random.default_rng(config.seed)",
        "np.random.default_rng(0)",
        "test_streams.py",
    ),
    Mutant(
        "train_utils/reporting/report.py", "_middle", "median(values)", "sum(values) / len(values)", "test_report.py"
    ),
    Mutant(
        "train_utils/reporting/report.py",
        "_speed",
        "max((value for _, value in memory))",
        "memory[-1][1]",
        "test_report.py",
    ),
    Mutant("train_utils/reporting/report.py", "_speed", "1000.0 * teraflops", "teraflops", "test_report.py"),
    Mutant(
        "train_utils/reporting/classes.py",
        "ClassSection.markdown",
        "[values[metric][index] for metric in METRICS]",
        "[values[metric][index] for metric in ('iou', 'dice', 'recall', 'precision')]",
        "test_report.py",
    ),
    Mutant(
        "train_utils/reporting/classes.py",
        "",
        "('iou', 'dice', 'precision', 'recall')",
        "('iou', 'dice', 'recall', 'precision')",
        "test_report.py",
    ),
    Mutant("train_utils/monitoring/throughput.py", "", "ENOUGH_STEPS = 20", "ENOUGH_STEPS = 10", "test_throughput.py"),
    Mutant("train_utils/monitoring/throughput.py", "", "MUCH_WAITING = 20", "MUCH_WAITING = 19", "test_throughput.py"),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.summary",
        "max(windows, key=lambda times: times.data)",
        "windows[0]",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.summary",
        "self.accelerator.num_processes",
        "1",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.bottleneck",
        "self._shares(self._total)",
        "self._shares(self._window)",
        "test_throughput.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "epoch_batches",
        "rng.permutation(math.ceil(len(sequence) / batch_size))",
        "np.arange(math.ceil(len(sequence) / batch_size))",
        "test_batch_sampler.py",
    ),
    Mutant("data_utils/loading/draws.py", "draw", "min(size) / 32", "min(size) / 4", "test_augment.py"),
    Mutant("inference/tiling/cuts.py", "_weights", "8 * position", "4 * position", "test_tiling.py"),
    Mutant("train_utils/ema.py", "WeightAverage.update", "(1 + step) / (10 + step)", "0.9", "test_optim.py"),
    Mutant("runtime/cli.py", "fold", "1 <= number <= folds", "0 <= number <= folds", "test_cli.py"),
    Mutant("runtime/cli.py", "run_script", "code = 128 + signal.SIGINT", "code = 1", "test_cli.py"),
    Mutant("runtime/console.py", "first_few", "len(texts) > count", "len(texts) >= count", "test_console.py"),
    Mutant(
        "runtime/console.py",
        "say_error",
        "seen_by_all and not is_first_process()",
        "not is_first_process()",
        "test_console.py",
    ),
    Mutant("runtime/launch.py", "describe_profile", "int(str(steps)) > 1", "int(str(steps)) >= 1", "test_profiles.py"),
    Mutant(
        "runtime/parallel.py", "default_workers", "1 if share > 1 else 0", "1 if share >= 1 else 0", "test_parallel.py"
    ),
    Mutant(
        "unet/config.py",
        "Preprocess.target_size",
        "max(1, int(height * self.scale))",
        "max(1, round(height * self.scale))",
        "test_preprocess.py",
    ),
    Mutant(
        "unet/norms.py",
        "_GroupNorm.forward",
        "(squares - means**2).clamp_min(0)",
        "squares - means**2",
        "test_norms.py",
    ),
    Mutant(
        "tasks/classes.py",
        "Classes.from_config",
        "config.preprocess.class_values or range(config.num_classes)",
        "range(config.num_classes)",
        "test_evaluation.py",
    ),
    Mutant(
        "tasks/classes.py",
        "ClassScores.add",
        "self.by_image[index, 0] += image_iou(matrix)",
        "self.by_image[index, 0] = image_iou(matrix)",
        "test_evaluation.py",
    ),
    Mutant("tasks/confusion.py", "summary_line", "present_classes > 1", "present_classes >= 1", "test_metrics.py"),
    Mutant("tasks/confusion.py", "format_table", "matrix[index].sum()", "matrix[:, index].sum()", "test_metrics.py"),
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "sample_stream",
        "pixels | {IGNORE_INDEX: pixels.get(IGNORE_INDEX, 0)}",
        "pixels",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/analysis/normalization.py",
        "channel_statistics",
        "np.where(std > 0, std, 1.0)",
        "std",
        "test_normalization.py",
    ),
    Mutant(
        "data_utils/analysis/normalization.py",
        "channel_statistics",
        "len(image.values) in (1, usual)",
        "len(image.values) == usual",
        "test_normalization.py",
    ),
    Mutant(
        "data_utils/analysis/volume_findings.py",
        "target_spacing",
        "np.delete(target, coarsest).max()",
        "np.delete(target, coarsest).min()",
        "test_volume_findings.py",
    ),
    Mutant(
        "data_utils/analysis/volume_findings.py",
        "VolumeFindings.usable_spacings",
        "np.median(self.spacings[is_known], axis=0)",
        "np.median(self.spacings, axis=0)",
        "test_volume_findings.py",
    ),
    Mutant(
        "data_utils/analysis/label_warnings.py",
        "_mixed_depths",
        "deep_modes < modes.keys()",
        "deep_modes <= modes.keys()",
        "test_label_warnings.py",
    ),
    Mutant(
        "data_utils/class_map.py", "ClassMap.decode", "max(numbers) < 256", "max(numbers) <= 256", "test_class_map.py"
    ),
    Mutant(
        "data_utils/image_io/resize.py",
        "linear",
        "taps + 0.5 - centers[:, None]",
        "taps - centers[:, None]",
        "test_volume_input.py",
    ),
    Mutant("data_utils/image_io/resize.py", "_as_uint8", "values.round()", "values", "test_preprocess.py"),
    Mutant(
        "data_utils/loading/loaders.py",
        "network_shapes",
        "2 * np.array(model.divisors)",
        "np.array(model.divisors)",
        "test_dataset.py",
    ),
    Mutant(
        "data_utils/loading/volume_input.py",
        "VolumeInput.__init__",
        "is_coarse[1]",
        "is_coarse[2]",
        "test_volume_input.py",
    ),
    Mutant(
        "data_utils/sources/hf_datasets.py", "find_columns", "'--mask-column'", "'--image-column'", "test_sources.py"
    ),
    Mutant(
        "data_utils/sources/volumes.py",
        "spacing_of",
        "_spacing_file(images, images.parent, images.parent.parent)",
        "_spacing_file(images.parent.parent, images.parent, images)",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/sources/streams/parquet.py", "ParquetRecords._row_name", "first + row", "row", "test_streams.py"
    ),
    Mutant(
        "data_utils/pack.py",
        "_size",
        "os.path.getsize(path) // pages[path]",
        "os.path.getsize(path)",
        "test_streams.py",
    ),
    # schedule, log, decisions of a run, report and prediction, in numbers and lines written out
    Mutant(
        "train_utils/schedule.py",
        "learning_rate",
        "max(1, total_steps - warmup_steps)",
        "max(1, total_steps)",
        "test_schedule.py",
    ),
    Mutant("train_utils/schedule.py", "learning_rate", "(1 - done) ** 0.9", "(1 - done) ** 1.0", "test_schedule.py"),
    Mutant(
        "train_utils/schedule.py",
        "Schedule.from_args",
        "math.ceil(images / args.batch_size)",
        "images // args.batch_size",
        "test_schedule.py",
    ),
    Mutant(
        "train_utils/schedule.py",
        "Schedule.from_args",
        "1.0 if args.encoder_weights == 'random' else 0.1",
        "0.1",
        "test_schedule.py",
    ),
    Mutant("train_utils/schedule.py", "Schedule.evaluates", "self.is_last(step)", "False", "test_schedule.py"),
    Mutant("train_utils/schedule.py", "Schedule.pauses", "self.saves(step)", "False", "test_schedule.py"),
    Mutant(
        "train_utils/optim.py",
        "build_optimizer",
        "path.startswith('encoder.')",
        "path.startswith('head')",
        "test_schedule.py",
    ),
    Mutant(
        "train_utils/ema.py",
        "WeightAverage.restore",
        "load_file(file) if file.exists() else self._live",
        "self._live",
        "test_schedule.py",
    ),
    Mutant(
        "train_utils/run_state.py",
        "RunState.forget_best",
        "self.evaluations_since_best = 0",
        "pass",
        "test_schedule.py",
    ),
    Mutant(
        "train_utils/run_state.py", "RunState.best_evaluation", "self.best < 0", "self.best <= 0", "test_schedule.py"
    ),
    Mutant(
        "train_utils/run_state.py", "RunState.update", "self.best_step = evaluation.step", "pass", "test_schedule.py"
    ),
    Mutant("train_utils/monitoring/throughput.py", "LossWindow.mean", "self._steps = 0", "pass", "test_monitor.py"),
    Mutant(
        "train_utils/monitoring/monitor.py",
        "Monitor.close",
        "sorted(set(gather_object(sorted(self.problems))))",
        "sorted(self.problems)",
        "test_monitor.py",
    ),
    Mutant(
        "train_utils/monitoring/monitor.py",
        "Monitor.close",
        "not self.schedule.is_last(self.state.step)",
        "True",
        "test_monitor.py",
    ),
    Mutant("train_utils/monitoring/monitor.py", "", "SHOWN_PROBLEMS = 20", "SHOWN_PROBLEMS = 10", "test_monitor.py"),
    Mutant(
        "train_utils/monitoring/monitor.py",
        "Monitor.show",
        "self.state.best >= 0",
        "self.state.best > 0",
        "test_monitor.py",
    ),
    Mutant(
        "train_utils/monitoring/monitor.py",
        "Monitor.log_training",
        "self._has_named_bottleneck = True",
        "pass",
        "test_monitor.py",
    ),
    Mutant("train_utils/monitoring/flops.py", "peak_teraflops", "('fp16', 'bf16')", "('bf16',)", "test_monitor.py"),
    Mutant("train_utils/monitoring/profiler.py", "top_operators", "-pair[0]", "pair[0]", "test_monitor.py"),
    Mutant(
        "train_utils/monitoring/profiler.py",
        "top_operators",
        "row.device_type == DeviceType.CPU",
        "True",
        "test_monitor.py",
    ),
    Mutant("train_utils/monitoring/rehearsal.py", "", "MOST_STEPS = 40", "MOST_STEPS = 30", "test_monitor.py"),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "count_steps",
        "times.save / schedule.checkpoint_every",
        "times.save / schedule.eval_every",
        "test_monitor.py",
    ),
    Mutant("train_utils/monitoring/rehearsal.py", "", "LATE = 1.05", "LATE = 1.2", "test_monitor.py"),
    Mutant("train_utils/monitoring/rehearsal.py", "", "EARLY = 0.1", "EARLY = 0.05", "test_monitor.py"),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter._settle",
        "communication += self._seconds(*step.count)",
        "pass",
        "test_monitor.py",
    ),
    Mutant("train_utils/monitoring/tracking.py", "RunLog.scalars", "round(epoch, 4)", "epoch", "test_monitor.py"),
    Mutant(
        "train_utils/run_dir.py",
        "RunStart.minutes_to_fill",
        "args.max_minutes - before",
        "args.max_minutes",
        "test_run_decisions.py",
    ),
    Mutant(
        "train_utils/run_dir.py",
        "finished_line",
        "total_steps > done['total_steps']",
        "total_steps >= done['total_steps']",
        "test_run_decisions.py",
    ),
    Mutant("train_utils/microbatch.py", "split_batch", "min(size, saved_size)", "saved_size", "test_run_decisions.py"),
    Mutant(
        "train_utils/results.py",
        "finish_run",
        "best_model.is_saved() and push_to_hub(best_model.folder, args.push_to_hub) and all_saved",
        "best_model.is_saved() and push_to_hub(best_model.folder, args.push_to_hub)",
        "test_run_decisions.py",
    ),
    Mutant("train_utils/results.py", "facts", "model.config.dims == 2", "True", "test_run_decisions.py"),
    Mutant(
        "train_utils/checkpoints/find.py",
        "compare_settings",
        "key == CONTENT and before is None",
        "key == CONTENT",
        "test_run_decisions.py",
    ),
    Mutant(
        "train_utils/checkpoints/find.py",
        "compare_settings",
        "key == 'max_minutes' and value and before and value > before",
        "False",
        "test_run_decisions.py",
    ),
    Mutant(
        "train_utils/checkpoints/checkpoint_state.py",
        "CheckpointState.from_json",
        "value.get('score')",
        "None",
        "test_run_decisions.py",
    ),
    Mutant(
        "train_utils/settings/record.py",
        "RunSettings.from_json",
        "UNRECORDED | settings.identity",
        "settings.identity",
        "test_run_decisions.py",
    ),
    Mutant(
        "train_utils/settings/record.py",
        "say_credentials",
        "flags[name] != recorded_flags[name]",
        "False",
        "test_run_decisions.py",
    ),
    Mutant(
        "train_utils/monitoring/monitor.py",
        "Monitor.data_ready",
        "self.problems.update(batch.pop('problems'))",
        "self.problems = set(batch.pop('problems'))",
        "test_monitor.py",
    ),
    Mutant(
        "train_utils/run_dir.py",
        "finished_line",
        "total_steps > done['total_steps'] and not args.max_minutes",
        "total_steps > done['total_steps']",
        "test_run_decisions.py",
    ),
    Mutant("train_utils/reporting/judgement.py", "", "FEW_STEPS = 500", "FEW_STEPS = 501", "test_reporting.py"),
    Mutant("train_utils/reporting/judgement.py", "", "FEW_IMAGES = 10", "FEW_IMAGES = 9", "test_reporting.py"),
    Mutant("train_utils/reporting/judgement.py", "", "RISEN = 1.1", "RISEN = 1.0", "test_reporting.py"),
    Mutant("train_utils/reporting/judgement.py", "", "GAIN = 0.01", "GAIN = 0.02", "test_reporting.py"),
    Mutant("train_utils/reporting/judgement.py", "_rising", "len(values) // QUARTERS", "1", "test_reporting.py"),
    Mutant("train_utils/reporting/judgement.py", "_overfitting", "after >= before", "False", "test_reporting.py"),
    Mutant("train_utils/reporting/classes.py", "", "CONFUSIONS = 8", "CONFUSIONS = 7", "test_reporting.py"),
    Mutant("train_utils/reporting/classes.py", "", "FOLDED = 4", "FOLDED = 5", "test_reporting.py"),
    Mutant(
        "train_utils/reporting/classes.py",
        "occurring",
        "(counts.sum(axis=0) + counts.sum(axis=1)) > 0",
        "counts.sum(axis=1) > 0",
        "test_reporting.py",
    ),
    Mutant(
        "train_utils/reporting/classes.py",
        "ClassSection.unfound",
        "(counts.sum(axis=1) > 0) & (counts.diagonal() == 0)",
        "counts.diagonal() == 0",
        "test_reporting.py",
    ),
    Mutant(
        "train_utils/reporting/report.py", "_tiles", "records[-1]['step']", "records[0]['step']", "test_reporting.py"
    ),
    Mutant("train_utils/reporting/report.py", "_epochs", "epochs[-1]", "epochs[0]", "test_reporting.py"),
    Mutant("train_utils/reporting/report.py", "_speed", "processes == 1", "processes != 1", "test_reporting.py"),
    Mutant("train_utils/reporting/report.py", "_flags", "flags.pop('epochs', None)", "pass", "test_reporting.py"),
    Mutant("train_utils/reporting/samples.py", "", "VOLUMES = 2", "VOLUMES = 3", "test_reporting.py"),
    Mutant("train_utils/reporting/samples.py", "", "LONGEST_NAME = 200", "LONGEST_NAME = 100", "test_reporting.py"),
    Mutant("train_utils/reporting/samples.py", "_file_below", "parts or ['image']", "parts", "test_reporting.py"),
    Mutant("train_utils/reporting/hub.py", "push_to_hub", "return False", "return True", "test_reporting.py"),
    Mutant("train_utils/reporting/hub.py", "push_to_hub", "url.repo_id", "repo_id", "test_reporting.py"),
    Mutant("train_utils/reporting/embedding.py", "", "MIN_SIDE = 8", "MIN_SIDE = 16", "test_reporting.py"),
    Mutant(
        "train_utils/reporting/model_card.py", "model_card", "names.extend(ENCODER_FLAGS)", "pass", "test_reporting.py"
    ),
    Mutant("inference/decoding/views.py", "averaged_views", "(batch.ndim - 1,)", "(2,)", "test_prediction_rules.py"),
    Mutant(
        "inference/outputs/writer.py",
        "PredictionWriter.is_finished",
        "max(Path(path).stat().st_mtime for path in job.files)",
        "min(Path(path).stat().st_mtime for path in job.files)",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/outputs/writer.py",
        "PredictionWriter.is_finished",
        "file.st_mtime >= begun",
        "file.st_mtime > begun",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/predictor.py",
        "Predictor.tilings",
        "tiling is not None and self.tta",
        "False",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/scoring/volume.py",
        "VolumeScore.to_json",
        "by_class['dice'][1:]",
        "by_class['dice']",
        "test_prediction_rules.py",
    ),
    Mutant("inference/scoring/volume.py", "surface_scores", "both <= mm", "both < mm", "test_prediction_rules.py"),
    Mutant(
        "inference/scoring/volume.py",
        "case_report",
        "case['dice'][index] is not None",
        "case['dice'][index]",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/tiling/planning.py",
        "_plan_image",
        "overlap >= 2 * needed",
        "overlap >= needed",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/tiling/planning.py",
        "_plan_image",
        "up(overlap, 2 * grid)",
        "up(overlap, grid)",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/batches.py",
        "share_of",
        "pixels[least] += sum(job.pixels for job in batch)",
        "pass",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/batches.py",
        "batches_of",
        "taken + Fraction(1, count) > 1",
        "taken + Fraction(1, count) >= 1",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/provenance.py",
        "record_provenance",
        "{'complete': not overwrite}",
        "{'complete': True}",
        "test_prediction_rules.py",
    ),
    Mutant("inference/provenance.py", "provenance_of", "args.tta", "None", "test_prediction_rules.py"),
    Mutant("predict.py", "_order", "score is None, score or 0.0", "False, score or 0.0", "test_prediction_rules.py"),
    Mutant("predict.py", "", "WORST = 5", "WORST = 6", "test_prediction_rules.py"),
    Mutant(
        "predict.py",
        "Failure.leaves_old_mask",
        "self.has_mask and not self.is_written",
        "self.has_mask",
        "test_prediction_rules.py",
    ),
    Mutant("predict.py", "close_output", "is_complete", "True", "test_prediction_rules.py"),
    Mutant(
        "data_utils/analysis/validate.py",
        "odd_channels",
        "count > 1 or not grey_fits",
        "count > 1",
        "test_input_rules.py",
    ),
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "DatasetInfo.preprocess",
        "self.config.augment == 'strong'",
        "self.config.augment != 'none'",
        "test_input_rules.py",
    ),
    Mutant("data_utils/loading/draws.py", "_draw_volume", "flips[1:] = 1.0", "flips[:2] = 1.0", "test_input_rules.py"),
    Mutant("data_utils/loading/draws.py", "", "ALIKE = 2", "ALIKE = 8", "test_input_rules.py"),
    Mutant(
        "data_utils/loading/draws.py",
        "_draw_volume",
        "lower_resolution < 0.25",
        "lower_resolution < 0.5",
        "test_input_rules.py",
    ),
    Mutant(
        "data_utils/loading/image_input.py",
        "ImageInput.slab",
        "self._is_unit_range",
        "self.preprocess.detect_unit_range and not (pixels > 1).any()",
        "test_input_rules.py",
    ),
    Mutant(
        "data_utils/loading/image_input.py",
        "fit_channels",
        "(pixels == pixels[:, :, :1]).all()",
        "True",
        "test_input_rules.py",
    ),
    Mutant(
        "train_utils/settings/flags.py",
        "parse_args",
        "settings.like or settings.init_from",
        "settings.like",
        "test_plan.py",
    ),
    Mutant(
        "train_utils/settings/like.py",
        "repeated_arguments",
        "{'init_from', 'encoder'}",
        "{'init_from'}",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/like.py",
        "repeated_arguments",
        "action.option_strings[-1]",
        "action.option_strings[0]",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/record.py", "resolve_settings", "args.deep_supervision", "None", "test_starting_rules.py"
    ),
    Mutant(
        "train_utils/settings/record.py",
        "resolve_settings",
        "split.accumulation",
        "split.micro_batch_size",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/starting_point.py",
        "",
        "BASE_CHANNELS = 16",
        "BASE_CHANNELS = 32",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/starting_point.py",
        "starting_point",
        "value not in (None, own_value)",
        "False",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/encoder.py",
        "read_normalization",
        "settings.get('do_normalize') is False",
        "False",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/encoder.py",
        "read_license",
        "isinstance(license, str)",
        "license",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/encoder.py",
        "with_channels",
        "config['stem_channels'][1:]",
        "config['stem_channels']",
        "test_starting_rules.py",
    ),
    Mutant("train_utils/run_dir.py", "RunStart.plan", "decided.pop('epochs', None)", "pass", "test_starting_rules.py"),
    Mutant(
        "train_utils/settings/plan.py",
        "check_axes",
        "crop and len(crop) != dims",
        "crop and len(crop) < dims",
        "test_starting_rules.py",
    ),
    Mutant(
        "train_utils/settings/plan.py",
        "_as_flag",
        "f'--{flag}' if value else f'--no-{flag}'",
        "f'--{flag}'",
        "test_starting_rules.py",
    ),
    Mutant("train.py", "main", "state.window = monitor.window.saved()", "pass", "test_accounts.py"),
    Mutant(
        "train.py",
        "main",
        "training_flops(model, info.channels) * shapes.mean_pixels",
        "training_flops(model, info.channels)",
        "test_accounts.py",
    ),
    Mutant("train.py", "main", "len(info.train) / schedule.steps_per_epoch", "split.batch_size", "test_accounts.py"),
    Mutant("train.py", "main", "args.ema_decay > 0", "False", "test_accounts.py"),
    Mutant(
        "train.py",
        "main",
        "schedule.set_learning_rate(optimizer, state.step)",
        "schedule.set_learning_rate(optimizer, state.step + 1)",
        "test_accounts.py",
    ),
    Mutant(
        "train_utils/reporting/samples.py",
        "sample_panels",
        "[index for index in range(len(info.val)) if index not in info.val.bad]",
        "list(range(len(info.val)))",
        "test_reporting.py",
    ),
    Mutant(
        "train_utils/run_dir.py",
        "RunStart.largest_micro_batch",
        "if self.limit.micro_batch_size:\n    return self.limit.micro_batch_size",
        "pass",
        "test_run_decisions.py",
    ),
    # documents, locks and memory, in numbers and lines written out
    Mutant("runtime/lock.py", "_read_owner", "owner or 'another run'", "owner", "test_lock.py"),
    Mutant("runtime/documents.py", "", "MOST_LEVELS = 64", "MOST_LEVELS = 32", "test_documents.py"),
    Mutant("runtime/documents.py", "", "MOST_DIGITS = 300", "MOST_DIGITS = 400", "test_documents.py"),
    Mutant(
        "tasks/step_loss.py",
        "StepLoss.__call__",
        "torch.where(counts > 0, counts, 1)",
        "counts.clamp_min(1)",
        "test_losses.py",
    ),
    Mutant("train_utils/tuning.py", "", "ENOUGH_STEPS = 1000", "ENOUGH_STEPS = 500", "test_memory_rules.py"),
    Mutant("train_utils/tuning.py", "KernelTuning.from_args", "steps / len(shapes)", "steps", "test_memory_rules.py"),
    Mutant(
        "train_utils/tuning.py",
        "KernelTuning.from_args",
        "total_steps is None and args.max_minutes",
        "args.max_minutes",
        "test_memory_rules.py",
    ),
    Mutant(
        "train_utils/preflight.py",
        "preflight",
        "chosen.processes * chosen.accumulation",
        "chosen.processes",
        "test_memory_rules.py",
    ),
    Mutant("train_utils/preflight.py", "preflight", "math.ceil(size / parts)", "size // parts", "test_memory_rules.py"),
    Mutant(
        "train_utils/preflight.py",
        "preflight",
        "agreed < size or network.activation_checkpointing",
        "agreed < size",
        "test_memory_rules.py",
    ),
    Mutant("train_utils/preflight.py", "", "LOGITS_COPIES = 4", "LOGITS_COPIES = 3", "test_memory_rules.py"),
    Mutant(
        "train_utils/step_memory.py",
        "StepMemory.__init__",
        "can_repeat_steps(accelerator) and not split.fixed",
        "can_repeat_steps(accelerator)",
        "test_memory_rules.py",
    ),
    Mutant(
        "train_utils/step_memory.py",
        "StepMemory.cut",
        "micro_batch.targets.at(place)",
        "micro_batch.targets",
        "test_memory_rules.py",
    ),
    # outlines, legends, files held out, and sizes of masks that are scored
    Mutant("data_utils/visualize.py", "contours", "is_contour & (mask != 0)", "is_contour", "test_visualize.py"),
    Mutant(
        "data_utils/visualize.py",
        "outlined_overlay",
        "lines[is_alike & is_dark] = 255",
        "lines[is_alike & is_dark] = 0",
        "test_visualize.py",
    ),
    Mutant("data_utils/visualize.py", "outlined_overlay", "3 * 128", "3 * 64", "test_visualize.py"),
    Mutant(
        "data_utils/sources/holdout.py",
        "hold_out_shards",
        "min(enough, len(files) - 1)",
        "enough",
        "test_input_rules.py",
    ),
    Mutant(
        "data_utils/visualize.py",
        "legend",
        "(4, top + 4, LINE - 5, top + LINE - 5)",
        "(4, top + 4, LINE - 5, top + 5)",
        "test_visualize.py",
    ),
    Mutant("runtime/parallel.py", "workers_ended", "worker not in earlier", "True", "test_parallel.py"),
    Mutant(
        "inference/scoring/truth.py",
        "ImageScorer.score",
        "mask.check_size((height, width))",
        "pass",
        "test_prediction_rules.py",
    ),
    Mutant(
        "inference/scoring/truth.py",
        "MaskRows.check_proportions",
        "not same_proportions(self.size, image)",
        "False",
        "test_prediction_rules.py",
    ),
    Mutant("data_utils/analysis/validate.py", "name_values", "'(ignored)'", "''", "test_input_rules.py"),
]


def change(folder: Path, mutant: Mutant) -> None:
    """Put a mutant into a copy of the repository."""
    file = folder / mutant.file
    source = rewrite(file.read_text(encoding="utf-8"), mutant.place, mutant.before, mutant.after)
    if source is None:
        raise SystemExit(f"mutants: {mutant.file}: {mutant.place} has no single {mutant.before!r}: correct the list")
    file.write_text(source, encoding="utf-8")


def fails(folder: Path, tests: list[str]) -> bool:
    """Whether some of these test files, or any where none are named, fail in the copy."""
    command = [sys.executable, "-m", "pytest", "-x", "-q"]
    if tests:
        command += ["-n", "0"]
    for test in tests:
        (path,) = (folder / "tests").rglob(test)
        command.append(str(path.relative_to(folder)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return True  # it hangs, which nobody overlooks
    if done.returncode not in (0, 1, 2):  # 2: interrupted, an import that fails
        raise SystemExit(f"mutants: {' '.join(command)} ended with {done.returncode}:\n{done.stdout.decode()}")
    return done.returncode != 0


def is_noticed(mutant: Mutant, folder: Path, *, whole_suite: bool) -> bool:
    """Whether tests fail in a copy of the repository below `folder` that has the mutant."""
    copy = Path(tempfile.mkdtemp(dir=folder)) / "copy"
    shutil.copytree(ROOT, copy, ignore=IGNORED)
    change(copy, mutant)
    noticed = fails(copy, mutant.tests.split()) or (whole_suite and fails(copy, []))
    shutil.rmtree(copy)
    return noticed


def main() -> None:
    """Exit code 1 if more than ALLOWED survive."""
    chosen = [int(number) for number in sys.argv[1:]] or [*range(len(MUTANTS))]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        for number in chosen:
            mutant = MUTANTS[number]
            noticed = is_noticed(mutant, Path(folder), whole_suite=True)
            survivors += [] if noticed else [number]
            what = " ".join(mutant.after.split())[:80]
            print(f"{number:3} {'noticed ' if noticed else 'SURVIVED'} {mutant.file}: {what}", flush=True)
    print(f"{len(survivors)} of {len(chosen)} survived: {survivors}")
    sys.exit(len(survivors) > ALLOWED)


if __name__ == "__main__":
    main()
