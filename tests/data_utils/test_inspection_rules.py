"""Small rules of a look at a data set, in numbers: counts, warnings, lines of the report, keys, statistics of volumes.

Modules: data_utils/analysis/content.py, data_utils/analysis/distinct_rows.py, data_utils/analysis/inspect.py,
data_utils/analysis/inspect_volumes.py, data_utils/analysis/inspect_windows.py, data_utils/analysis/label_warnings.py,
data_utils/analysis/normalization.py, data_utils/analysis/validate.py, data_utils/analysis/volume_findings.py,
data_utils/analysis/dataset_info.py, data_utils/analysis/findings.py, data_utils/analysis/inspectors.py.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import tifffile
from conftest import load_info, write_folder
from PIL import Image

from data_utils.analysis import distinct_rows as rows_module
from data_utils.analysis import normalization as normalization_module
from data_utils.analysis.content import content_key, file_paths, sampled_indices
from data_utils.analysis.dataset_info import DatasetInfo, Split, _list_locations
from data_utils.analysis.distinct_rows import distinct_rows, rows_as_text
from data_utils.analysis.findings import find_warnings
from data_utils.analysis.inspect import (
    Inspection,
    Problem,
    SplitInspection,
    count_values,
    excess_values,
    find_unknown,
    inspect,
    merge_equal,
    pixels_by_labels,
    raise_problems,
    total_pixels,
)
from data_utils.analysis.inspect_volumes import VolumeInspection, VolumeSplitInspection, inspect_volume
from data_utils.analysis.inspect_windows import inspect_in_windows
from data_utils.analysis.inspectors import ImageInspector, VolumeInspector, inspect_split
from data_utils.analysis.label_warnings import label_warnings
from data_utils.analysis.normalization import Normalization, measure_normalization, read_sample
from data_utils.analysis.validate import check_data, describe, describe_annotations, list_problems, most_common
from data_utils.analysis.volume_findings import VolumeFindings, target_spacing
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.sources.records import AnnotationSummary, ListRecords
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess

PICTURE = np.zeros((4, 5), np.uint8)


def records_of(count: int, **attributes) -> ListRecords:
    """Records called 0, 1, ... of the same empty picture."""
    records = ListRecords([{"image": PICTURE, "target": PICTURE, "name": str(number)} for number in range(count)])
    for name, value in attributes.items():
        setattr(records, name, value)
    return records


def split_of(*pixels: dict, kind: str = "numbers", **attributes) -> tuple[SplitInspection, ListRecords]:
    """A split of 4 x 5 images whose masks hold these pixels of each value."""
    inspection = SplitInspection.of_count(len(pixels))
    for number, counts in enumerate(pixels):
        inspection.add(number, Inspection((4, 5), (4, 5), "L", kind, counts))
    return inspection, records_of(len(pixels), **attributes)


CLASSES = ClassMap(("sky", "land"), (0, 1), None)


def warnings_of(
    *splits, class_map=CLASSES, has_names=False, ignores_values=False, has_flag=False, pixels=None
) -> list[str]:
    counts = total_pixels(splits) if pixels is None else pixels
    return list(
        label_warnings(splits, counts, class_map, has_names=has_names, ignores_values=ignores_values, has_flag=has_flag)
    )


@pytest.mark.parametrize(("training", "validation", "is_said"), [(1, 1, True), (2, 1, True), (3, 1, False)])
def test_fewer_than_four_images_of_both_splits_are_very_few(training, validation, is_said):
    both = {0: 10, 1: 10}
    lines = warnings_of(split_of(*[both] * training), split_of(*[both] * validation))
    assert len(lines) == is_said
    if is_said:
        counts = (
            f"{training + validation} images are very few ({training} for training and {validation} for validation)"
        )
        assert lines[0].startswith(f"{counts}: the score will be luck")
    assert warnings_of(split_of(*[both] * training), split_of(*[both] * validation), class_map=None) == []


@pytest.mark.parametrize(("ignored_pixels", "is_said"), [(20, False), (21, True)])
def test_ignored_pixels_are_much_from_a_fifth_on(ignored_pixels, is_said):
    class_map = ClassMap(("sky", "land"), (0, 1), 255)
    lines = warnings_of(split_of(*[{0: 50, 1: 50 - ignored_pixels, 255: ignored_pixels}] * 4), class_map=class_map)
    assert [line.startswith("255 counts nowhere, as unlabeled, and 21% of all") for line in lines] == [True] * is_said


@pytest.mark.parametrize(("largest", "is_said"), [(99, True), (100, False), (200, False)])
def test_255_among_classes_is_suspect_where_the_others_are_below_a_hundred(largest, is_said):
    class_map = ClassMap(("a", "b", "c"), (0, largest, 255), None)
    lines = warnings_of(split_of(*[{0: 50, largest: 40, 255: 10}] * 4), class_map=class_map)
    assert [line.startswith("255 became a class, with 10% of all mask pixels") for line in lines] == [True] * is_said
    assert warnings_of(split_of(*[{0: 50, 255: 10}] * 4), class_map=ClassMap(("a", "b"), (0, 255), None)) == []


@pytest.mark.parametrize(("rare", "is_said"), [(10, False), (9, True)])
def test_a_class_is_rare_below_a_ten_thousandth_of_the_pixels(rare, is_said):
    splits = split_of({0: 50_000}, {0: 49_990 - rare, 1: rare}, {0: 5}, {0: 5})
    lines = warnings_of(splits)
    assert len(lines) == is_said
    if is_said:
        assert f"became classes: 1 (pixels: {rare}; masks: 1, the first is 1); if they" in lines[0]
    assert warnings_of(splits, has_names=True) == []


def test_three_rare_values_are_described_and_others_are_hinted_at():
    values = (0, 1, 2, 3, 4)
    class_map = ClassMap(tuple("abcde"), values, None)
    splits = split_of({0: 1_000_000}, {0: 1, 1: 1, 2: 2}, {0: 1, 2: 3, 3: 4, 4: 1}, {0: 9})
    (line,) = warnings_of(splits, class_map=class_map)
    described = "1 (pixels: 1; masks: 1, the first is 1), 2 (pixels: 5; masks: 2, the first is 1)"
    assert f"{described}, 3 (pixels: 4; masks: 1, the first is 2), ...; if they" in line
    (line,) = warnings_of(
        split_of({0: 1_000_000}, {0: 1, 1: 1, 2: 2, 3: 4}, {0: 9}, {0: 9}),
        class_map=ClassMap(tuple("abcd"), values[:4], None),
    )
    assert "..." not in line


def test_classes_that_only_training_masks_hold_are_named_unless_they_are_rare():
    class_map = ClassMap(("a", "b", "c", "d"), (0, 1, 2, 3), None)
    training = split_of({0: 50_000, 1: 100, 2: 9_000}, {0: 50_000, 3: 1})
    validation = split_of({0: 20_000, 2: 100}, {0: 100})
    lines = warnings_of(training, validation, class_map=class_map)
    assert lines[0].startswith("no validation mask holds b, which cannot be scored")
    assert lines[1].startswith("rare mask values") and len(lines) == 2
    assert warnings_of(validation, training, class_map=class_map, has_names=True) == []
    unusable, records = split_of({0: 20_000, 2: 100}, {0: 100, 1: 100, 3: 100})
    unusable.members[1] = -1  # its values count nowhere
    lines = warnings_of(training, (unusable, records), class_map=class_map, has_names=True)
    assert lines[0].startswith("no validation mask holds b, d, which cannot be scored")


def test_classes_of_a_flag_that_no_mask_holds_are_named():
    class_map = ClassMap(("a", "b", "c"), (0, 1, 2), None)
    splits = split_of(*[{0: 10, 1: 10}] * 4)
    (line,) = warnings_of(splits, class_map=class_map, has_names=True, has_flag=True)
    assert line.startswith("no mask holds c, which --classes names: it will never be predicted")
    (line,) = warnings_of(splits, class_map=class_map, has_names=True, has_flag=True, pixels={0: 10, 1: 0, 2: 3})
    assert line.startswith("no mask holds b, which")
    assert warnings_of(splits, class_map=class_map, has_names=True) == []


def test_masks_of_other_sizes_and_crowds_are_counted():
    inspection, records = split_of(*[{0: 10, 1: 10}] * 4)
    inspection.resized_masks = 3
    other, _ = split_of(*[{0: 10, 1: 10}] * 2)
    other.resized_masks = 1
    summary = AnnotationSummary("COCO", 3, 1, {"cat": 4, "dog": 2}, crowds=5)
    lines = warnings_of((inspection, records), (other, records_of(2, annotations=summary)))
    assert lines[0].startswith("5 of 11 annotated objects are crowds (iscrowd 1)")
    assert lines[1].startswith("4 of 6 masks have another size than their images")
    assert len(lines) == 2


def test_volumes_may_mix_types():
    inspection, _ = split_of(*[{0: 10, 1: 10}] * 4)
    inspection.modes = Counter({"uint8": 2, "float32": 2})
    assert len(warnings_of((inspection, records_of(4)))) == 1
    assert warnings_of((inspection, records_of(4, dims=3))) == []


def test_at_most_sixteen_records_are_sampled_from_the_first_to_the_last():
    assert sampled_indices(1) == [0]
    assert sampled_indices(16) == list(range(16))
    assert sampled_indices(31) == list(range(0, 31, 2))
    assert len(sampled_indices(1000)) == 16 and sampled_indices(1000)[-1] == 999


def test_the_files_of_a_source_are_known(tmp_path):
    assert file_paths("a.png") == file_paths(Path("a.png")) == ("a.png",)
    assert file_paths(VolumeFile(("a.nii", "b.nii"))) == ("a.nii", "b.nii")
    assert file_paths({"path": "a.png", "bytes": None}) == ("a.png",)
    assert file_paths({"path": "a.png", "bytes": b"x"}) == file_paths({"path": None}) == file_paths(PICTURE) == ()


def test_records_without_files_count_by_their_names_and_streams_do_not_count():
    def key(name: str, **attributes) -> str:
        records = ListRecords([{"image": PICTURE, "target": PICTURE, "name": name}])
        for attribute, value in attributes.items():
            setattr(records, attribute, value)
        return content_key([records])

    assert key("a") != key("b")
    assert key("a", group_sizes=np.array([1])) == key("b", group_sizes=np.array([1])) == content_key([])


def test_rows_are_counted_and_written_as_lists_are(monkeypatch):
    distinct = distinct_rows(np.array([[3, 1], [0, 2], [3, 1], [0, 11]]))
    assert distinct.rows.tolist() == [[0, 2], [0, 11], [3, 1]]
    assert distinct.membership.tolist() == [2, 0, 2, 1] and distinct.membership.dtype == np.uint8
    assert distinct.counts().tolist() == [1, 1, 2] and len(distinct) == 4
    assert len(distinct_rows(np.zeros((0, 2), int)).rows) == 0
    monkeypatch.setattr(rows_module, "TEXT_ROWS", 3)
    for count in (0, 1, 3, 4, 7):
        sizes = np.random.default_rng(count).integers(0, 300, (count, 3))
        assert rows_as_text(sizes).decode() == repr(sizes.tolist())


def test_pixels_of_each_value_are_counted():
    assert count_values(np.array([[7, 7, 0], [0, 7, 300]], np.uint16)) == {7: 3, 0: 2, 300: 1}
    assert count_values(np.array([[5]], np.uint8)) == {5: 1}
    colors = np.array([[[1, 2, 3], [1, 2, 3], [3, 2, 1]]], np.uint8)
    assert count_values(colors) == {(1, 2, 3): 2, (3, 2, 1): 1}


def test_two_hundred_and_fifty_five_values_are_not_too_many():
    assert excess_values(dict.fromkeys(range(255), 1)) is None
    assert "are these smoothed edges (JPEG, interpolation)?" in excess_values(dict.fromkeys(range(256), 1))
    assert "numbers of objects" in excess_values(dict.fromkeys(range(300), 1))
    ends = dict.fromkeys(range(300), 1) | {0: 9, 299: 8}  # most of the pixels are at the ends of a ramp
    assert "numbers of objects" not in excess_values(ends)
    assert "numbers of objects" in excess_values(ends | {5: 10})
    near = {(value, 0, 0): 1 for value in range(256)}
    apart = {(value, value * 7 % 256, value * 13 % 256): 1 for value in range(256)}
    assert "numbers of objects" not in excess_values(near) and "numbers of objects" in excess_values(apart)


def test_what_is_wrong_with_four_files_is_one_line():
    def texts(count: int) -> list[str]:
        return [
            f"{name}.png: mask values {number}7, 9{number} belong to no class"
            for number, name in enumerate("abcde"[:count])
        ]

    assert merge_equal(texts(3)) == texts(3)
    assert merge_equal(texts(4)) == ["4 files (a.png, b.png, c.png, ...): mask values 07, 90 belong to no class"]
    assert merge_equal([*texts(4), "f.png: is empty"], 9)[1] == "f.png: is empty"
    assert merge_equal(texts(4), 9) == ["4 files (a.png, b.png, c.png, d.png): mask values 07, 90 belong to no class"]
    assert merge_equal(["no colon"]) == ["no colon"]


def test_numbers_and_colors_are_never_mixed_and_greys_go_with_either():
    numbers = split_of({0: 3, 7: 2}, {0: 1})
    greys = split_of({0: 5, 7: 1}, kind="greys")
    colors = split_of({(0, 0, 0): 4, (7, 0, 0): 6}, kind="colors")
    assert total_pixels([numbers, greys]) == {0: 9, 7: 3}
    assert total_pixels([greys, colors]) == {(0, 0, 0): 9, (7, 7, 7): 1, (7, 0, 0): 6}
    with pytest.raises(DataError, match=r"^0 is a color mask and 0 one of numbers; store all in one way"):
        total_pixels([numbers, colors])
    numbers[0].members[:] = -1  # no usable mask holds them
    assert total_pixels([numbers, colors]) == {(0, 0, 0): 4, (7, 0, 0): 6}


def test_masks_with_values_of_no_class_become_problems():
    inspection, records = split_of({0: 3, 1: 2}, {0: 3, 9: 1}, {0: 2, 9: 3}, {5: 1})
    find_unknown(inspection, records, CLASSES)
    assert set(inspection.problems) == {1, 2, 3} and inspection.members.tolist() == [0, -1, -1, -1]
    kind, text = inspection.problems[2]
    assert kind == "unknown mask value"
    assert text.startswith("2: mask values 9 belong to no class; classes are 0, 1; name them in --classes")
    greys, records = split_of({0: 3, 9: 2}, {0: 3, 8: 1}, kind="greys")
    find_unknown(greys, records, ClassMap(("a", "b"), ((0, 0, 0), (9, 9, 9)), None))
    assert set(greys.problems) == {1}


def test_skipping_is_offered_where_something_is_left():
    inspection, _ = split_of({0: 1}, {0: 1})
    raise_problems(inspection, 2)
    inspection.problems[0] = Problem("kind", "a: is empty")
    with pytest.raises(
        DataError, match=r"^1 of 2 pairs cannot be used: a: is empty; --on-bad-sample skip trains without"
    ):
        raise_problems(inspection, 2)
    with pytest.raises(DataError, match=r"^1 of 1 pairs cannot be used: a: is empty$"):
        raise_problems(inspection, 1)
    inspection.problems |= {number: Problem("kind", f"{number}: is {'abcd'[number]}") for number in range(1, 4)}
    with pytest.raises(
        DataError, match=r"^4 of 9 pairs cannot be used: a: is empty; 1: is b; 2: is c; \.\.\.; --on-bad"
    ):
        raise_problems(inspection, 9)


def test_an_inspection_survives_the_cache():
    inspection = SplitInspection.of_count(3)
    locations = {0: np.array([[1, 2], [3, 4]]), (1, 2, 3): np.array([[0, 0]])}
    inspection.add(0, Inspection((4, 5), (8, 10), "RGB", "colors", {(0, 0, 0): 3, (1, 2, 3): 2}, locations))
    inspection.add(2, Inspection((6, 7), (6, 7), "L", "numbers", {0: 3, 9: 4}))
    inspection.add(1, Inspection((6, 7), (6, 7), "L", "numbers", {0: 1, 9: 1}))
    read = SplitInspection.from_json(inspection.to_json())
    for each in (inspection, read):
        assert each.sizes.tolist() == [[4, 5], [6, 7], [6, 7]] and each.members.tolist() == [0, 1, 1]
        assert each.resized_masks == 1 and each.modes == {"RGB": 1, "L": 2}
        contents = {(content.kind, content.values): pixels for content, pixels in each.contents.items()}
        assert contents["numbers", (0, 9)] == {0: 4, 9: 5}
        assert list(contents) == [("colors", ((0, 0, 0), (1, 2, 3))), ("numbers", (0, 9))]
        assert list(each.class_locations) == [0]
        stored = {value: pixels.tolist() for value, pixels in each.class_locations[0].items()}
        assert stored == {0: [[1, 2], [3, 4]], (1, 2, 3): [[0, 0]]}
    assert read.spacings() == []


def test_an_inspection_of_volumes_survives_the_cache():
    inspection = VolumeSplitInspection.of_count(2)
    voxels = {9: np.array([[300, 2, 1], [0, 0, 70]])}
    inspection.add(
        1,
        VolumeInspection(
            (3, 4, 5), (3, 4, 5), "uint8", "numbers", {0: 50, 9: 10}, voxels, (2.5, 1, 1), np.float32([[1], [3]])
        ),
    )
    for each in (inspection, VolumeSplitInspection.from_json(inspection.to_json())):
        assert each.sizes.tolist() == [[0, 0, 0], [3, 4, 5]] and each.spacings() == [(2.5, 1, 1)]
        assert each.class_locations[1][9].tolist() == [[300, 2, 1], [0, 0, 70]]
        foreground = each.volumes.foreground
        assert foreground.mean == (2,) and foreground.std == (1,) and foreground.clip == pytest.approx((1.01, 2.99))
        assert each.volumes.channels == {1: 1}


def test_ct_is_clipped_to_the_percentiles_of_labeled_voxels_and_other_volumes_are_standardized():
    values = [np.arange(201, dtype=np.float32)[:, None], np.zeros((0, 1), np.float32)]
    findings = VolumeFindings.of(np.ones((2, 3)), values)
    assert findings.foreground.clip == (1, 199) and findings.channels == {1: 2}
    config = DataConfig()
    for modality in ("CT", "ct"):
        normalization = findings.normalization(modality, config)
        assert (normalization.clip, normalization.mean, normalization.standardize) == ((1, 199), (100,), False)
        assert normalization.std == pytest.approx((58.0230,), abs=1e-4)
    for modality in (None, "MRI"):
        normalization = findings.normalization(modality, config)
        assert normalization[:2] == ((0,), (1,)) and normalization.clip is None and normalization.standardize
    assert findings.normalization("CT", DataConfig(normalization="z-score")).standardize
    assert findings.normalization("MRI", DataConfig(normalization="ct")).clip == (1, 199)


def test_constant_voxels_are_not_clipped_and_unlabeled_ones_cannot_be_measured():
    constant = VolumeFindings.of(np.ones((1, 3)), [np.full((5, 1), 7, np.float32)])
    normalization = constant.normalization("CT", DataConfig())
    assert (normalization.clip, normalization.mean, normalization.std) == (None, (7,), (1,))
    unlabeled = VolumeFindings.of(np.ones((1, 3)), [np.zeros((0, 1), np.float32)])
    assert unlabeled.foreground is None
    with pytest.raises(DataError, match="is measured on labeled voxels, but there are none"):
        unlabeled.normalization("CT", DataConfig())


def test_volumes_of_other_channels_are_an_error_unless_they_are_skipped():
    values = [np.zeros((2, channels), np.float32) for channels in (2, 1, 2)]
    findings = VolumeFindings.of(np.ones((3, 3)), values)
    assert findings.channels == {2: 2, 1: 1} and findings.foreground is None
    with pytest.raises(DataError, match="volumes have 1 and 2 channels; --check-data lists them"):
        findings.normalization(None, DataConfig())
    assert findings.normalization(None, DataConfig(on_bad_sample="skip")).mean == (0, 0)
    mostly_grey = VolumeFindings.of(np.ones((3, 3)), [values[1], values[0], values[1]])
    assert mostly_grey.normalization(None, DataConfig(on_bad_sample="skip")).mean == (0,)


def test_an_axis_is_coarse_beyond_three_times_the_finest():
    alike = np.array([[3.0, 1.0, 1.0]] * 9 + [[1.0, 1.0, 1.0]] * 2)
    assert target_spacing(alike) == (3, 1, 1)
    coarse = np.array([[6.0, 1.0, 1.0]] * 9 + [[2.0, 1.0, 1.0]] * 2)
    assert target_spacing(coarse) == (2, 1, 1)  # that of the finest tenth
    assert target_spacing(np.array([[1.0, 1.0, 1 / 3]])) == (1, 1, 0.333333)


def write_volume(file: Path, values: np.ndarray) -> str:
    """A volume given as (z, y, x)."""
    nibabel.save(nibabel.Nifti1Image(values.T, np.diag((1.0, 1.0, 2.0, 1.0))), file)
    return str(file)


def look_at_volume(folder: Path, image: np.ndarray, label: np.ndarray):
    sources = [
        VolumeFile((write_volume(folder / f"{kind}.nii", array),))
        for kind, array in zip("il", (image, label), strict=True)
    ]
    return inspect_volume({"image": sources[0], "target": sources[1], "name": "a"})


def test_a_look_at_a_volume_finds_where_each_value_lies_and_the_intensities_of_labels(tmp_path):
    label = np.zeros((3, 4, 5), np.uint8)
    label[0, 1, 2] = label[2, 3, 4] = label[2, 0, 0] = 7
    label[1, 1, 1] = 255
    label[1, 3, 0] = 2
    image = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    found = look_at_volume(tmp_path, image, label)
    assert (found.size, found.mask_size, found.spacing, found.kind) == ((3, 4, 5), (3, 4, 5), (2, 1, 1), "numbers")
    assert found.pixels == {0: 55, 2: 1, 7: 3, 255: 1}
    assert found.class_locations[7].tolist() == [[0, 1, 2], [2, 0, 0], [2, 3, 4]]
    assert found.class_locations[2].tolist() == [[1, 3, 0]] and found.class_locations[255].tolist() == [[1, 1, 1]]
    voxels = found.class_locations[0]
    assert len({tuple(voxel) for voxel in voxels.tolist()}) == 55 and not label[tuple(voxels.T)].any()
    assert found.foreground.ravel().tolist() == [7, 35, 40, 59]  # of 7, 2, 7, 7: neither 0 nor 255 is a label


def test_of_many_voxels_a_thousand_are_remembered(tmp_path):
    label = np.ones((11, 40, 40), np.uint8)
    label[:2] = 0
    found = look_at_volume(tmp_path, label.astype(np.float32), label)
    voxels = found.class_locations[1]
    assert len(voxels) == 1000 and len(np.unique(voxels, axis=0)) == 1000
    assert label[tuple(voxels.T)].all() and len(found.foreground) == 10_000
    assert set(voxels[:, 0].tolist()) == set(range(2, 11))
    again = look_at_volume(tmp_path, label.astype(np.float32), label)
    assert np.array_equal(voxels, again.class_locations[1])


def test_a_label_on_another_grid_than_its_image_is_a_problem(tmp_path):
    zeros = np.zeros((3, 4, 5), np.uint8)
    problem = look_at_volume(tmp_path, zeros, np.zeros((3, 4, 6), np.uint8))
    text = "a: image is 3 x 4 x 5, its label 3 x 4 x 6 (depth x height x width)"
    assert problem == Problem("label of another shape", text)
    nibabel.save(nibabel.Nifti1Image(zeros.T, np.diag((1.0, 1.0, 2.5, 1.0))), tmp_path / "l.nii")
    source = [VolumeFile((str(tmp_path / f"{kind}.nii"),)) for kind in "il"]
    problem = inspect_volume({"image": source[0], "target": source[1], "name": "a"})
    assert problem.kind == "label of another affine" and "differ by up to 0.5 mm" in problem.text


def write_pair(folder: Path, mask: np.ndarray, suffix: str = ".tif") -> dict:
    """A record of a tiled TIFF and a mask of it."""
    image = np.zeros((*mask.shape[:2], 3), np.uint8)
    tifffile.imwrite(folder / "image.tif", image, photometric="rgb", tile=(32, 32))
    file = folder / f"mask{suffix}"
    if suffix == ".tif":
        tifffile.imwrite(file, mask, photometric="minisblack", tile=(32, 32))
    else:
        Image.fromarray(mask).save(file)
    return {"image": str(folder / "image.tif"), "target": str(file), "name": "a"}


def test_pixels_of_a_class_come_from_strips_by_how_many_these_hold(tmp_path, monkeypatch):
    mask = np.zeros((64, 64), np.uint8)
    mask[:32] = 5
    mask[40] = 5  # one row of the second strip
    record = write_pair(tmp_path, mask)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE", 100)
    monkeypatch.setattr("data_utils.image_io.windowed.STRIP", 64 * 32)
    rows = inspect_in_windows(record).class_locations[5][:, 0]
    assert len(rows) == 64 and 0 < (rows == 40).sum() < 20


def test_a_mask_that_is_read_in_strips_is_as_when_read_whole_and_its_pixels_are_where_they_were(tmp_path, monkeypatch):
    mask = np.random.default_rng(0).choice(np.uint8([0, 0, 0, 5]), (160, 64))
    mask[150, 7] = 9
    record = write_pair(tmp_path, mask)
    whole = inspect(record)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE", 100)
    monkeypatch.setattr("data_utils.image_io.windowed.STRIP", 64 * 32)
    found = inspect_in_windows(record)
    assert (found.size, found.mask_size, found.kind, found.pixels) == (
        whole.size,
        whole.mask_size,
        "numbers",
        whole.pixels,
    )
    assert found.mode == "uint8 x 3"
    assert found.class_locations[9].tolist() == [[150, 7]]
    for value in (0, 5):
        pixels = found.class_locations[value]
        assert len(pixels) == 64 and (mask[tuple(pixels.T)] == value).all()
        assert pixels[:, 0].min() < 40 and pixels[:, 0].max() > 120


def test_a_large_image_is_measured_on_windows_from_its_first_to_its_last_row_and_column(tmp_path, monkeypatch):
    pixels = np.arange(90 * 70, dtype=np.uint16).reshape(90, 70)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", tile=(16, 16))
    monkeypatch.setattr(normalization_module, "SIDE", 16)
    assert read_sample(str(tmp_path / "a.tif"), "a").shape == (90, 70, 1)  # it is small
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE", 100)
    sample = read_sample(str(tmp_path / "a.tif"), "a")
    assert sample.shape == (16 * 16, 16, 1)
    windows = sample.reshape(4, 4, 16, 16)
    tops = [int(window[0, 0]) // 70 for window in windows[:, 0]]
    lefts = [int(window[0, 0]) % 70 for window in windows[0]]
    assert tops == [0, 24, 49, 74] and lefts == [0, 18, 36, 54]
    assert windows[-1, -1, -1, -1] == pixels[-1, -1]


def test_problems_are_listed_with_the_flags_that_train_without_them():
    assert list_problems({"a": []}, 0) == ["no problems"]
    assert list_problems({"a": []}, 2) == ["no problems, but 2 to check, see above"]
    lines = list_problems({"file without partner": ["a.png: has no mask"], "lossy": []}, 0)
    remedy = "--allow-unpaired trains without the files that have no partner"
    assert lines == ["problems: 1", "  file without partner: 1", "    a.png: has no mask", remedy]
    skip = "--on-bad-sample skip trains without the files that cannot be used"
    assert list_problems({"lossy": ["a: is lossy"]}, 0)[-1] == skip
    for kind in ("classes", "too many mask values"):  # no file alone has these
        assert list_problems({kind: ["of all"]}, 0)[-1] == "    of all"
    both = list_problems({"file without partner": ["a: x"], "lossy": ["b: y"]}, 0)
    assert both[0] == "problems: 2" and both[-2:] == [remedy, skip]
    many = [f"{name}: is {name * 3}" for name in "abcdefghijklmnopqrstuvwxyz"]
    assert list_problems({"lossy": many}, 0)[2:-1] == [f"    {text}" for text in many[:20]] + ["    ..."]


def test_annotations_are_described_over_both_splits():
    train = records_of(1, annotations=AnnotationSummary("COCO", 3, 1, {"cat": 4, "dog": 2}))
    val = records_of(1, annotations=AnnotationSummary("COCO", 2, 2, {"dog": 10}))
    assert describe_annotations(train, val) == [
        "annotations: COCO; 5 images with objects, 3 without",
        "objects of each class",
        "         4  cat",
        "        12  dog",
    ]
    assert describe_annotations(records_of(1), records_of(1)) == []
    empty = records_of(1, annotations=AnnotationSummary("YOLO", 0, 2, {}))
    assert describe_annotations(empty, val)[0] == "annotations: YOLO and COCO; 2 images with objects, 4 without"
    assert len(describe_annotations(empty, records_of(1))) == 1


def test_sizes_modes_and_classes_are_described_with_their_shares():
    inspection, _ = split_of({0: 3, 9: 1}, {0: 3, 9: 1}, {0: 1})
    inspection.sizes[2] = 0  # it cannot be used
    inspection.sizes[1] = 6, 7
    other, _ = split_of({0: 4}, {0: 4})
    lines = describe([inspection, other], {255: 1, 0: 300, 9: 99}, {0: "sky", 255: "(ignored)"})
    assert lines == [
        "sizes (height x width): 4 x 5: 3, 6 x 7: 1",
        "image modes: L: 5",
        "classes: mask value, pixels",
        "         0   75.000 %  sky",
        "         9   24.750 %  (no class)",
        "       255    0.250 %  (ignored)",
    ]
    lines = describe([inspection], {0: 96, 1: 1, 2: 1, 3: 1, 4: 1}, {0: "sky"})
    assert lines[-2:] == ["         0   96.000 %  sky", "    others    4.000 %  (4 values of no class)"]
    assert len(describe([inspection], {0: 97, 1: 1, 2: 1, 3: 1}, {0: "sky"})) == 2 + 1 + 4
    assert describe([SplitInspection.of_count(1)], {}, {}) == []
    assert describe([inspection], {0: 1}, {})[-1].startswith("image modes")


def test_the_ten_most_common_sizes_are_listed():
    sizes = Counter({(number, 2): number for number in range(1, 12)})
    text = most_common(sizes)
    assert text.startswith("11 x 2: 11, 10 x 2: 10, ") and text.endswith(", 2 x 2: 2, ...")
    assert most_common(Counter({(3, 4): 2})) == "3 x 4: 2"


def test_spacings_are_described_with_three_digits():
    inspection = VolumeSplitInspection.of_count(2)
    for number, spacing in enumerate(((2.50049, 1, 1), (2.5, 1, 1.0004))):
        volume = VolumeInspection((3, 4, 5), (3, 4, 5), "uint8", "numbers", {0: 60}, {}, spacing)
        inspection.add(number, volume)
    lines = describe([inspection], {}, {})
    assert lines[0] == "sizes (depth x height x width): 3 x 4 x 5: 2"
    assert lines[1] == "spacings in mm along z, y, x: 2.5 x 1 x 1: 2"


def test_a_report_ends_with_its_problems(tmp_path):
    folder = tmp_path / "data"
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
        for number in range(6):
            picture = np.full((8, 8, 3) if kind == "images" else (8, 8), number % 2, np.uint8)
            Image.fromarray(picture).save(folder / kind / f"{number}.png")
    report, problems = check_data(DataConfig(str(folder), val_fraction=0.34))
    assert problems == 0 and report.startswith(f"{folder}: 4 training images, 2 validation images")
    (folder / "masks" / "9.png").write_bytes(b"")
    Image.fromarray(np.zeros((8, 11), np.uint8)).save(folder / "masks" / "3.png")
    report, problems = check_data(DataConfig(str(folder), val_fraction=0.34))
    assert problems == 2 and "  file without partner: 1" in report
    assert "  mask and image differ in proportions: 1" in report
    report, problems = check_data(DataConfig(str(folder), val_fraction=0.34, allow_unpaired=True))
    assert problems == 1 and "file without partner" not in report


def test_what_a_data_set_is_is_said_in_one_line(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for number in range(10):
            picture = np.full((8, 8, 3) if kind == "images" else (8, 8), number % 2, np.uint8)
            Image.fromarray(picture).save(tmp_path / kind / f"{number}.png")
    info = load_info(tmp_path)
    assert str(info).startswith("9 training and 1 validation images, 3 channels, ")
    (tmp_path / "masks" / "3.png").write_bytes(b"x")
    skipped = str(load_info(tmp_path, on_bad_sample="skip", seed=1))
    assert "; 1 bad samples skipped: 3.png: mask" in skipped


def test_a_pretrained_models_normalization_stays_and_its_classes_go(tmp_path):
    info = load_info(write_folder(tmp_path, 4, seed=0, size=(8, 8)), scale=0.5)
    own = info.preprocess()
    assert own.mean == info.normalization.mean and own.class_values == (0, 255) and own.scale == 0.5
    assert not own.draft and own.spacing is None and info.axes(3).dims == 2 and info.channels == 3
    source = Preprocess(
        mean=(1.0,) * 3,
        std=(2.0,) * 3,
        scale=0.25,
        draft=True,
        class_names=("a", "b", "c"),
        class_values=(1, 2, 3),
        ignore_value=9,
        joined_values=((4, 1),),
        outside_class=0,
    )
    theirs = info.preprocess(source)
    assert (theirs.mean, theirs.std, theirs.scale, theirs.draft) == ((1.0,) * 3, (2.0,) * 3, 0.5, True)
    assert (theirs.class_values, theirs.ignore_value, theirs.joined_values) == ((0, 255), None, ())
    without_classes = replace(info, reader=SimpleNamespace(to_preprocess=dict)).preprocess(source)
    assert (without_classes.class_names, without_classes.class_values) == ((), ())
    assert without_classes.ignore_value is without_classes.outside_class is None


def write_mask(folder: Path, name: str, mask: np.ndarray, **options) -> dict:
    """A record of a black picture and a mask in a file."""
    Image.fromarray(mask).save(folder / name, **options)
    return {"image": np.zeros(mask.shape[:2], np.uint8), "target": str(folder / name), "name": "a"}


def test_a_jpeg_of_two_values_is_a_mask_and_one_of_three_has_invented_some(tmp_path):
    blocks = np.repeat(np.repeat(np.array([[0, 255], [255, 0]], np.uint8), 16, axis=0), 16, axis=1)
    two = write_mask(tmp_path, "two.jpg", blocks, quality=100)
    assert inspect(two).pixels == {0: 512, 255: 512}
    blocks[:16, :16] = 128
    three = write_mask(tmp_path, "three.jpg", blocks, quality=100)
    problem = inspect(three)
    assert problem.kind == "lossy mask" and "a: mask is a JPEG with the values 0, 128, 255; comp" in problem.text
    assert inspect(three, has_classes=False).pixels == {0: 256, 128: 256, 255: 512}


def test_values_are_numbers_or_greys_or_colors_as_they_are_stored(tmp_path):
    numbers = np.array([[0, 9], [9, 9]], np.uint8)
    greys = np.repeat(numbers[:, :, None], 3, axis=2)
    colors = greys.copy()
    colors[0, 0, 1] = 7
    for kind, mask in (("numbers", numbers), ("greys", greys), ("colors", colors)):
        assert inspect(write_mask(tmp_path, f"{kind}.png", mask)).kind == kind


def in_strips(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Have all TIFFs read in strips of 32 rows."""
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE", 100)
    monkeypatch.setattr("data_utils.image_io.windowed.STRIP", width * 32)


def write_color_pair(folder: Path, mask: np.ndarray) -> dict:
    """A record of a tiled TIFF and a tiled mask in color."""
    record = write_pair(folder, mask[:, :, 0])
    tifffile.imwrite(folder / "mask.tif", mask, photometric="rgb", tile=(32, 32))
    return record


def test_strips_of_grey_in_a_color_mask_hold_colors(tmp_path, monkeypatch):
    mask = np.zeros((96, 64, 3), np.uint8)
    mask[:32, :7] = 9
    mask[64:, :5] = 9
    mask[40, 50] = 200, 9, 9
    in_strips(monkeypatch, 64)
    found = inspect_in_windows(write_color_pair(tmp_path, mask))
    ground = 96 * 64 - 32 * 7 - 32 * 5 - 1
    assert (found.kind, found.pixels) == ("colors", {(0, 0, 0): ground, (9, 9, 9): 32 * 12, (200, 9, 9): 1})
    assert found.class_locations.keys() == found.pixels.keys()
    for value, pixels in found.class_locations.items():
        assert (mask[tuple(pixels.T)] == value).all()
    assert set(found.class_locations[9, 9, 9][:, 0] // 32) == {0, 2}
    mask[40, 50] = 9
    assert inspect_in_windows(write_color_pair(tmp_path, mask)).kind == "greys"


def test_values_are_too_many_over_all_strips_and_numbers_of_objects_have_places(tmp_path, monkeypatch):
    mask = np.zeros((64, 64), np.uint16)
    mask[:32] = np.arange(32 * 64).reshape(32, 64) % 200
    mask[32:] = 200 + np.arange(32 * 64).reshape(32, 64) % 200
    in_strips(monkeypatch, 64)
    record = write_pair(tmp_path, mask)
    assert inspect_in_windows(record).kind == "too many mask values"
    found = inspect_in_windows(record, has_classes=False)
    assert len(found.pixels) == 400 and set(found.class_locations) == set(range(400))
    mask[:32] = np.arange(32 * 64).reshape(32, 64) % 300
    found = inspect_in_windows(write_pair(tmp_path, mask), has_classes=False)
    objects = found.class_locations[1]
    assert len(objects) == 64 and mask[tuple(objects.T)].all() and len(set(mask[tuple(objects.T)].tolist())) > 9
    assert not mask[tuple(found.class_locations[0].T)].any()


def test_masks_that_are_resized_are_read_in_windows_and_others_are_problems(tmp_path, monkeypatch):
    in_strips(monkeypatch, 64)
    record = write_pair(tmp_path, np.zeros((64, 96), np.uint8))
    tifffile.imwrite(tmp_path / "mask.tif", np.zeros((32, 48), np.uint8), photometric="minisblack", tile=(32, 32))
    found = inspect_in_windows(record)
    assert (found.size, found.mask_size) == ((64, 96), (32, 48))
    tifffile.imwrite(tmp_path / "mask.tif", np.zeros((32, 40), np.uint8), photometric="minisblack", tile=(32, 32))
    assert inspect_in_windows(record).kind == "mask and image differ in proportions"
    record["target"] = {"bytes": b"x", "path": None}  # in memory: it is read whole
    assert inspect_in_windows(record).kind == "mask cannot be read"


def test_128_images_are_measured_that_the_seed_draws_and_no_bad_ones(monkeypatch):
    records = ListRecords([{"image": np.full((1, 1), i, np.uint8), "target": PICTURE, "name": "a"} for i in range(200)])

    def measured(seed: int, bad: tuple[int, ...]) -> set[int]:
        values = []
        channel_sums = normalization_module.channel_sums
        with monkeypatch.context() as patch:
            patch.setattr(
                normalization_module, "channel_sums", lambda image: values.append(image.item()) or channel_sums(image)
            )
            measure_normalization(records, DataConfig(seed=seed), bad)
        assert len(set(values)) == len(values)
        return set(values)

    first = measured(0, ())
    assert len(first) == 128 and measured(0, ()) == first != measured(1, ())
    assert measured(0, (min(first), max(first))) == first - {min(first), max(first)}


def test_an_image_that_cannot_be_measured_is_left_out_only_where_bad_ones_are_skipped():
    bad = np.full((2, 2), np.nan, np.float32)
    records = ListRecords([{"image": image, "target": PICTURE, "name": "a"} for image in (bad, np.ones((2, 2)))])
    assert measure_normalization(records, DataConfig(on_bad_sample="skip"), ()).mean == (1,)
    with pytest.raises(DataError, match="a: has pixels that are not numbers"):
        measure_normalization(records, DataConfig(), ())


@pytest.mark.parametrize(
    ("mean", "std", "is_color"),
    [
        ((1, 1, 2), (1, 1, 1), True),
        ((1, 1, 1), (1, 2, 1), True),
        ((1, 1, 1), (2, 2, 2), False),
        ((1, 2), (1, 1), False),
        ((1, 2, 3, 4), (1, 1, 1, 1), False),
        ((1,), (1,), False),
    ],
)
def test_images_are_in_color_where_three_channels_differ(mean, std, is_color):
    assert Normalization(mean, std, ("uint8",)).is_color is is_color


def info_of(config: DataConfig, sizes: np.ndarray, spacings: np.ndarray | None = None, **attributes) -> DatasetInfo:
    """A data set of three training images or volumes of these sizes, and one validation image."""
    dims = sizes.shape[1]
    train = Split(records_of(len(sizes), dims=dims, **attributes), sizes, spacings=spacings)
    val = Split(records_of(1, dims=dims), sizes[:1])
    reader = SimpleNamespace(to_preprocess=dict, describe=lambda: "2 classes")
    return DatasetInfo(config, train, val, reader, Normalization((7.0,), (2.0,), ("uint8",)))


def test_the_usual_size_of_images_is_the_median_at_which_the_network_sees_them():
    sizes = np.array([(10, 200), (30, 40), (50, 10)])
    info = info_of(DataConfig(image_size=(5, 6), crop_size=(3, 4)), sizes)
    assert info.usual_size(Preprocess()) == (30, 40)
    assert info.usual_size(Preprocess(scale=0.5)) == (15, 20)
    assert info.usual_size(Preprocess(image_size=(7, 8))) == (7, 8)
    stream = info_of(info.config, np.zeros((3, 2), int))
    assert stream.usual_size(Preprocess()) == (5, 6)
    assert replace(stream, config=DataConfig(crop_size=(3, 4))).usual_size(Preprocess()) == (3, 4)
    assert replace(stream, config=DataConfig()).usual_size(Preprocess()) == (1, 1)


def test_the_usual_size_of_volumes_is_that_at_the_spacing_of_the_network():
    spacings = np.array([(4.0, 1.0, 1.0), (2.0, 1.0, 2.0), (2.0, 1.0, 1.0)])
    info = info_of(DataConfig(), np.array([(10, 20, 30), (10, 20, 30), (40, 20, 30)]), spacings)
    assert info.usual_size(Preprocess(spacing=(2.0, 0.5, 1.0))) == (20, 40, 30)


def test_a_network_is_told_of_bands_places_turns_and_spacings():
    sizes = np.array([(10, 20)] * 3)
    assert info_of(DataConfig(bands=("B2",)), sizes).preprocess().bands == ("B2",)
    both = info_of(DataConfig(bands=("B2",)), sizes, bands=("red", "nir"))
    assert both.preprocess().bands == ("red", "nir")  # those of the records are files of their own
    assert [info_of(DataConfig(place=place), sizes).preprocess().place for place in (True, False)] == [True, False]
    assert [info_of(DataConfig(draft=draft), sizes).preprocess().draft for draft in (True, False)] == [True, False]
    volumes = info_of(DataConfig(), np.array([(8, 9, 10)] * 3), np.array([(2.0, 1.0, 1.0)] * 3))
    assert volumes.preprocess().spacing == (2, 1, 1)
    assert volumes.preprocess(Preprocess(spacing=(3.0, 3.0, 3.0))).spacing == (3, 3, 3)
    assert str(volumes).startswith(
        "3 training and 1 validation volumes, mostly of 2, 1, 1 mm along z, y, x, 1 channels, 2 classes"
    )


def test_twenty_skipped_samples_of_both_splits_are_named():
    info = info_of(DataConfig(), np.array([(10, 20)] * 3))
    train = replace(info.train, bad={number: f"t{number}" for number in range(15)})
    val = replace(info.val, bad={number: f"v{number}" for number in range(6)})
    text = str(replace(info, train=train, val=val))
    assert "; 21 bad samples skipped: t0; t1; " in text and text.endswith("; v4; ...")
    assert str(replace(info, val=replace(val, bad={0: "v0"}))).endswith("; 1 bad samples skipped: v0")


def test_only_a_flag_can_name_classes_by_mistake_and_what_a_reader_warns_of_is_said():
    class_map = ClassMap(("a", "b", "c"), (0, 1, 2), None)
    reader = SimpleNamespace(class_map=class_map, warnings=lambda splits: (f"{len(splits)} splits",))
    splits = [split_of(*[{0: 10, 1: 10, 255: 90}] * 4)]
    all_records = [records for _, records in splits]

    def lines(has_names: bool, **settings) -> tuple[str, ...]:
        config = DataConfig(**settings)
        return find_warnings(splits, all_records, total_pixels(splits), reader, config, has_names=has_names)

    assert lines(has_names=True) == ("1 splits",)
    (line, _) = lines(has_names=True, classes="0=a,1=b,2=c")
    assert line.startswith("no mask holds c, which --classes names")
    class_map = replace(class_map, ignore_value=255)
    reader.class_map = class_map
    assert lines(has_names=False)[0].startswith("255 counts nowhere")
    assert not [line for line in lines(has_names=False, ignore_index="255") if line.startswith("255")]


def test_settings_of_the_other_kind_of_records_are_refused(tmp_path):
    images = ImageInspector(has_classes=True)
    volumes = VolumeInspector(has_classes=True)
    for config in (DataConfig(image_size=(8, 8)), DataConfig(scale=0.5)):
        images.check_settings(config)
        with pytest.raises(DataError, match="--image-size and --scale are for images"):
            volumes.check_settings(config)
    volumes.check_settings(DataConfig(normalization="ct"))
    with pytest.raises(DataError, match="--normalization ct is for volumes, and the data are images"):
        images.check_settings(DataConfig(normalization="ct"))
    with pytest.raises(DataError, match="--normalization ct is for volumes"):
        load_info(write_folder(tmp_path, 4, seed=0, size=(8, 8)), normalization="ct")


def test_masks_of_few_values_may_hold_too_many_together_unless_classes_have_names():
    targets = [np.arange(first, first + 100, dtype=np.uint16)[None] for first in (0, 100, 200)]
    image = np.zeros((1, 100), np.uint8)
    records = ListRecords([{"image": image, "target": target, "name": str(i)} for i, target in enumerate(targets)])
    with pytest.raises(DataError, match="the masks up to 2 hold more than 255 values: 0, 1, 2"):
        inspect_split(records, "reading")
    assert len(total_pixels([(inspect_split(records, "reading", has_names=True), records)])) == 300
    unlimited = inspect_split(records, "reading", ImageInspector(has_classes=False))
    assert unlimited.members.tolist() == [0, 1, 2]


def test_what_images_are_labeled_for_is_kept_with_what_their_masks_hold():
    class Labeled(ListRecords):
        def labeled(self, i: int) -> tuple[str, ...] | None:
            return (None, ("a",), ("a", "b"), ("a",))[i]

    mask = np.array([[0, 1]], np.uint8)
    records = Labeled([{"image": mask, "target": mask, "name": str(number)} for number in range(4)])
    inspection = inspect_split(records, "reading")
    for each in (inspection, SplitInspection.from_json(inspection.to_json())):
        assert each.members.tolist() == [0, 1, 2, 1]
        assert [content.labels for content in each.contents] == [None, ("a",), ("a", "b")]
        assert pixels_by_labels([(each, records)]) == {
            None: {0: 1, 1: 1},
            ("a",): {0: 2, 1: 2},
            ("a", "b"): {0: 1, 1: 1},
        }


def test_crops_are_taken_around_classes_in_their_order_that_an_image_is_labeled_for():
    class_map = ClassMap(("ground", "car", "dog"), (0, 5, 9), 255, joined=((7, 1), (8, IGNORE_INDEX)))
    reader = SimpleNamespace(class_map=class_map)
    found = {value: np.array([[value, 1]]) for value in (9, 7, 255, 8, 3, 5, 0)}

    def located(background: int | None, labeled: set[int] | None = None) -> list[list[int]]:
        return [pixels[:, 0].tolist() for pixels in _list_locations(found, reader, background, labeled)]

    assert located(None) == [[0], [7, 5], [9]]
    assert located(0) == [[7, 5], [9]]
    assert located(None, {0, 2}) == [[0], [9]] and located(0, {0, 2}) == [[9]]
    reader = SimpleNamespace(class_map=None, is_empty=lambda value: value == 0)
    assert located(None) == [[9], [7], [255], [8], [3], [5], [0]]
    assert located(0) == [[9], [7], [255], [8], [3], [5]]
