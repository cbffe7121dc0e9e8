"""What each task shows of itself: tables of its scores, figures, and views of an image, from values written out.

Modules: tasks/section.py,
tasks/classes/show.py, tasks/overlapping/show.py, tasks/objects/show.py, tasks/landmarks/show.py,
tasks/kind.py.
"""

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from support.rasters import write_raster
from support.reports import class_scores, class_section
from support.volumes import RAS, write_nifti

from data_utils.bits import pack_bits
from data_utils.class_map import ClassMap
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.image_io.volumes import read_volume
from data_utils.point_states import ABSENT, OUTSIDE, PRESENT
from tasks.charts import matrix_picture
from tasks.classes.loss import Classes, PartlyLabeledClasses
from tasks.classes.reader import ClassReader
from tasks.classes.show import ClassSection, confusions
from tasks.classes.target import PartlyLabeledTarget
from tasks.drawing import GREY, RED, busiest_voxel, enlarge_picture, orthogonal_slices, outlined_overlay, render_points
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from tasks.landmarks.scores import LandmarkScores
from tasks.landmarks.show import LandmarkSection
from tasks.objects.labels import pack_labels
from tasks.objects.loss import Objects
from tasks.objects.show import BLUE, GREEN, object_errors
from tasks.objects.target import ObjectTarget
from tasks.overlapping.reader import OverlapReader, RegionReader
from tasks.overlapping.scores import OverlapScores, RegionScores
from tasks.overlapping.show import OverlapSection, RegionSection
from tasks.overlapping.target import Region
from tasks.section import Section, read_example
from tasks.tables import Table
from tasks.task import Scores
from train_utils.evaluation import Evaluation
from train_utils.reporting.model_card import model_card
from train_utils.settings.record import RunSettings


def card_of(section: Section, scores: Scores) -> str:
    """The model card of a run that has these scores."""
    record = {
        "flags": {"dataset": "cells"},
        "identity": {"dims": 2, "in_channels": 3},
        "profile": {"processes": 1, "mixed_precision": "no"},
        "total_steps": 40,
        "run": {"torch": "2", "accelerate": "1"},
    }
    return model_card(RunSettings.from_json(record), Evaluation(30, None, scores), section)


def rows_of(table: Table) -> list[list[str]]:
    """The cells of a table without its titles."""
    return table.cells()[1:]


def test_classes_that_occur_have_rows_and_the_others_are_named():
    names = [f"class {index}" for index in range(30)]
    matrix = torch.zeros(30, 30, dtype=torch.int64)
    matrix[0, 0], matrix[3, 3], matrix[0, 7] = 50, 1, 5
    (table,) = class_scores(names, matrix).score_tables()
    assert rows_of(table)[:3] == [
        ["class 0", f"{50 / 55:.4f}", f"{100 / 105:.4f}", "1.0000", f"{50 / 55:.4f}", "55"],
        ["class 3", "1.0000", "1.0000", "1.0000", "1.0000", "1"],
        ["class 7", "0.0000", "0.0000", "0.0000", "n/a", "0"],
    ]
    assert table.note.startswith(
        "27 classes occur neither in the masks nor in the predictions: class 1, class 2, class 4,"
    )


def test_the_matrix_has_the_classes_that_occur():
    scores = class_scores("abc", torch.tensor([[6, 0, 2], [0, 0, 0], [1, 0, 4]]))
    matrix, listed = class_section("abc").figures(scores)
    assert np.array_equal(matrix.picture, matrix_picture(np.array([[6, 2], [1, 4]]), ["a", "c"]))
    assert matrix.text == "Percent of a row's pixels."
    assert rows_of(listed.table) == [["a", "c", "2"], ["c", "a", "1"]]


def test_the_eight_most_frequent_confusions_are_listed():
    rows = confusions(np.arange(25).reshape(5, 5), [f"c{index}" for index in range(5)])
    assert [values["pixels"] for _, values in rows] == [23, 22, 21, 20, 19, 17, 16, 15]
    assert rows[0] == ("c4", {"predicted": "c3", "pixels": 23})


def test_partly_labeled_classes_say_what_cannot_be_scored():
    task = PartlyLabeledClasses(("a", "b", "c"), flags=torch.tensor([[1, 1, 1], [0, 1, 0]]).bool())
    section = class_section(task.names)
    mask = torch.ones(1, 2, 2, dtype=torch.int64)
    scores = task.new_scores(2)
    scores.add(mask, PartlyLabeledTarget(mask, torch.tensor([1])), 0)
    assert "No image is labeled for a, c: these classes cannot be scored." in scores.score_tables()[0].note
    assert section.figures(scores)[0].text == "No validation image is labeled for all classes."
    scores.add(mask, PartlyLabeledTarget(mask, torch.tensor([0])), 1)
    assert "No image" not in scores.score_tables()[0].note
    matrix = section.figures(scores)[0]
    assert matrix.picture is not None
    assert "in the images that are labeled for all classes" in matrix.text


def test_only_classes_that_masks_hold_count_as_not_found():
    matrix = torch.tensor([[5, 1, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 4]])
    assert class_scores("abcd", matrix).unfound == ["b"]


COLORS = ((0, 0, 0), (255, 128, 0), (0, 90, 200))
IMAGE = np.full((4, 6), 100, np.uint8)


def test_views_of_classes_have_the_colors_of_the_masks_and_red_errors():
    section = ClassSection(ClassReader(ClassMap(("a", "b", "c"), COLORS, None)))
    truth = np.uint8([[0, 0, 0, 1, 1, 1]] * 4)
    truth[0, 0] = 255
    prediction = np.uint8([[2] * 6] * 2 + [[0] * 6] * 2)
    views = section.views(IMAGE, truth, prediction)
    for name, mask in (("truth", truth), ("prediction", prediction)):
        np.testing.assert_array_equal(views[name], outlined_overlay(IMAGE, mask, np.array(COLORS, np.uint8)))
    assert tuple(views["errors"][0, 0]) == GREY
    assert tuple(views["errors"][1, 0]) == RED
    assert np.ptp(views["errors"][3, 0]) == 0


# [[rightly left out, wrongly found], [missed, found]] of each class
TABLES = [[[90, 2], [3, 5]], [[50, 0], [50, 0]], [[60, 0], [0, 1040]]]
OVERLAP_ROWS = [
    ["a", "0.5000", "0.6667", "0.7143", "0.6250", "8", "3", "2"],
    ["b|c", "0.0000", "0.0000", "n/a", "0.0000", "50", "50", "0"],
    ["d", "1.0000", "1.0000", "1.0000", "1.0000", "1,040", "0", "0"],
    ["mean", "0.5000", f"{(2 / 3 + 1) / 3:.4f}", "", "", "", "", ""],
]


def test_nothing_is_true_where_an_image_holds_no_data(tmp_path):
    """Reviews and calibrations count such pixels as little as training does."""
    bands = np.full((2, 4, 6), 7, np.uint8)
    bands[:, :, :2] = 0
    image = write_raster(tmp_path / "a.tif", bands, nodata=0)
    record = {"image": str(image), "target": np.eye(4, 6, dtype=np.uint8), "name": "a"}
    reader = ClassReader(ClassMap(("field", "road"), (0, 1), None))
    _, target, _ = read_example(record, reader)
    expected = np.eye(4, 6, dtype=np.uint8)
    expected[:, :2] = 255
    assert np.array_equal(target.mask, expected)


def test_overlapping_classes_have_rows_of_their_own_pixels():
    scores = OverlapScores(("a", "b|c", "d"), torch.tensor(TABLES), torch.zeros(1, 1))
    (table,) = scores.score_tables()
    assert rows_of(table) == OVERLAP_ROWS
    assert scores.unfound == ["b|c"]
    assert scores.summary() == f"mean IoU 0.5000, mean Dice {(2 / 3 + 1) / 3:.4f}; nothing was found of b|c"


def test_regions_have_a_second_table_of_the_written_labels():
    regions = (Region("whole", (1, 2)), Region("core", (2,)))
    scores = RegionScores(regions, torch.tensor([*TABLES[:2], TABLES[2], TABLES[0]]), torch.zeros(1, 1))
    of_regions, of_labels = scores.score_tables()
    assert [row[:2] for row in rows_of(of_regions)] == [["whole", "0.5000"], ["core", "0.0000"], ["mean", "0.2500"]]
    assert [row[:2] for row in rows_of(of_labels)] == [["label 1", "1.0000"], ["label 2", "0.5000"], ["mean", "0.7500"]]
    description = RegionSection(RegionReader(*zip(*regions, strict=True))).description()
    assert description.startswith("Semantic segmentation into 2 regions, unions of labels: whole=1+2, core=2.")


def test_wrong_pixels_of_overlapping_classes_are_red_unless_all_classes_are_unknown():
    truth = np.array([[0, 1, 2, 3], [0, 1, 2, 3], [3, 0, 0, 0]])
    unknown = np.array([[0, 0, 0, 0], [1, 2, 3, 3], [0, 3, 7, 0]])
    prediction = np.array([[0, 1, 3, 3], [1, 3, 1, 0], [0, 0, 2, 4]])
    image = np.full((3, 4), 100, np.uint8)
    errors = OverlapSection(OverlapReader(("a", "b"))).views(image, pack_bits(truth, unknown), prediction)["errors"]
    is_unknown = unknown & 3 == 3
    is_wrong = np.array([[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], bool)
    assert (errors[is_wrong] == RED).all()
    assert (errors[is_unknown] == GREY).all()
    assert (errors[~is_wrong & ~is_unknown] == 35).all()


def boxes(size: tuple[int, int], *corners: tuple[int, int, int, int]) -> np.ndarray:
    """Labels of boxes with these corners (top, left, bottom, right), numbered from 1."""
    labels = np.zeros(size, np.int64)
    for number, (top, left, bottom, right) in enumerate(corners, 1):
        labels[top:bottom, left:right] = number
    return labels


def test_objects_have_rows_by_class_and_by_size():
    """Of three cells two are found and one is invented; a bubble is missed while another one is invented."""
    true = boxes((40, 40), (0, 0, 8, 8), (0, 10, 20, 30), (30, 0, 33, 3), (30, 10, 33, 13))
    predicted = boxes((40, 40), (0, 0, 8, 8), (0, 10, 20, 27), (30, 20, 33, 23), (36, 30, 39, 33))
    class_of = np.array([0, 1, 1, 1, 2])
    scores = Objects(Classes(("background", "cell", "bubble"))).new_scores(1)
    target = ObjectTarget(torch.from_numpy(np.uint8(class_of[true]))[None], torch.from_numpy(true)[None])
    scores.add(torch.from_numpy(pack_labels(predicted, class_of[predicted]))[None], target, 0)
    scores.finish_image(0)
    by_class, by_size = scores.score_tables()
    cell, bubble = rows_of(by_class)
    assert cell[:2] + cell[-5:] == ["cell", "0.5000", "3", "3", "2", "0", "0"]
    assert bubble[:2] + bubble[-5:] == ["bubble", "0.0000", "1", "1", "0", "0", "0"]
    assert rows_of(by_size)[0] == ["below 64", "2", "0", "0.0%"]
    assert [row[0] for row in rows_of(by_size)] == ["below 64", "64 to 255", "256 to 1,023"]
    assert scores.unfound == ["bubble"]
    assert scores.values["ap50"] == pytest.approx((2 / 4 + 0) / 2)
    assert scores.values["panoptic_quality"] == pytest.approx((2 * (1 + 0.85) / 6 + 0) / 2)


def test_found_missed_invented_and_ignored_objects_have_their_colors():
    true = boxes((12, 16), (0, 0, 4, 4), (0, 5, 4, 9), (2, 10, 4, 13), (8, 0, 12, 4))
    classes = np.where(true == 4, 255, true > 0)  # the last one is ignored
    predicted = boxes((12, 16), (8, 8, 12, 12), (1, 0, 5, 4), (2, 5, 6, 8), (6, 1, 10, 3))
    labels = pack_labels(true, classes), pack_labels(predicted, predicted > 0)
    _, shown = object_errors(np.zeros((12, 16), np.uint8), *labels)
    colors = {(10, 10): BLUE, (5, 6): BLUE, (7, 1): BLUE, (0, 5): RED, (2, 10): RED, (1, 1): GREEN, (9, 1): GREY}
    assert {place: tuple(shown[place]) for place in colors} == colors
    assert tuple(shown[0, 3]) == (0, 0, 0)  # the edge of an object


def test_errors_of_objects_are_counted_in_words():
    # of the predicted ones, one covers two true ones, two share the last, and the third is missed
    true = boxes((8, 12), (0, 0, 4, 4), (0, 4, 4, 8), (6, 0, 8, 2), (0, 8, 4, 12))
    predicted = boxes((8, 12), (0, 0, 4, 8), (0, 8, 4, 10), (0, 10, 4, 12))
    image = np.zeros((8, 12), np.uint8)
    words, _ = object_errors(image, pack_labels(true, true > 0), pack_labels(predicted, predicted > 0))
    assert words == "errors: 2 missed, 1 split, 2 merged"
    ignored = pack_labels(true, np.where(true == 3, 255, true > 0))
    assert object_errors(image, ignored, pack_labels(true, true > 0))[0] == "errors"


@pytest.fixture
def landmark_scores() -> LandmarkScores:
    """Errors of 1, 2.5 and 30 mm of the nose, and of 4 mm of the ear, which one image lacks."""
    by_image = torch.zeros(4, 2, 5, dtype=torch.float64)
    by_image[3] = torch.tensor([OUTSIDE, 77, 100, 125, 0.5])
    by_image[:3, 0] = torch.tensor([[PRESENT, error, 100, 125, 0.9] for error in (1.0, 2.5, 30.0)])
    by_image[:2, 1] = torch.tensor([[ABSENT, 0, 100, 125, 0.1], [PRESENT, 4.0, 100, 125, 0.8]])
    return LandmarkScores(("nose", "ear"), "mm", torch.tensor([5]), by_image)


def test_landmarks_have_rows_of_errors(landmark_scores):
    (table,) = landmark_scores.score_tables()
    titles, nose, ear, last = table.cells()
    assert titles[:2] == ["landmark", "mean (mm)"]
    assert nose[:4] == ["nose", "11.17", f"{np.std([1, 2.5, 30]):.2f}", "2.50"]
    assert ear[-2:] == ["1", "1"]
    assert last[0] == "all"
    assert landmark_scores.summary() == (
        f"mean radial error (mm) {37.5 / 4:.2f}, median radial error (mm) 3.25, AUROC of presence 1.0000"
    )
    landmark_scores.by_image[:, 1, 0] = PRESENT
    assert "AUROC" not in landmark_scores.summary()  # none is absent


def test_the_card_of_landmarks_has_scores_of_detection_and_predicts_points(landmark_scores):
    section = LandmarkSection(PointReader(Landmarks(("nose", "ear"), unit="mm"), (0, 1)))
    card = ModelCard(card_of(section, landmark_scores))
    assert {result.task_type for result in card.data.eval_results} == {"keypoint-detection"}
    assert card.data.tags == ["unet", "landmark-detection", "keypoint-detection"]
    assert 'predictor.points("image.png")' in card.text


def test_true_and_predicted_points_are_drawn_on_their_image():
    """A nose, no ear, and a tail that lies outside of the image; nose and tail are found."""
    image = np.random.default_rng(0).integers(0, 90, (30, 40, 3), dtype=np.uint8)
    places = np.array([[7, 3], [20, 25], [50, 9]], float)
    target = PointSource("points.csv", "pixels", places, np.array([PRESENT, ABSENT, PRESENT]))
    reader = PointReader(Landmarks(("nose", "ear", "tail")), (0, 1, 2))
    prediction = np.array([[0.25, 0.5, 0.5, 0.9], [0.5, 0.75, 0.4, 0.9], [0.5, 0.5, 0.8, 0.9]])
    views = LandmarkSection(reader).pictures({"image": image, "target": target, "name": "i"}, prediction)
    found = prediction[:, :2] * (30, 40) - 0.5
    found[1] = np.nan
    nowhere = (np.nan, np.nan)
    expected = render_points(image, found, np.array([(3, 7), nowhere, nowhere]))
    assert np.array_equal(views["truth and prediction"], expected)
    assert np.array_equal(views["image"], enlarge_picture(image)[0])


def test_a_volume_is_shown_by_three_planes_where_its_mask_holds_most(tmp_path):
    affine = RAS @ np.diag([1.0, 1.0, 3.0, 1.0])
    channels = np.random.default_rng(0).integers(0, 200, (2, 6, 5, 4)).astype(np.float32)
    labels = np.zeros((6, 5, 4), np.uint8)
    labels[4, 1:4, 1:3] = 1
    labels[0] = 9  # unknown
    files = [write_nifti(tmp_path / f"image{number}.nii", voxels, affine) for number, voxels in enumerate(channels)]
    image = VolumeFile(tuple(map(str, files)))
    label = VolumeFile((str(write_nifti(tmp_path / "label.nii", labels, affine)),))
    reader = ClassReader(ClassMap(("a", "b"), (0, 1), 9))
    pred = np.arange(120).reshape(4, 5, 6) % 2
    section = ClassSection(reader)
    pictures = section.pictures({"image": image, "target": label, "name": "case"}, pred)
    stored, header = read_volume(image, "case")
    truth = np.where(labels == 9, 255, labels).transpose(2, 1, 0)
    center = busiest_voxel(truth)
    shown_truth = orthogonal_slices(truth, center, header.spacing, fill=255)
    shown = orthogonal_slices(pred.astype(np.uint8), center, header.spacing, fill=255)
    expected = section.views(orthogonal_slices(stored, center, header.spacing), shown_truth, shown)
    assert list(pictures) == list(expected)
    for label, picture in expected.items():
        np.testing.assert_array_equal(pictures[label], picture)
