"""Mistakes that the tests must notice, a list for each kind. mutate.py puts them into a copy of the repository."""

from typing import NamedTuple


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


# A cache's key or a checksum leaves something out.
KEYS = [
    Mutant(
        "data_utils/analysis/content.py",
        "content_key",
        "[records.label_set(index) for index in range(len(records))]",
        "[]",
        "test_content.py",
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
        "data_utils/analysis/dataset_info.py",
        "DatasetInfo.fingerprint",
        "[len(split), names, rows_as_text(split.sizes)]",
        "[len(split), names]",
        "test_dataset_info.py",
    ),
    Mutant(
        "data_utils/analysis/normalization.py",
        "measure_normalization",
        "digest('normalization', records.digest, windows, sample)",
        "digest('normalization', records.digest, windows)",
        "test_remembered_inspections.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "digest(*kind, preprocessing, resampled, content, *self.reader.key, self.split.bad)",
        "digest(type(self).__name__, preprocessing, content, *self.reader.key, self.split.bad)",
        "test_volumes_loading.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "digest(*kind, preprocessing, resampled, content, *self.reader.key, self.split.bad)",
        "digest(*kind, preprocessing, resampled, content, self.split.bad)",
        "test_decoded_cache.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "digest(*kind, preprocessing, resampled, content, *self.reader.key, self.split.bad)",
        "digest(*kind, preprocessing, resampled, content, *self.reader.key)",
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
        "data_utils/loading/dataset.py", "SegmentationDataset.cache", "preprocess.mean", "None", "test_decoded_cache.py"
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "SegmentationDataset.cache",
        "(preprocess.spacing, preprocess.clip, preprocess.standardize, spacing_bytes)",
        "(preprocess.spacing, preprocess.clip, preprocess.standardize)",
        "test_dataset.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "PairedRecords.rendering",
        "(type(self).__name__, self.metadata.classes, self.values)",
        "(type(self).__name__, self.metadata.classes)",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "data_utils/sources/class_volumes.py",
        "ChannelVolumeRecords.derivation",
        "(OVERLAPPING, repr(self.layers))",
        "(OVERLAPPING,)",
        "test_class_volumes.py",
    ),
    Mutant(
        "data_utils/sources/hf_datasets.py",
        "HFRecords.__init__",
        "digest(self.fingerprint, self.columns)",
        "digest(self.columns)",
        "test_hf_datasets.py",
    ),
    Mutant(
        "data_utils/sources/label_files.py",
        "LabeledRecords.derivation",
        "('labeled', self._sets, self.numbers.tobytes())",
        "('labeled', self._sets)",
        "test_label_files.py",
    ),
    Mutant(
        "data_utils/sources/overlapping.py",
        "ClassFolderRecords.digest",
        "repr((self.bits, self.ignored))",
        "repr(self.bits)",
        "test_overlapping_data.py",
    ),
    Mutant("data_utils/sources/records.py", "Subset.derivation", "(self.indices.tobytes(),)", "()", "test_records.py"),
    Mutant(
        "data_utils/sources/streams/remote.py",
        "content_key",
        "digest(_remove_query(file), info['size'], versions)",
        "digest(_remove_query(file), info['size'])",
        "test_remote.py",
    ),
    Mutant(
        "data_utils/sources/volume_slices.py",
        "SliceRecords.__init__",
        "digest('slices', volumes.digest)",
        "volumes.digest",
        "test_volume_slices.py",
    ),
    Mutant(
        "data_utils/sources/volumes.py",
        "VolumeRecords.digest",
        "(self.cases, self.spacing)",
        "(self.cases,)",
        "test_volumes_sources.py",
    ),
    Mutant(
        "data_utils/targets/classes.py",
        "ClassReader.key",
        "(class_map.values, class_map.ignore_value)",
        "(class_map.ignore_value,)",
        "test_decoded_cache.py",
    ),
    Mutant(
        "data_utils/targets/classes.py",
        "PartlyLabeledReader.key",
        "(*super().key, self.label_sets.flags, tuple(self.label_sets.numbers.items()))",
        "(*super().key, self.label_sets.flags)",
        "test_target_readers.py",
    ),
    Mutant(
        "data_utils/targets/find.py",
        "_reading",
        'digest("reading of masks", records.digest)',
        'digest("reading of masks")',
        "test_find_task.py",
    ),
    Mutant(
        "data_utils/targets/objects.py",
        "ObjectReader.key",
        "(Objects.name, self.ignored, self.classes, self.outside)",
        "(Objects.name, self.ignored, self.classes)",
        "test_object_targets.py",
    ),
    Mutant(
        "data_utils/targets/objects.py",
        "ObjectReader.with_records",
        'digest("shapes of objects", records.digest, self.key)',
        'digest("shapes of objects", records.digest)',
        "test_object_shapes.py",
    ),
    Mutant(
        "data_utils/targets/overlapping.py",
        "OverlapReader.key",
        "(Overlapping.name,) if self.label_sets is None else (Overlapping.name, self.label_sets.flags)",
        "(Overlapping.name,)",
        "test_target_readers.py",
    ),
    Mutant(
        "data_utils/targets/regions.py",
        "RegionReader.key",
        "(Regions.name, *self.identity, self.ignored)",
        "(Regions.name, *self.identity)",
        "test_region_targets.py",
    ),
    Mutant("runtime/cache.py", "digest", "checksum.update(b'%d:' % len(content))", "pass", "test_cache.py"),
    Mutant(
        "runtime/cache.py",
        "_size_and_time",
        "(stat.st_size, stat.st_mtime_ns)",
        "(stat.st_size, int(stat.st_mtime))",
        "test_cache.py",
    ),
]

# One file names a data set or a model instead of all of them.
FILES_OF_A_DATA_SET = [
    Mutant(
        "data_utils/analysis/content.py",
        "_content",
        "digest(*map(_file_checksum, paths))",
        "digest(_file_checksum(paths[0]))",
        "test_content.py",
    ),
    Mutant(
        "data_utils/analysis/spoiled_masks.py",
        "_once",
        "digest(title, *digests)",
        "digest(title, digests[0])",
        "test_spoiled_masks.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco.py",
        "CocoRecords.digest",
        "paths.append(os.path.join(self.folder, os.fsdecode(name.item())))",
        "pass",
        "test_annotations_coco.py",
    ),
    Mutant(
        "data_utils/sources/annotations/one_object_masks.py",
        "OneObjectRecords.digest",
        "paths += [os.path.join(folder, name) for name in picture_names(folder)]",
        "pass",
        "test_one_object_masks.py",
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
        "[rendering, *self.files[0], *self.files[1]]",
        "[rendering]",
        "test_annotations_yolo.py",
    ),
    Mutant(
        "data_utils/sources/annotations/paired.py",
        "PairedRecords.digest",
        "self.paths(i)\n",
        "self.paths(i)[:1]\n",
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
        "paths += case.images",
        "pass",
        "test_volumes_sources.py",
    ),
    Mutant(
        "inference/provenance.py",
        "",
        "('config.json', 'model.safetensors')",
        "('model.safetensors',)",
        "test_predict_outputs.py",
    ),
]

# A mode of the network is not put back.
MODES = [
    Mutant("train.py", "evaluate", "model.eval()", "pass", "test_train.py"),
    Mutant(
        "train_utils/ema.py",
        "WeightAverage.average_weights",
        "for name, value in own_values.items():\n    self._live[name].copy_(value)",
        "pass",
        "test_train.py",
    ),
    Mutant("unet/backbone.py", "Encoder.train", "mode and (not self.frozen)", "mode", "test_encoders.py"),
    Mutant("unet/backbone.py", "dry_pass", "backbone.train(was_training)", "backbone.train()", "test_encoders.py"),
    Mutant("unet/recompute.py", "frozen_statistics", "norm.momentum = momentum", "pass", "test_recompute.py"),
]

# A seed does not reach a random draw.
SEEDS = [
    Mutant(
        "data_utils/analysis/dataset_info.py",
        "_random_sample",
        "np.random.default_rng(seed)",
        "np.random.default_rng(0)",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "epoch_batches",
        "[seed, epoch]",
        "[0, epoch]",
        "test_data_flags.py test_batch_sampler.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py", "epoch_batches", "[seed, epoch]", "[seed, 0]", "test_batch_sampler.py"
    ),
    Mutant("data_utils/loading/batch_sampler.py", "stream_batches", "[seed, epoch]", "[0, epoch]", "test_streams.py"),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "TrainingSampler.batches",
        "stream_batches(self.group_sizes, shape, self.batch_split.batch_size, self.seed, epoch)",
        "stream_batches(self.group_sizes, shape, self.batch_split.batch_size, 0, epoch)",
        "test_streams.py",
    ),
    Mutant(
        "data_utils/loading/dataset.py",
        "TrainingDataset.sample",
        "[self.config.seed, slot.epoch, slot.index, 1]",
        "[self.config.seed, slot.index, 1]",
        "test_dataset.py test_crops.py",
    ),
    Mutant("data_utils/loading/augmentation.py", "sample_augmentation", "[seed, *key]", "[*key]", "test_augment.py"),
    Mutant(
        "data_utils/loading/augmentation.py",
        "sample_augmentation",
        "[seed, *key, 3]",
        "[seed, 3]",
        "test_augment_volumes.py",
    ),
    Mutant("data_utils/loading/loaders.py", "build_loaders", "info.config.seed", "0", "test_loaders.py"),
    Mutant(
        "data_utils/sources/holdout.py",
        "hold_out",
        "np.random.default_rng(seed).permutation",
        "np.arange",
        "test_sources.py",
    ),
    Mutant(
        "data_utils/sources/holdout.py",
        "hold_out_shards",
        "np.random.default_rng(seed)",
        "np.random.default_rng(0)",
        "test_streams.py",
    ),
    Mutant("runtime/distributed.py", "seed_step", "[seed, step, process]", "[step, process]", "test_train.py"),
    Mutant("runtime/distributed.py", "seed_step", "[seed, step, process]", "[seed, step]", "test_train.py"),
    Mutant(
        "train.py",
        "main",
        "set_seed(flags.seed, deterministic=flags.deterministic)",
        "set_seed(flags.seed, deterministic=False)",
        "test_run_flags.py",
    ),
    Mutant(
        "train.py",
        "main",
        "seed_step(args.seed, state.step, mesh.group)",
        "pass",
        "test_resume.py test_network_flags.py",
    ),
]

# Samples of one group come into both splits.
HELD_OUT_GROUPS = [
    Mutant(
        "data_utils/sources/holdout.py",
        "hold_out_shards",
        "np.bincount(file_by_group, weights=records.group_sizes)",
        "np.bincount(file_by_group)",
        "test_holdout.py",
    ),
    Mutant("data_utils/sources/holdout.py", "hold_out_fold", "-sizes[order]", "sizes[order]", "test_holdout.py"),
    Mutant("data_utils/sources/holdout.py", "_groups", "1 if expression.groups else 0", "0", "test_holdout.py"),
    Mutant(
        "data_utils/sources/holdout.py", "_first_groups", "min(enough, len(order) - 1)", "enough", "test_holdout.py"
    ),
]

# A crop does not lie where it was drawn.
CROPS = [
    Mutant("data_utils/loading/crop.py", "", "1 / 3", "0", "test_crops.py"),
    Mutant(
        "data_utils/loading/crop.py",
        "crop_window",
        "pixels[int(position.pixel_share * len(pixels))]",
        "pixels[0]",
        "test_crops.py",
    ),
    Mutant("data_utils/loading/crop.py", "crop_window", "label != unknown", "True", "test_crops.py"),
    Mutant(
        "data_utils/loading/crop.py",
        "crop_around",
        "locations[int(position.pixel_share * len(locations))]",
        "locations[0]",
        "test_crops.py",
    ),
    Mutant("data_utils/loading/crop.py", "_starts_around", "int(share * side)", "side // 2", "test_crops.py"),
    Mutant(
        "data_utils/loading/crop.py",
        "_starts_around",
        "int(np.clip(start, 0, max(length - side, 0)))",
        "int(np.clip(start, 0, max(length - side - 1, 0)))",
        "test_crops.py",
    ),
    Mutant(
        "data_utils/loading/crop.py",
        "_starts_around",
        "int(np.clip(start, 0, max(length - side, 0)))",
        "max(start, 0)",
        "test_crops.py",
    ),
    Mutant(
        "data_utils/loading/samples.py",
        "ImageSamples.choose_window",
        "self.reader.known_labels(target)",
        "target.main",
        "test_partly_labeled_images.py",
    ),
    Mutant(
        "data_utils/loading/samples.py",
        "ImageSamples.load_crop",
        "crop_around(locations, target.size, image.size, crop_size, rng)",
        "crop_around(locations, image.size, image.size, crop_size, rng)",
        "test_crops.py",
    ),
]

# A published number is not what its name says.
PUBLISHED_NUMBERS = [
    Mutant("tasks/confusion.py", "class_scores", "2 * hits", "hits", "test_metrics.py"),
    Mutant("tasks/confusion.py", "class_scores", "ratios(hits, predicted)", "ratios(hits, truth)", "test_metrics.py"),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.summary",
        "self._total.add(window)",
        "self._total.add(own_window)",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.summary",
        "max(memory for _, memory in gathered)",
        "peak_memory",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.summary",
        "window.images / window.seconds",
        "window.images / (window.seconds + window.data)",
        "test_throughput.py",
    ),
    Mutant(
        "train_utils/monitoring/throughput.py",
        "Meter.summary",
        "max(windows, key=lambda totals: totals.data)",
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
        "train_utils/reporting/classes.py",
        "ClassSection.markdown",
        "[values[metric][index] for metric in METRICS]",
        "[values[metric][index] for metric in ('iou', 'dice', 'recall', 'precision')]",
        "test_class_section.py",
    ),
    Mutant(
        "train_utils/reporting/classes.py",
        "",
        "('iou', 'dice', 'precision', 'recall')",
        "('iou', 'dice', 'recall', 'precision')",
        "test_class_section.py",
    ),
    Mutant(
        "train_utils/reporting/classes.py",
        "ClassSection.unfound",
        "(truth > 0) & (hits == 0)",
        "hits == 0",
        "test_class_section.py",
    ),
    Mutant(
        "train_utils/reporting/model_card.py",
        "_front_matter",
        "round(metric.value, 6)",
        "round(metric.value, 2)",
        "test_model_card.py",
    ),
    Mutant(
        "train_utils/reporting/report.py", "_median", "median(values)", "sum(values) / len(values)", "test_report.py"
    ),
    Mutant(
        "train_utils/reporting/report.py",
        "_speed",
        "max((value for _, value in memory))",
        "memory[-1][1]",
        "test_report.py",
    ),
]

# A threshold has another value, which a test that imports it does not notice.
THRESHOLDS = [
    Mutant(
        "data_utils/analysis/spoiled_masks.py",
        "",
        "INVENTED_SHARE = 0.6",
        "INVENTED_SHARE = 0.5",
        "test_spoiled_masks.py",
    ),
    Mutant(
        "data_utils/analysis/spoiled_masks.py", "", "MANY_INVENTED = 8", "MANY_INVENTED = 7", "test_spoiled_masks.py"
    ),
    Mutant(
        "data_utils/analysis/spoiled_masks.py", "", "ALONE_SHARE = 0.05", "ALONE_SHARE = 0.1", "test_spoiled_masks.py"
    ),
    Mutant("data_utils/loading/crop.py", "", "1 / 3", "1 / 2", "test_crops.py"),
    Mutant(
        "data_utils/loading/augmentation.py",
        "",
        "SIMILAR_SPACING_FACTOR = 2",
        "SIMILAR_SPACING_FACTOR = 8",
        "test_augmentation.py",
    ),
    Mutant("data_utils/targets/find.py", "", "MOST_PIECES = 1.1", "MOST_PIECES = 1.05", "test_find_task.py"),
    Mutant("data_utils/targets/find.py", "", "CONNECTED_SHARE = 0.9", "CONNECTED_SHARE = 0.8", "test_find_task.py"),
    Mutant("data_utils/targets/find.py", "", "FEWEST_NUMBERS = 3", "FEWEST_NUMBERS = 2", "test_find_task.py"),
    Mutant("inference/scoring/boundary.py", "", "DILATION_RATIO = 0.02", "DILATION_RATIO = 0.03", "test_boundary.py"),
    Mutant("inference/scoring/volume.py", "", "TOLERANCES = (1, 2)", "TOLERANCES = (1, 3)", "test_volumes_predict.py"),
    Mutant("tasks/matching.py", "", "(64, 256, 1024, 4096)", "(64, 256, 1024, 4095)", "test_matching.py"),
    Mutant("tasks/point_scores.py", "", "FOUND = 0.5", "FOUND = 0.4", "test_point_scores.py"),
    Mutant("tasks/point_scores.py", "", "OUTLIER_DISTANCE = 10.0", "OUTLIER_DISTANCE = 20.0", "test_point_scores.py"),
    Mutant(
        "train_utils/monitoring/rehearsal.py", "", "PLANNED_SHARE = 0.92", "PLANNED_SHARE = 0.98", "test_rehearsal.py"
    ),
    Mutant("train_utils/monitoring/pace.py", "", "LATE_SHARE = 1.05", "LATE_SHARE = 1.2", "test_pace.py"),
    Mutant("train_utils/reporting/judgement.py", "", "FEW_IMAGES = 10", "FEW_IMAGES = 9", "test_judgement.py"),
    Mutant(
        "train_utils/reporting/judgement.py",
        "",
        "RISEN_LOSS_FACTOR = 1.1",
        "RISEN_LOSS_FACTOR = 1.0",
        "test_judgement.py",
    ),
    Mutant("train_utils/settings/plan.py", "", "EVALUATION_SHARE = 0.1", "EVALUATION_SHARE = 0.2", "test_plan.py"),
    Mutant("train_utils/settings/plan.py", "", "FEWEST_STEPS = 2000", "FEWEST_STEPS = 1000", "test_plan.py"),
    Mutant("train_utils/settings/plan.py", "", "RARE_SHARE = 0.02", "RARE_SHARE = 0.04", "test_plan.py"),
]

# Class weights are chosen, or computed, where they should not be.
CLASS_WEIGHTS = [
    Mutant(
        "data_utils/targets/classes.py",
        "class_weight_tensor",
        "(pixels.sum() / (len(pixels) * pixels)).sqrt()",
        "pixels.sum() / (len(pixels) * pixels)",
        "test_class_weights.py test_optimization_flags.py",
    ),
    Mutant(
        "data_utils/targets/classes.py", "class_weight_tensor", "pixels > 0", "pixels >= 0", "test_class_weights.py"
    ),
    Mutant("train.py", "main", "args.class_weights", "None", "test_optimization_flags.py"),
    Mutant("train_utils/settings/plan.py", "_has_rare_class", "RARE_SHARE * sum(pixels)", "0", "test_plan.py"),
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
]

# A file is replaced before its content is on the disk, or not at once.
COMPLETE_FILES = [
    Mutant(
        "runtime/files.py",
        "complete_folder",
        "for path in (*temporary.iterdir(), temporary):\n    sync(path)",
        "pass",
        "test_checkpoints.py",
    ),
    Mutant(
        "runtime/files.py", "replace_file", "temporary.replace(path)", "shutil.copy(temporary, path)", "test_files.py"
    ),
    Mutant("runtime/files.py", "replace_files", "sync(file)", "pass", "test_files.py"),
    Mutant("runtime/files.py", "replace_files", "sync(folder)", "pass", "test_files.py"),
    Mutant(
        "runtime/files.py",
        "_private_folder",
        "if _is_temporary(entry.name, path):\n    shutil.rmtree(entry, ignore_errors=True)",
        "pass",
        "test_files.py",
    ),
    Mutant("runtime/files.py", "sync", "os.fsync(descriptor)", "pass", "test_files.py"),
    Mutant("runtime/files.py", "replace_file", "os.fsync(descriptor)", "pass", "test_files.py"),
    Mutant("runtime/files.py", "replace_path", "sync(temporary)", "pass", "test_files.py"),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints._write",
        "complete_folder(path)",
        "[[shutil.rmtree(old) for old in newest_first(self.folder)[self.keep - 1 :]], complete_folder(path)][1]",
        "test_checkpoints.py",
    ),
]

# The best model, or its checkpoint, is forgotten or removed.
BEST_MODEL = [
    Mutant(
        "train.py",
        "main",
        "checkpoints.save(state, evaluation)",
        "checkpoints.save(state, None)",
        "test_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/best_model.py",
        "BestModel.is_saved",
        "self._refused = None",
        "pass",
        "test_best_model.py",
    ),
    Mutant(
        "train_utils/checkpoints/find.py",
        "_with_its_best",
        "best_step > state.run_state.step",
        "best_step >= state.run_state.step",
        "test_found_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints._prune",
        "path != best",
        "True",
        "test_checkpoints.py test_resume.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints._prune",
        "isinstance(score, float)",
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
        "train_utils/run_state.py",
        "RunState.update",
        "comparison > self.best",
        "comparison >= self.best",
        "test_optimization_flags.py",
    ),
    Mutant(
        "train_utils/run_state.py",
        "RunState.forget_best",
        "self.evaluations_since_best = 0",
        "pass",
        "test_run_state.py",
    ),
    Mutant(
        "train_utils/run_state.py", "RunState.best_evaluation", "self.best < 0", "self.best <= 0", "test_run_state.py"
    ),
]

# A resumed run goes on from something else than what was saved.
RESUMED_RUNS = [
    Mutant("train.py", "main", "state.window = monitor.window.saved_state()", "pass", "test_accounts.py"),
    Mutant(
        "train_utils/checkpoints/find.py",
        "_read_state",
        "CHECKPOINT_FILES - manifest.keys() or lists_others",
        "lists_others",
        "test_found_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/find.py",
        "_read_state",
        "fingerprint(path / name) != expected",
        "False",
        "test_resume.py",
    ),
    Mutant(
        "train_utils/checkpoints/find.py",
        "find_checkpoint",
        "FoundCheckpoint(path, _with_its_best(path), passed_over)",
        "FoundCheckpoint(path, _read_state(path), passed_over)",
        "test_found_checkpoints.py",
    ),
    Mutant(
        "train_utils/checkpoints/save.py",
        "Checkpoints.resume",
        "on_main(self.accelerator, self.best_model.folder.exists)",
        "self.best_model.folder.exists()",
        "test_checkpoints.py",
    ),
    Mutant(
        "train_utils/monitoring/run_log.py",
        "_lines_up_to",
        'record["step"] <= step and line.endswith(b"\\n")',
        'record["step"] <= step',
        "test_run_log.py",
    ),
    Mutant("train_utils/monitoring/run_log.py", "RunLog._append", "file.truncate(end)", "pass", "test_run_log.py"),
]

# Annotations are read as other classes, or ignored pixels as classes.
LABELS_OF_ANNOTATIONS = [
    Mutant(
        "data_utils/analysis/label_warnings.py",
        "_mixed_binary_encodings",
        "all_values == {0, 1, IGNORE_INDEX}",
        "all_values >= {0, 1, IGNORE_INDEX}",
        "test_dataset_warnings.py",
    ),
    Mutant(
        "data_utils/analysis/label_warnings.py",
        "label_warnings",
        "class_map is not None and not ignores_values",
        "class_map is not None",
        "test_dataset_warnings.py",
    ),
    Mutant(
        "data_utils/class_map.py",
        "ClassMap.background",
        "as_grey(value) == 0 and name == value_text(value)",
        "as_grey(value) == 0",
        "test_class_map.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco_mask.py",
        "CocoMask._layers",
        "Layer((0, 0), IGNORE_INDEX, runs)",
        "Layer((0, 0), value, runs)",
        "test_coco_mask.py",
    ),
    Mutant(
        "data_utils/sources/annotations/coco_mask.py",
        "CocoMask.render_classes",
        "_bits(crowds, size) & ~truth",
        "_bits(crowds, size)",
        "test_coco_mask.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme.py",
        "load",
        "{IGNORED: IGNORE_INDEX}",
        "{IGNORED: 0}",
        "test_labelme_mask.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme.py",
        "load",
        "dict.fromkeys(BACKGROUND_NAMES, 0)",
        "{}",
        "test_labelme_mask.py",
    ),
    Mutant(
        "data_utils/sources/annotations/labelme_mask.py",
        "LabelmeMask.render_classes",
        "~(1 << bit_by_value[value])",
        "0",
        "test_labelme_mask.py",
    ),
]

# The launch (processes, micro-batches) changes what is computed.
LAUNCH = [
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "BatchSplit.sizes",
        "min(in_proportion, math.ceil(images / self.groups))",
        "self.accumulation",
        "test_batch_sampler.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "TrainingSampler._micro_batches",
        "slots[0]._replace(is_filler=True)",
        "slots[0]",
        "test_batch_sampler.py test_equality.py",
    ),
    Mutant(
        "data_utils/loading/batch_sampler.py",
        "BatchSplit.sizes",
        "min(in_proportion, math.ceil(images / self.groups))",
        "in_proportion",
        "test_batch_sampler.py",
    ),
    Mutant("train.py", "evaluate", "reliability = accelerator.reduce(reliability, 'sum')", "pass", "test_report.py"),
    Mutant(
        "train.py",
        "add_gradients",
        "criterion(logits, targets, counts)",
        "criterion(logits, targets, criterion.counts(targets))",
        "test_optimization_flags.py test_train.py",
    ),
    Mutant("train.py", "train_step", "loss = accelerator.reduce(loss, 'sum')", "pass", "test_train.py"),
    Mutant("train.py", "add_gradients", "share * accelerator.num_processes", "share", "test_equality.py test_train.py"),
    Mutant("train.py", "add_gradients", "reduction.wait", "counts.zero_", "test_equality.py test_train.py"),
    Mutant("train.py", "add_gradients", "not micro_batches", "True", "test_train_step.py"),
    Mutant(
        "train_utils/micro_batches.py",
        "split_from_args",
        "profile.processes // args.processes_per_volume",
        "profile.processes",
        "test_micro_batches.py",
    ),
    Mutant(
        "train_utils/monitoring/monitor.py",
        "Monitor.close",
        "sorted(set(gather_object(sorted(self.problems))))",
        "sorted(self.problems)",
        "test_monitor.py",
    ),
    Mutant(
        "train_utils/monitoring/rehearsal.py",
        "Rehearsal._slowest",
        "self.accelerator.gather(seconds_tensor)",
        "seconds_tensor",
        "test_rehearsal_times.py",
    ),
    Mutant(
        "train_utils/step_guard.py",
        "StepGuard.judge",
        "self._values[:2].isfinite().all",
        "self._values[1].isfinite",
        "test_step_guard.py",
    ),
    Mutant(
        "train_utils/memory/preflight.py",
        "_smallest",
        "int(accelerator.gather(own_number).min())",
        "number",
        "test_preflight.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py",
        "_sums",
        "var.double() + difference.square()",
        "var.double()",
        "test_sync_batchnorm.py",
    ),
    Mutant(
        "train_utils/sync_batchnorm.py", "leave_out_of_batch_norm", "not is_filler", "True", "test_sync_batchnorm.py"
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
]

# A loss or a score counts what is unknown, or divides by something else.
LOSSES_AND_SCORES = [
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
    Mutant(
        "tasks/landmarks.py",
        "Landmarks.at_level",
        "(targets.points - (factor - 1) / 2) / factor",
        "targets.points / factor",
        "test_landmarks.py",
    ),
    Mutant(
        "tasks/landmarks.py",
        "Landmarks.finish",
        "(is_known - is_present) * F.softplus(odds)",
        "is_known * F.softplus(odds)",
        "test_landmarks.py",
    ),
    Mutant(
        "tasks/overlapping.py",
        "Overlapping.partial",
        "(entropy * is_known).sum(dim=(0, *spatial))",
        "entropy.sum(dim=(0, *spatial))",
        "test_overlapping.py",
    ),
    Mutant(
        "tasks/overlapping.py",
        "Overlapping.partial",
        "log_probs.exp() * is_known",
        "log_probs.exp()",
        "test_overlapping.py",
    ),
    Mutant(
        "tasks/overlapping.py",
        "class_tables",
        "count_bits(predicted & known_part, classes)",
        "count_bits(predicted, classes)",
        "test_overlapping.py",
    ),
    Mutant(
        "tasks/partly_labeled.py",
        "PartlyLabeledClasses.counts",
        "is_other_class.sum()",
        "0 * is_other_class.sum()",
        "test_partly_labeled.py",
    ),
    Mutant(
        "tasks/point_scores.py",
        "LandmarkScores._closeness",
        "not (states == ABSENT).any()",
        "False",
        "test_point_scores.py",
    ),
    Mutant(
        "tasks/step_loss.py",
        "StepLoss.share_from_rendered",
        "torch.where(counts > 0, counts, 1)",
        "counts.clamp_min(1)",
        "test_losses.py",
    ),
    Mutant(
        "tasks/target.py",
        "Target.pad",
        "np.full(shape, unknown, array.dtype)",
        "np.zeros(shape, array.dtype)",
        "test_dataset.py",
    ),
]

# Tiles are laid, weighted or resized in another way.
TILES = [
    Mutant("inference/tiling/cuts.py", "_weights", "weight[:half] = 0", "pass", "test_tiling.py"),
    Mutant("inference/tiling/cuts.py", "_weights", "8 * position", "4 * position", "test_tiling.py"),
    Mutant(
        "inference/tiling/planning.py",
        "_plan_image",
        "overlap >= 2 * reach_pixels",
        "overlap >= reach_pixels",
        "test_tiling.py",
    ),
    Mutant(
        "inference/tiling/planning.py",
        "_plan_image",
        "round_up(overlap, 2 * grid)",
        "round_up(overlap, grid)",
        "test_tiling.py",
    ),
    Mutant("inference/tiling/planning.py", "_side_with_reach", "max(reaches)", "min(reaches)", "test_tiling.py"),
    Mutant(
        "inference/tiling/resizing.py",
        "resize_logits",
        "F.interpolate(full_precision(logits), size=tuple(size), mode=mode, align_corners=False)",
        "F.interpolate(full_precision(logits), size=tuple(size), mode='nearest')",
        "test_tiling.py",
    ),
]

KINDS = [
    KEYS,
    FILES_OF_A_DATA_SET,
    MODES,
    SEEDS,
    HELD_OUT_GROUPS,
    CROPS,
    PUBLISHED_NUMBERS,
    THRESHOLDS,
    CLASS_WEIGHTS,
    COMPLETE_FILES,
    BEST_MODEL,
    RESUMED_RUNS,
    LABELS_OF_ANNOTATIONS,
    LAUNCH,
    LOSSES_AND_SCORES,
    TILES,
]
MUTANTS = [mutant for kind in KINDS for mutant in kind]
