"""Objects as targets: label images, a mask for each object, and by what they are recognized.

Modules: data_utils/targets/objects.py, data_utils/targets/find.py, data_utils/sources/annotations/one_object_masks.py.
"""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from conftest import TINY, load_info, write_folder
from in_process import parsed
from objects import Masks, discs, numbered, picture, write_discs
from PIL import Image

from data_utils.analysis.check_data import check_data
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import TrainingDataset
from data_utils.sources.load import load_records
from data_utils.targets.classes import ClassReader
from data_utils.targets.find import count_pieces, find_task
from data_utils.targets.objects import ObjectCensus, ObjectReader, objects_of, shapes_of_objects
from runtime.errors import DataError, SettingsError
from tasks.matching import pack_labels

COUNTS = [3, 5, 8, 9, 12, 14, 17]
NOTHING = np.zeros((2, 2), np.uint8)


def write_one_object_masks(folder: Path, counts: list[int], size: tuple[int, int] = (40, 56)) -> Path:
    """The layout of DSB2018."""
    for index, count in enumerate(counts):
        sample = folder / f"sample{index}"
        (sample / "images").mkdir(parents=True)
        (sample / "masks").mkdir()
        ids = discs(size, count, seed=index)
        Image.fromarray(picture(ids)).save(sample / "images" / f"sample{index}.png")
        for number in range(1, int(ids.max()) + 1):
            mask = np.where(ids == number, 255, 0).astype(np.uint8)
            Image.fromarray(mask).save(sample / "masks" / f"{number:03}.png")
    return folder


def task_of(folder: Path, **settings) -> str:
    config = DataConfig(dataset=str(folder), **settings)
    return find_task(load_records(config)[0], config)


def test_label_images_are_recognized(tmp_path):
    assert task_of(write_discs(tmp_path / "labels", COUNTS, seed=0)) == "objects"


def test_what_has_classes_stays_classes(tmp_path, tiny_folder):
    assert task_of(tiny_folder) == "classes"
    labels = write_discs(tmp_path / "labels", COUNTS, seed=0)
    assert task_of(labels, classes="0=background,1=cell") == "classes"
    assert task_of(labels, ignore_index="3") == "classes"
    assert task_of(labels, task="classes") == "classes"
    assert task_of(write_folder(tmp_path / "areas", 6, 0, values=(0, 7)), task="objects") == "objects"


def test_masks_of_several_pieces_a_value_are_classes(tmp_path):
    write_discs(tmp_path / "labels", COUNTS, seed=0)
    for file in (tmp_path / "labels" / "masks").iterdir():
        values = np.array(Image.open(file)) % 7  # the highest one still differs
        Image.fromarray(values.astype(np.uint8)).save(file)
    assert task_of(tmp_path / "labels") == "classes"


def test_pieces_touch_through_sides_or_corners():
    assert count_pieces(np.array([[1, 0, 2], [0, 1, 2]])) == (2, 2)
    assert count_pieces(np.array([[1, 0, 0, 1]])) == (1, 2)
    assert count_pieces(np.array([[1, 1, 2, 2]])) == (2, 2)
    assert count_pieces(np.zeros((2, 2), int)) == (0, 0)
    assert count_pieces(np.array([[[1, 0], [0, 0]], [[0, 0], [0, 1]]])) == (1, 1)


def test_a_folder_of_masks_for_each_image_is_read_as_numbers(tmp_path):
    folder = write_one_object_masks(tmp_path, [4, 6, 9, 7])
    assert task_of(folder) == "objects"
    train, _ = load_records(DataConfig(dataset=str(folder)))
    assert {record["name"] for record in train} <= {f"sample{index}.png" for index in range(4)}
    record = train[0]
    index = int(record["name"][6])
    np.testing.assert_array_equal(record["target"].render(), discs((40, 56), [4, 6, 9, 7][index], seed=index))


def test_an_image_without_objects_has_an_empty_folder(tmp_path):
    write_one_object_masks(tmp_path, [0, 4, 5])
    config = DataConfig(dataset=str(tmp_path))
    masks = {record["name"]: record["target"].render() for split in load_records(config) for record in split}
    assert masks["sample0.png"].shape == (40, 56)
    assert masks["sample0.png"].max() == 0


def test_a_folder_that_lacks_a_part_is_named(tmp_path):
    write_one_object_masks(tmp_path, [2, 3, 4])
    (tmp_path / "sample0" / "images" / "sample0.png").unlink()
    with pytest.raises(DataError, match="sample0: has no image; --allow-unpaired leaves them out"):
        load_records(DataConfig(dataset=str(tmp_path)))
    for name in ("sample1", "sample2"):
        Image.new("L", (8, 8)).save(tmp_path / name / "masks" / "small.png")
    train, _ = load_records(DataConfig(dataset=str(tmp_path), allow_unpaired=True))
    with pytest.raises(DataError, match="have different sizes, 40 x 56 and 8 x 8"):
        train[0]["target"].render()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([[0, -3]], np.int32), "mask holds -3, but the numbers of objects are 1 to 2,147,483,647"),
        (np.array([[0, 2**31]], np.int64), "mask holds 2,147,483,648"),
    ],
)
def test_numbers_that_no_object_has_are_refused(values, said):
    with pytest.raises(DataError, match=f"a.tif: {said}"):
        ObjectReader().of_mask(values, "a.tif")


def test_numbers_may_have_gaps_and_colors_are_numbers():
    target = ObjectReader().of_mask(np.array([[0, 70_000, 5]]), "a")
    assert target.ids.tolist() == [[0, 70_000, 5]]
    assert target.mask.tolist() == [[0, 1, 1]]
    colors = np.array([[[0, 0, 0], [1, 0, 0], [0, 0, 1]]], np.uint8)
    assert ObjectReader().of_mask(colors, "a").ids.tolist() == [[0, 1, 65536]]


def test_ignored_numbers_count_nowhere():
    reader = ObjectReader.of_values({}, (), DataConfig(ignore_index="9"))
    target = reader.of_mask(np.array([[0, 9, 2]], np.uint8), "a")
    assert target.mask.tolist() == [[0, 255, 1]]
    assert target.ids.tolist() == [[0, 0, 2]]
    volume = np.array([[[0, 9, 2]]], np.int32)
    assert reader.of_label_volume(volume, "a").ids.tolist() == [[[0, 0, 2]]]
    assert volume.tolist() == [[[0, 9, 2]]]
    assert reader.problem_of([(0, 0, 0), 5]) is None
    with pytest.raises(SettingsError, match="--ignore-index #ff0000: expected numbers of objects"):
        ObjectReader.of_values({}, (), DataConfig(ignore_index="#ff0000"))


def test_objects_of_other_classes_are_none_and_may_count_nowhere():
    ids, values = np.array([[1, 2, 3, 0, 4]]), np.array([[7, 9, 8, 0, 255]])
    labels = pack_labels(ids, values)
    for outside in (0, 255):
        reader = ObjectReader(classes=((9, "a"), (7, "b")), outside=outside, reads_labels=True)
        target = reader.of_mask(labels, "mask")
        assert target.mask.tolist() == [[2, 1, outside, 0, 255]]
        assert target.ids.tolist() == [[1, 2, 0, 0, 0]]
    for others, outside in ((None, 0), ("background", 0), ("ignore", 255)):
        config = DataConfig(outside=others)
        assert ObjectReader.of_values({}, ((0, "none"), (9, "a")), config) == ObjectReader((), ((9, "a"),), outside)
    colors = (((9, 9, 9), "a"),)
    assert ObjectReader.of_values({}, colors, DataConfig()) == ObjectReader()
    reader_of_two = ObjectReader.of_values({}, (*colors, (9, "b")), DataConfig(ignore_index="3"))
    assert reader_of_two == ObjectReader((3,), ((9, "b"),))


def test_pixels_of_objects_are_those_of_their_classes_and_the_others_background():
    pixels = {0: 50, 7: 20, 9: 30}
    assert ObjectReader().with_pixels(pixels).class_pixels == (50, 50)
    two = ObjectReader(classes=((9, "a"), (7, "b"))).with_pixels(pixels)
    assert two.class_pixels == (50, 30, 20)
    # a number may be 255, but as a class it is of pixels that count nowhere; so do ignored numbers
    assert ObjectReader(ignored=(9,)).with_pixels({**pixels, 255: 5}).class_pixels == (50, 25)
    assert ObjectReader(classes=((9, "a"),)).with_pixels({**pixels, 255: 5}).class_pixels == (70, 30)
    unknown = ObjectReader(classes=((9, "a"),), outside=255)
    assert unknown.with_pixels({**pixels, 255: 5}).class_pixels == (50, 30)


def test_a_reader_of_objects_tells_its_task_and_itself():
    reader = ObjectReader(classes=((9, "a"), (7, "b")), smallest=7, fills_holes=True, class_pixels=(10, 0, 30))
    task = reader.task("ce", ["auto"])
    assert (task.smallest, task.fills_holes, task.classes.names) == (7, True, ("background", "a", "b"))
    assert task.classes.class_weights.tolist() == pytest.approx([(4 / 3) ** 0.5, 1, (4 / 9) ** 0.5])
    assert reader.describe() == "numbered objects of the classes a, b"
    assert ObjectReader().describe() == ObjectReader(classes=((2, "cell"),)).describe() == "numbered objects"
    assert ObjectReader.of_values({}, (), DataConfig(ignore_index="3,9")) == ObjectReader((3, 9))
    highest = np.array([[0, 2**31 - 1]])
    assert ObjectReader().of_mask(highest, "a").ids.tolist() == highest.tolist()


def test_targets_of_objects_are_kept_apart_by_all_that_they_depend_on():
    readers = [
        ObjectReader(),
        ObjectReader(ignored=(9,)),
        ObjectReader(classes=((2, "cell"),)),
        ObjectReader(outside=255),
    ]
    assert len({reader.key for reader in readers}) == len(readers)


def test_32_bit_label_images_are_numbered_anew_in_crops(tmp_path):
    write_discs(tmp_path, COUNTS, seed=3)
    for file in (tmp_path / "masks").iterdir():
        ids = np.array(Image.open(file)).astype(np.uint32)
        tifffile.imwrite(file.with_suffix(".tif"), np.where(ids > 0, ids + 20_000_000, 0).astype(np.uint32))
        file.unlink()
    info = load_info(tmp_path, crop_size=(16, 24), augment="strong")
    assert info.config.task == "objects"
    assert info.reader.describe() == "numbered objects"
    dataset = TrainingDataset(info.train, info, info.preprocess())
    for index in range(len(dataset)):
        ids = dataset[Slot(index, 0, (16, 24))][1].ids
        assert ids.dtype.itemsize == 4
        assert int(ids.max()) <= 16 * 24
        assert sorted(set(ids.ravel().tolist()) | {0}) == list(range(int(ids.max()) + 1))


def test_the_smallest_prediction_follows_from_the_data(tmp_path):
    config = DataConfig(dataset=str(write_discs(tmp_path, COUNTS, seed=0)))
    train, _ = load_records(config)
    smallest = shapes_of_objects(train, ObjectReader())["smallest"]
    areas = []
    for record in train:
        ids = np.array(Image.open(record["target"]))
        areas += np.unique(ids[ids > 0], return_counts=True)[1].tolist()
    assert smallest == max(1, int(np.percentile(areas, 1) / 2)) > 1
    assert load_info(tmp_path).reader.smallest == smallest


def test_the_smallest_prediction_is_measured_anew_for_other_objects(tmp_path):
    train, _ = load_records(DataConfig(dataset=str(write_discs(tmp_path, COUNTS, seed=0))))
    reader = ObjectReader()
    first_objects = ObjectReader(ignored=tuple(range(2, 100)))
    shapes = [shapes_of_objects(train, chosen) for chosen in (reader, first_objects)]
    assert shapes[0]["smallest"] != shapes[1]["smallest"]
    for chosen, shape in zip((reader, first_objects), shapes, strict=True):
        assert chosen.with_records(train).smallest == shape["smallest"]


def test_the_smallest_prediction_is_half_of_the_hundredth_smallest_object():
    sizes = np.arange(11, 111)  # the percentile lies just below 12
    mask = np.repeat(np.arange(1, 101), sizes)[None]
    assert shapes_of_objects(Masks([mask]), ObjectReader())["smallest"] == 5
    assert shapes_of_objects(Masks([numbered(3)]), ObjectReader())["smallest"] == 1
    damaged = np.array([[-1]])  # it is named elsewhere
    assert shapes_of_objects(Masks([damaged, numbered(3)]), ObjectReader())["fills_holes"]
    records = Masks([NOTHING] * 130)
    assert shapes_of_objects(records, ObjectReader()) == {"smallest": 1, "fills_holes": False}
    assert (len(records.read), records.read[-1]) == (64, 129)
    assert not ObjectReader.may_shrink
    assert ClassReader.may_shrink


def test_holes_of_predictions_are_filled_where_training_objects_have_hardly_any(tmp_path):
    write_discs(tmp_path, [20, 21, 22, 23], seed=0)
    config = DataConfig(dataset=str(tmp_path), task="objects")
    train, _ = load_records(config)
    assert ObjectReader().with_records(train).fills_holes
    assert "holes in predictions filled" in check_data(config)[0]
    for file in (tmp_path / "masks").iterdir():
        ids = np.array(Image.open(file))
        for number in range(1, int(ids.max()) + 1, 4):
            y, x = np.argwhere(ids == number).mean(axis=0).round().astype(int)
            ids[y, x] = 0
        Image.fromarray(ids).save(file)
    train, _ = load_records(config)
    assert not ObjectReader().with_records(train).fills_holes
    assert not shapes_of_objects(train, ObjectReader(ignored=tuple(range(1, 100))))["fills_holes"]


def test_of_a_stream_small_objects_are_kept_and_holes_stay():
    """Its records are not looked at, so nothing is known of their shapes."""
    task = ObjectReader().task("ce+logdice", None)
    assert (task.smallest, task.fills_holes, task.drops_border) == (1, False, False)


def test_a_hole_in_every_twentieth_object_is_taken_for_a_mistake():
    ring = np.ones((5, 5), int)
    ring[2, 2] = 0
    for count, are_filled in ((20, True), (19, False)):
        mask = np.concatenate([ring, *(np.full((5, 5), number) for number in range(2, count + 1))])
        assert shapes_of_objects(Masks([mask]), ObjectReader())["fills_holes"] == are_filled
    ring[2, 2] = 2  # an object in the hole of another one, which a number that is not there lies between
    assert [int(part.sum()) for part in objects_of(3 * ring)] == [24, 1]
    assert not shapes_of_objects(Masks([ring]), ObjectReader())["fills_holes"]
    records = Masks([NOTHING] * 60, dims=3)
    shapes_of_objects(records, ObjectReader())
    assert len(records.read) == 4


def test_check_data_counts_objects_and_those_that_touch(tmp_path):
    write_discs(tmp_path, [3, 5, 8, 9], seed=0)
    ids = np.zeros((48, 64), np.uint16)
    ids[2:6, 2:6], ids[2:6, 6:10], ids[20:24, 20:30], ids[40:42, 40:42] = 1, 2, 900, 900
    Image.fromarray(ids).save(tmp_path / "masks" / "00.png")
    report, problems = check_data(DataConfig(dataset=str(tmp_path), task="objects"))
    assert problems == 0, report
    other_masks = [np.array(Image.open(file)) for file in sorted((tmp_path / "masks").iterdir())[1:]]
    total = 3 + sum(int(values.max()) for values in other_masks)
    assert f"objects: {total} in 4 of 4 images;" in report
    assert "sizes of objects in pixels: 16 to " in report
    assert ") touch another object" in report
    assert "to check: in 1 images a number names several pieces, which count as one object: 00.png" in report


def test_a_census_adds_up_over_images():
    census = ObjectCensus()
    census.add("first", np.array([[1, 1, 2, 0, 3]]))
    census.add("second", np.array([[1, 0], [0, 1]]))  # a corner joins
    census.add("third", np.array([[0, 0, 0, 0]]))
    census.add("fourth", np.array([[5, 5, 6, 0, 6]]))
    assert census.lines() == [
        "objects: 6 in 3 of 4 images; 1.5 an image, 3 at most",
        "sizes of objects in pixels: 1 to 2, median 2; 4 (66.7%) touch another object",
        "to check: in 1 images a number names several pieces, which count as one object: fourth",
    ]


def test_a_census_of_whole_objects_has_nothing_to_check():
    census = ObjectCensus()
    assert census.lines() == ["objects: none"]
    census.add("a", np.array([[1, 1, 0, 2]]))
    assert census.lines() == [
        "objects: 2 in 1 of 1 images; 2.0 an image, 2 at most",
        "sizes of objects in pixels: 1 to 2, median 2; 0 (0.0%) touch another object",
    ]


def test_a_census_says_the_median_and_names_three_images_with_pieces():
    census = ObjectCensus()
    for name in "abcd":
        census.add(name, np.array([[1, 0, 1, 0, 2, 0, 3, 3, 3, 3, 3, 3, 3]]))
    median, pieces = census.lines()[1:]
    assert median.startswith("sizes of objects in pixels: 1 to 7, median 2; 0 (0.0%) touch")
    assert pieces.endswith("in 4 images a number names several pieces, which count as one object: a, b, c, ...")


def test_the_task_is_found_unless_it_is_given():
    assert parsed(*TINY).task is None
    assert parsed("--task", "objects", *TINY).task == "objects"


def test_large_label_images_are_read_in_windows(tmp_path, monkeypatch):
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 1000)
    ids = np.zeros((60, 80), np.int32)
    ids[::2, ::2] = np.arange(1, 30 * 40 + 1).reshape(30, 40)  # more than classes may be
    for name, values in (("images", picture(ids)), ("masks", ids)):
        (tmp_path / name).mkdir()
        for index in range(3):
            np.save(tmp_path / name / f"{index}.npy", values)
    info = load_info(tmp_path, task="objects", crop_size=(16, 16))
    background, objects = info.train.class_locations[0]
    assert (ids[tuple(background.T)] == 0).all()
    assert (ids[tuple(objects.T)] > 0).all()
    target = TrainingDataset(info.train, info, info.preprocess())[Slot(0, 0, (16, 16))][1]
    assert int(target.ids.max()) == 64
    assert target.mask.sum() == 64


def test_equally_many_objects_in_all_images_may_be_classes(tmp_path):
    for file in (write_discs(tmp_path, [20, 21, 22, 23], seed=0) / "masks").iterdir():
        ids = np.array(Image.open(file))
        Image.fromarray(np.where(ids > 5, 0, ids)).save(file)
    doubt = "give --task objects if they do, and --task classes if they are classes"
    report, problems = check_data(DataConfig(dataset=str(tmp_path)))
    assert "to check: the numbers in the masks may count objects" in report
    assert doubt in report
    assert not problems
    assert sum(doubt in warning for warning in load_info(tmp_path).warnings) == 1
    for settings in ({"task": "classes"}, {"task": "objects"}, {"classes": "0=no,1=a,2=b,3=c,4=d,5=e"}):
        assert doubt not in check_data(DataConfig(dataset=str(tmp_path), **settings))[0]


def test_numbers_that_no_object_can_have_are_problems(tmp_path):
    for index, file in enumerate(sorted((write_discs(tmp_path, COUNTS, seed=0) / "masks").iterdir())):
        ids = np.array(Image.open(file)).astype(np.uint32)
        numbers = np.where(ids > 0, 2**31, 0) if index == 6 else ids
        tifffile.imwrite(file.with_suffix(".tif"), numbers.astype(np.uint32))
        file.unlink()
    config = DataConfig(dataset=str(tmp_path), task="objects")
    report, problems = check_data(config)
    assert problems == 1
    assert "06.png: mask holds 2,147,483,648, but the numbers of objects are 1 to" in report
    with pytest.raises(DataError, match=r"^1 of 6 pairs cannot be used: 06\.png: mask holds 2,147,483,648, but"):
        load_info(tmp_path, task="objects")


def test_what_stops_numbers_that_are_taken_for_classes_says_that_they_may_be_objects(tmp_path):
    write_discs(tmp_path, [9] * 6, seed=0)
    ids = np.zeros((48, 64), np.uint16)
    ids[::2, ::2] = np.arange(1, 24 * 32 + 1).reshape(24, 32)  # more than classes may be
    for index in range(1, 6):
        Image.fromarray(ids).save(tmp_path / "masks" / f"{index:02}.png")
    with pytest.raises(DataError, match=r"more than 255 values: .*; the numbers in the masks may count objects"):
        load_info(tmp_path)


def test_the_report_says_what_becomes_of_small_predictions_and_of_holes(tmp_path):
    records = Masks([numbered(3)])
    records.records.insert(0, {"image": "", "target": "nowhere.png", "name": "gone"})  # it is among the problems
    for reader, holes in (
        (ObjectReader(smallest=1200), "kept"),
        (ObjectReader(smallest=1200, fills_holes=True), "filled"),
    ):
        *census, line = reader.describe_records([records, Masks([numbered(2)])])
        assert line == f"predictions of fewer than 1,200 pixels will be left out, and holes in predictions {holes}"
        assert census[0] == "objects: 5 in 2 of 2 images; 2.5 an image, 3 at most"
    assert ObjectReader().describe_records([Masks([NOTHING])])[0] == "objects: none"
