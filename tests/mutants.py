"""Mutants: one-line mistakes that the tests must notice.

    python tests/mutants.py            # every mutant against the tests named for it, survivors against the whole suite
    python tests/mutants.py 3 17       # only some, by number

Each mutant is put into a copy of the repository, where its tests are run with -x. Exit code 1 if more than ALLOWED
survive. `pytest -m slow tests/test_mutants.py` does the same without the whole suite.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = 3
SECONDS = 600  # for a mutant's own tests
IGNORED = shutil.ignore_patterns(".git", ".venv*", "runs", "__pycache__", ".*_cache", ".hypothesis")


class Mutant(NamedTuple):
    """A file, a text that stands in it once, what stands there instead, and the tests that should notice."""

    file: str
    before: str
    after: str
    tests: str


MUTANTS = [
    # train.py: flags and the step
    Mutant("train.py", "task(args.loss, args.class_weights)", "task(args.loss, None)", "test_flags.py"),
    Mutant("train.py", "task(args.loss, args.class_weights)", 'task("ce+dice", args.class_weights)', "test_flags.py"),
    Mutant("train.py", "deterministic=args.deterministic", "deterministic=False", "test_flags.py"),
    Mutant("train.py", "max_grad_norm or torch.inf", "torch.inf", "test_flags.py"),
    Mutant(
        "train.py",
        "torch.as_tensor(grad_norm, device=accelerator.device)",
        "torch.as_tensor(grad_norm)",
        "test_device.py",
    ),
    Mutant("train.py", "WeightAverage(network, args.ema_decay)", "WeightAverage(network, 0.0)", "test_flags.py"),
    Mutant(
        "train.py",
        "    is_made = guard.judge(loss, grad_norm, counts[-1])\n    optimizer.step()\n",
        "    optimizer.step()\n    is_made = guard.judge(loss, grad_norm, counts[-1])\n",
        "test_nan_guard.py",
    ),
    Mutant(
        "train.py",
        "criterion(logits, targets, counts[:-1])",
        "criterion(logits, targets, criterion.counts(targets))",
        "test_flags.py test_train.py",
    ),
    Mutant("train.py", '    loss = accelerator.reduce(loss, "sum")\n', "", "test_train.py"),
    Mutant(
        "train.py",
        'guard.settle(everything=device.type == "cpu" or schedule.pauses(state.step))',
        "guard.settle(everything=False)",
        "test_flags.py",
    ),
    Mutant("train.py", "share * accelerator.num_processes *", "share *", "test_equality.py test_train.py"),
    Mutant("train.py", "with monitor.paused(), average.applied():", "with monitor.paused():", "test_flags.py"),
    Mutant(
        "train.py",
        "seed_step(args.seed, state.step, accelerator.process_index)",
        "pass",
        "test_resume.py test_flags.py",
    ),
    Mutant(
        "train.py",
        "                    reduction.wait()",
        "                    counts.zero_()",
        "test_equality.py test_train.py",
    ),
    Mutant(
        "train.py",
        "sums = sums + criterion.sums(logits, target)",
        "sums = sums + 2 * criterion.sums(logits, target)",
        "test_published_numbers.py",
    ),
    Mutant(
        "train.py",
        "loss = (sums / counts.clamp_min(1)).sum()",
        "loss = (sums / counts.clamp_min(1)).mean()",
        "test_published_numbers.py",
    ),
    Mutant(
        "tasks/classes.py",
        "self.by_image[index, 0] += image_iou(matrix)",
        "self.by_image[0, 0] += image_iou(matrix)",
        "test_published_numbers.py",
    ),
    Mutant(
        "train.py",
        "accelerator.sync_gradients = not micro_batches",
        "accelerator.sync_gradients = True",
        "test_equality.py test_train.py",
    ),
    # schedule, optimizer, average, guard
    Mutant(
        "train_utils/schedule.py",
        "learning_rate(step, self.total_steps, self.peak, self.warmup_steps, self.kind)",
        'learning_rate(step, self.total_steps, self.peak, self.warmup_steps, "cosine")',
        "test_flags.py",
    ),
    Mutant(
        "train_utils/schedule.py",
        "total_steps // 20 if args.warmup_steps is None else args.warmup_steps",
        "total_steps // 20",
        "test_flags.py",
    ),
    Mutant(
        "train_utils/schedule.py",
        "        return peak * (step + 1) / warmup_steps",
        "        return peak * step / warmup_steps",
        "test_flags.py test_optim.py",
    ),
    Mutant(
        "train_utils/schedule.py",
        "state.evaluations_since_best >= self.patience",
        "state.evaluations_since_best > self.patience",
        "test_flags.py",
    ),
    Mutant("train_utils/optim.py", "decay = weight_decay if", "decay = 0.0 if", "test_flags.py"),
    Mutant("train_utils/optim.py", " and isinstance(module, DECAYED) else 0.0", " else weight_decay", "test_flags.py"),
    Mutant("data_utils/targets/classes.py", "* pixels)).sqrt()", "* pixels))", "test_optim.py test_flags.py"),
    Mutant("data_utils/targets/classes.py", "torch.where(pixels > 0, ", "torch.where(pixels >= 0, ", "test_optim.py"),
    Mutant("train_utils/optim.py", "nesterov=True", "nesterov=False", "test_flags.py"),
    Mutant("train_utils/ema.py", "min(self.decay, (1 + step) / (10 + step))", "self.decay", "test_flags.py"),
    Mutant("train_utils/ema.py", "weight = is_made * (", "weight = torch.ones(()) * (", "test_nan_guard.py"),
    Mutant(
        "train_utils/nan_guard.py",
        "self._values[:2].isfinite().all()",
        "self._values[1].isfinite()",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "torch.where(is_made, _joined(buffers), kept)",
        "_joined(buffers)",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "gather_object(indices)[:MOST_NAMES]",
        "gather_object(indices)",
        "test_nan_guard.py",
    ),
    Mutant("train_utils/nan_guard.py", "            _start_momentum(self._optimizer)\n", "", "test_nan_guard.py"),
    Mutant(
        "train_utils/nan_guard.py",
        "            self._in_a_row = 0\n            return\n",
        "            return\n",
        "test_nan_guard.py",
    ),
    Mutant(
        "train_utils/nan_guard.py",
        "if self.accelerator.scaler is not None and math.isfinite(result.loss):",
        "if self.accelerator.scaler is not None:",
        "test_half.py",
    ),
    Mutant(
        "train_utils/nan_guard.py", "            results += self.settle(everything=True)\n", "", "test_nan_guard.py"
    ),
    Mutant(
        "train_utils/sync_batchnorm.py", "(variances + (means - mean).square())", "variances", "test_sync_batchnorm.py"
    ),
    Mutant("train_utils/sync_batchnorm.py", "(count / (count - 1))", "1", "test_sync_batchnorm.py"),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "        dist.all_reduce(sums)\n        of_weight",
        "        of_weight",
        "test_sync_batchnorm.py",
    ),
    # checkpoints
    Mutant(
        "train_utils/checkpoints/save.py",
        "            with complete_folder(path) as folder:",
        "            for old in newest_first(self.folder)[self.keep - 1 :]:\n                shutil.rmtree(old)\n"
        "            with complete_folder(path) as folder:",
        "test_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "            if path != best:",
        "            if True:",
        "test_checkpoints.py test_resume.py",
    ),
    Mutant("train_utils/checkpoints/save.py", "complete[self.keep :]", "complete[self.keep + 1 :]", "test_flags.py"),
    Mutant(
        "train_utils/checkpoints/find.py",
        "            if fingerprint(path / name) != expected:",
        "            if False:",
        "test_resume.py",
    ),
    Mutant(
        "train_utils/run_state.py",
        "comparison > self.best",
        "comparison >= self.best",
        "test_flags.py",
    ),
    Mutant(
        "runtime/files.py",
        "        for path in (*temporary.iterdir(), temporary):\n            sync(path)\n",
        "",
        "test_checkpoints.py",
    ),
    Mutant(
        "runtime/files.py",
        "        temporary.replace(path)\n",
        "        shutil.copy(temporary, path)\n",
        "test_files.py",
    ),
    # what is published
    Mutant(
        "tasks/classes.py",
        "zip(self.names, values[metric], strict=True)",
        'zip(self.names, values["iou"], strict=True)',
        "test_published_numbers.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "window.images / window.seconds",
        "window.images / (window.seconds + window.data)",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "self._step.pauses.append((before, self._now()))",
        "pass",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "        self._step = _Marks(step.end)\n",
        "        self._step = _Marks(None)\n",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/monitor.py",
        '"train/loss": self.window.mean()',
        '"train/loss": 2 * (self.window.mean() or 0)',
        "test_flags.py",
    ),
    Mutant(
        "tasks/confusion.py",
        "dice = ratios(2 * hits, truth + predicted)",
        "dice = ratios(hits, truth + predicted)",
        "test_metrics.py",
    ),
    Mutant(
        "tasks/confusion.py",
        '"precision": ratios(hits, predicted)',
        '"precision": ratios(hits, truth)',
        "test_metrics.py",
    ),
    Mutant("tasks/confusion.py", "masks * num_classes + preds", "preds * num_classes + masks", "test_metrics.py"),
    Mutant("tasks/confusion.py", "cells * REPLICAS + replicas", "cells + replicas", "test_metrics.py"),
    # losses
    Mutant("tasks/classes.py", "(log_probs.exp() * valid.unsqueeze(1))", "log_probs.exp()", "test_losses.py"),
    Mutant("tasks/classes.py", "(log_truth.exp() * valid, truth)", "(log_truth.exp(), truth)", "test_losses.py"),
    Mutant("tasks/classes.py", ".view_as(valid) * valid", ".view_as(valid)", "test_losses.py"),
    Mutant("tasks/classes.py", "FOCAL_GAMMA = 2.0", "FOCAL_GAMMA = 1.0", "test_losses.py test_flags.py"),
    Mutant("tasks/classes.py", "(missed * (size > 0)).sum()", "missed.sum()", "test_losses.py"),
    # network
    Mutant(
        "unet/model.py",
        "self._pad(((images - self.mean) / self.std)",
        "self._pad((images - self.mean)",
        "test_model.py",
    ),
    Mutant("unet/recompute.py", "norm.momentum = 0.0", "norm.momentum = norm.momentum", "test_memory.py test_model.py"),
    Mutant("unet/norms.py", "* rstd / pixels - slope * mean", "* rstd / pixels", "test_norms.py"),
    Mutant("unet/norms.py", "if x.dtype.itemsize == 2:", "if x.dtype.itemsize <= 4:", "test_norms.py"),
    Mutant("unet/norms.py", " + means.var(2, correction=0, keepdim=True)", "", "test_norms.py"),
    # data: order, crops, masks, padding
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "    rng = np.random.default_rng([seed, epoch])\n    order = rng.permutation(len(shapes))",
        "    rng = np.random.default_rng([0, epoch])\n    order = rng.permutation(len(shapes))",
        "test_flags.py test_batch_sampler.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "    rng = np.random.default_rng([seed, epoch])\n    order = rng.permutation(len(shapes))",
        "    rng = np.random.default_rng([seed, 0])\n    order = rng.permutation(len(shapes))",
        "test_batch_sampler.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "slots[0]._replace(filler=True)] * (self.split.slots",
        "slots[0]] * (self.split.slots",
        "test_batch_sampler.py test_equality.py",
    ),
    Mutant(
        "data_utils/image_io/resize.py",
        "((2 * np.arange(want) + 1) * have) // (2 * want)",
        "(np.arange(want) * have) // want",
        "test_dataset.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "padded_target = self.target.unknown(shape)",
        "padded_target = self.target.unknown(shape).map(np.zeros_like)",
        "test_dataset.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "self.target.unknown(target.shape) if slot.filler else target",
        "target",
        "test_dataset.py test_equality.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "[self.config.seed, slot.epoch, slot.index, 1]",
        "[self.config.seed, slot.index, 1]",
        "test_dataset.py test_crops.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "strength=self.config.augment",
        'strength="basic"',
        "test_dataset.py test_flags.py",
    ),
    Mutant("data_utils/loading/crop.py", "CROPS_AROUND_CLASS = 1 / 3", "CROPS_AROUND_CLASS = 0", "test_crops.py"),
    Mutant(
        "data_utils/loading/draws.py",
        "rng = np.random.default_rng([seed, *key])",
        "rng = np.random.default_rng([*key])",
        "test_augment.py",
    ),
    Mutant("data_utils/loading/draws.py", "matrix * spacing / spacing[:, None]", "matrix", "test_volumes_loading.py"),
    Mutant("data_utils/loading/draws.py", "ALIKE = 2 ", "ALIKE = 9 ", "test_volumes_loading.py"),
    Mutant(
        "data_utils/loading/draws.py",
        "default_rng([seed, *key, 3])",
        "default_rng([seed, 3])",
        "test_volumes_loading.py",
    ),
    Mutant(
        "data_utils/loading/samples.py",
        "crop_around(locations, own_size,",
        "crop_around(locations, target.shape,",
        "test_volumes_loading.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "digest(*kind, how, resampled,",
        "digest(type(self).__name__, how,",
        "test_volumes_loading.py",
    ),
    Mutant("data_utils/loading/noise.py", "shifted.bitwise_and_(2 ** (32 - bits) - 1)", "shifted", "test_noise.py"),
    Mutant("data_utils/loading/augment.py", "picked.masked_fill(outside, unknown)", "picked", "test_augment.py"),
    Mutant("data_utils/class_map.py", "return codes - np.uint8(1)", "return codes", "test_class_map.py"),
    Mutant(
        "data_utils/analysis/normalization.py",
        "np.sqrt(np.maximum(squares - mean**2, 0))",
        "np.sqrt(np.maximum(squares, 0))",
        "test_published_numbers.py",
    ),
    Mutant(
        "data_utils/sources/holdout.py",
        "np.random.default_rng(seed).permutation(len(sizes))\n    wanted",
        "np.arange(len(sizes))\n    wanted",
        "test_sources.py",
    ),
    Mutant(
        "data_utils/image_io/reader.py",
        "    return image if orientation(image) == 1 else ImageOps.exif_transpose(image)",
        "    return image if True else ImageOps.exif_transpose(image)",
        "test_preprocess.py",
    ),
    # encoders
    Mutant("unet/backbone.py", "super().train(mode and not self.frozen)", "super().train(mode)", "test_encoders.py"),
    Mutant("unet/backbone.py", " * (have[1] / want[1])", "", "test_encoders.py"),
    Mutant("unet/backbone.py", "parameter.requires_grad_(grad is not None)", "pass", "test_encoders.py"),
    Mutant(
        "train_utils/settings/starting_point.py", 'preprocess.pixel_types == ("uint8",) and ', "", "test_encoders.py"
    ),
    Mutant(
        "train_utils/settings/starting_point.py",
        "if checkpoint is None and backbone:",
        "if backbone:",
        "test_encoder_training.py",
    ),
    Mutant("train_utils/schedule.py", 'self.encoder_factor if group["of_encoder"]', "1 if True", "test_flags.py"),
    Mutant("train_utils/sync_batchnorm.py", " and m.training", "", "test_encoder_training.py"),
    Mutant("inference/tiling/receptive_field.py", "difference < ROUNDING", "difference < 1", "test_encoders.py"),
    # prediction
    Mutant("inference/tiling/resizing.py", "mode=mode, align_corners=False", 'mode="nearest"', "test_tiling.py"),
    Mutant("inference/tiling/cuts.py", "weight[: half if index else 0] = 0", "weight[:0] = 0", "test_tiling.py"),
    Mutant("inference/decoding/views.py", "if not network.config.preprocess.turned:", "if False:", "test_predict.py"),
    Mutant("inference/decoding/views.py", ".flip(axes)).flip(axes)", ".flip(axes))", "test_predict.py test_tiling.py"),
    Mutant("inference/tiling/cuts.py", "shape[1]] = self.rest", "shape[1]] = 0", "test_volumes_predict.py"),
    Mutant("inference/tiling/receptive_field.py", "2 * (kernel // 2) for", "2 for", "test_volumes_predict.py"),
    Mutant("inference/scoring/volume.py", "~second, sampling=spacing", "~second", "test_volumes_predict.py"),
    Mutant("inference/scoring/volume.py", "missed[index], dice[index] = True, 0", "pass", "test_volumes_predict.py"),
    Mutant(
        "inference/scoring/volume.py", "if not same_grid(of_truth, header):", "if False:", "test_volumes_predict.py"
    ),
    Mutant(
        "inference/predictor.py",
        "upload(batch, network.mean.device)",
        "batch.to(network.mean.device)",
        "test_predict_device.py",
    ),
    Mutant("inference/page.py", "height * width > MAX_PIXELS", "height > MAX_PIXELS", "test_app.py"),
    Mutant("inference/page.py", "_address(indices, transparency=0)", "_address(indices)", "test_app.py"),
    Mutant("inference/outputs/writer.py", "file.st_mtime >= begun", "True", "test_predict.py test_predict_outputs.py"),
    Mutant(
        "inference/provenance.py",
        "if said and not overwrite and said != _essence(provenance):",
        "if False:",
        "test_predict_outputs.py",
    ),
    # launch, memory
    Mutant("runtime/distributed.py", "        raise problem", "        return None", "test_failures.py test_train.py"),
    Mutant(
        "train_utils/preflight.py",
        "agreed = int(accelerator.gather(upload(torch.tensor([mine]), accelerator.device)).min())",
        "agreed = mine",
        "test_memory.py",
    ),
    Mutant("train_utils/preflight.py", "STEPS_HELD = 2", "STEPS_HELD = 1", "test_memory.py"),
    Mutant("runtime/memory.py", '"unable to find an engine"', '"unable to find a motor"', "test_memory.py"),
    Mutant("runtime/launch.py", "COMPILED_SHAPES = 64", "COMPILED_SHAPES = 8", "test_profiles.py"),
    Mutant("train_utils/microbatch.py", "math.ceil(size / 2), activation", "size, activation", "test_memory.py"),
    Mutant(
        "train_utils/checkpoints/best_model.py",
        "                self._refused = None\n",
        "                pass\n",
        "test_hub.py test_resume.py",
    ),
    # masks of another size, boundaries
    Mutant("data_utils/image_io/resize.py", "<= max(largest)", "<= 2 * max(largest)", "test_mask_sizes.py"),
    Mutant(
        "data_utils/loading/samples.py",
        "crop_around(locations, target.size",
        "crop_around(locations, image.size",
        "test_crops.py",
    ),
    Mutant(
        "inference/scoring/truth.py",
        "nearest(want, have) for",
        "np.minimum(np.arange(want), have - 1) for",
        "test_mask_sizes.py",
    ),
    Mutant("inference/scoring/boundary.py", "of_true | of_pred", "true | predicted", "test_boundary.py"),
    Mutant("inference/scoring/boundary.py", "return max(float", "return min(float", "test_boundary.py"),
    Mutant(
        "inference/scoring/boundary.py",
        "np.where(truth == IGNORE_INDEX, IGNORE_INDEX, pred)",
        "pred",
        "test_boundary.py",
    ),
    Mutant(
        "data_utils/sources/holdout.py", "np.argsort(-sizes[order]", "np.argsort(sizes[order]", "test_dataset_info.py"
    ),
    Mutant("runtime/signals.py", "now - first >= ONE_PRESS_SECONDS", "now > first", "test_signals.py"),
    Mutant("runtime/signals.py", "now - first >= ONE_PRESS_SECONDS", "False", "test_signals.py"),
    Mutant(
        "unet/config.py", "not isinstance(value, bool) and abs(value) <= sys.float_info.max", "True", "test_model.py"
    ),
    # annotations
    Mutant(
        "data_utils/sources/annotations/coco_mask.py", "(False, -pixels,", "(False, pixels,", "test_annotations_coco.py"
    ),
    Mutant(
        "data_utils/sources/annotations/coco_mask.py",
        "(True, 0, IGNORE_INDEX, runs)",
        "(True, 0, value, runs)",
        "test_annotations_coco.py",
    ),
    Mutant("data_utils/sources/annotations/coco_mask.py", "(not layer[0], ", "(layer[0], ", "test_annotations_coco.py"),
    Mutant(
        "data_utils/sources/annotations/coco_mask.py", " or sum(runs) != height * width", "", "test_annotations_coco.py"
    ),
    Mutant(
        "data_utils/sources/annotations/coco.py",
        '"COCO", self.classes, self.values',
        '"COCO"',
        "test_annotations_coco.py",
    ),
    Mutant("data_utils/sources/annotations/coco.py", " or number in used", "", "test_annotations_coco.py"),
    Mutant(
        "data_utils/sources/annotations/find.py",
        "    if _holds_masks(root, named):\n        return None\n",
        "",
        "test_annotations_coco.py",
    ),
    Mutant("data_utils/sources/annotations/labelme_mask.py", ', joint="curve"', "", "test_annotations_labelme.py"),
    Mutant(
        "data_utils/sources/annotations/labelme.py",
        "{IGNORED: IGNORE_INDEX}",
        "{IGNORED: 0}",
        "test_annotations_labelme.py",
    ),
    Mutant(
        "data_utils/sources/annotations/yolo.py",
        "(width, height), self.values",
        "(height, width), self.values",
        "test_annotations_yolo.py",
    ),
    Mutant("data_utils/sources/annotations/yolo.py", "-area(found[0])", "0", "test_annotations_yolo.py"),
    Mutant(
        "data_utils/sources/annotations/cityscapes.py",
        'EVALUATED.take(read_mask(self.file, self.file), mode="clip")',
        "read_mask(self.file, self.file)",
        "test_annotations_folders.py",
    ),
    Mutant(
        "data_utils/sources/records.py",
        "records.unpaired, records.classes",
        "records.unpaired, ()",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/records.py",
        "id(records.annotations): records.annotations",
        "id(records): records.annotations",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "self.classes, self.values)",
        "self.classes)",
        "test_annotations_yolo.py",
    ),
    # statistics, length and record of a run
    Mutant("train.py", "    share_statistics(accelerator, model)\n", "", "test_sync_batchnorm.py"),
    Mutant("train_utils/monitoring/rehearsal.py", "copy.deepcopy(model)", "model", "test_rehearsal.py"),
    Mutant("train_utils/monitoring/rehearsal.py", "+ 3 * pictures", "", "test_rehearsal.py"),
    Mutant(
        "train_utils/checkpoints/save.py",
        "(self.folder.parent / FINISHED).unlink(missing_ok=True)",
        "pass",
        "test_repeat.py",
    ),
    Mutant(
        "train_utils/settings/record.py",
        "return redact_all(_unredacted(args))",
        "return _unredacted(args)",
        "test_redact.py",
    ),
    Mutant("train_utils/settings/record.py", '" ".join(map(redact, sys.argv))', '" ".join(sys.argv)', "test_redact.py"),
    Mutant("runtime/console.py", "tqdm.write(redact(message))", "tqdm.write(message)", "test_redact.py"),
    Mutant("runtime/console.py", "print(redact(line),", "print(line,", "test_redact.py"),
    Mutant("runtime/errors.py", "redact(super().__str__())", "super().__str__()", "test_redact.py"),
    Mutant("data_utils/sources/streams/parquet.py", "redact(self.files[file])", "self.files[file]", "test_redact.py"),
    Mutant("train_utils/run_dir.py", " if k not in (*LENGTH_AND_PLACE, *open_ones)", "", "test_repeat.py"),
    Mutant("train_utils/settings/like.py", "if group & given", "if group - given", "test_repeat.py"),
    Mutant("train.py", "schedule.is_over(state) or improved", "improved", "test_repeat.py"),
    Mutant("train_utils/monitoring/rehearsal.py", "(time.monotonic() - STARTED)", "time.time()", "test_rehearsal.py"),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "STARTED = time.monotonic() - time.process_time()",
        "STARTED = time.monotonic()",
        "test_rehearsal.py",
    ),
    Mutant("train_utils/monitoring/rehearsal.py", "peak=0.0", "peak=args.learning_rate", "test_rehearsal.py"),
    Mutant("train_utils/monitoring/rehearsal.py", "exit_on_sigterm()", "pass", "test_rehearsal.py"),
    Mutant("tasks/task.py", "slice(factor // 2, side", "slice(0, side", "test_losses.py"),
    Mutant(
        "tasks/step_loss.py",
        "stride = [above * factor for above, factor in zip(self.level_factors[-1], stride, strict=True)]",
        "pass",
        "test_volumes_network.py",
    ),
    Mutant("unet/config.py", "tuple(map(float, getattr(self, name)))", "getattr(self, name)", "test_model.py"),
    Mutant("unet/axes.py", "is_long and length < 2 * finest", "is_long", "test_volumes_network.py"),
    Mutant(
        "unet/model.py",
        "padded_size.append(2 * divisor)",
        "padded_size.append(divisor)",
        "test_volumes_network.py test_model.py",
    ),
    Mutant("tasks/step_loss.py", "sum(weight * share", "sum(share", "test_losses.py"),
    Mutant(
        "tasks/step_loss.py",
        "level_logits = level_logits[(..., *sides)]",
        "pass",
        "test_losses.py",
    ),
    Mutant("unet/model.py", ' if not name.startswith("heads.")', "", "test_deep_supervision.py"),
    Mutant(
        "train_utils/sharding.py",
        "state = network.published_state()",
        "state = network.state_dict()",
        "test_encoder_training.py",
    ),
    Mutant("unet/blocks.py", "y + self.shortcut(x)", "y", "test_model.py"),
    Mutant("train_utils/settings/plan.py", "if detail_kept(info, scale) < DETAIL_KEPT:", "if False:", "test_plan.py"),
    Mutant("train_utils/settings/plan.py", " if getattr(settings, name) is None", "", "test_plan.py"),
    Mutant("train_utils/settings/plan.py", "default=0) < RARE * sum(pixels)", "default=0) < 0", "test_plan.py"),
    Mutant(
        "train_utils/run_dir.py",
        "            if self.checkpoint.state is None:",
        "            if True:",
        "test_plan.py",
    ),
]


def change(folder: Path, mutant: Mutant) -> None:
    """Put a mutant into a copy of the repository. The text must stand there once, or the list is out of date."""
    file = folder / mutant.file
    source = file.read_text(encoding="utf-8")
    if source.count(mutant.before) < 1:
        raise SystemExit(f"mutants: {mutant.file} has no {mutant.before!r}: bring the list up to date")
    file.write_text(source.replace(mutant.before, mutant.after, 1), encoding="utf-8")


def fails(folder: Path, tests: list[str]) -> bool:
    """Whether some of these tests, or any where none are named, fail in the copy."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        *(["-n", "0"] if tests else []),
        *(f"tests/{test}" for test in tests),
    ]
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
