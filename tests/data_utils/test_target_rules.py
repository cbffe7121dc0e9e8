"""Small rules of targets: by what a task is recognized, what a cache must tell apart, which points are left and right.

Modules: data_utils/targets/find.py, data_utils/targets/objects.py, data_utils/targets/label_sets.py,
data_utils/targets/points.py, data_utils/targets/regions.py, data_utils/targets/sides.py, data_utils/targets/classes.py,
data_utils/targets/overlapping.py, data_utils/config.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.image_io.formats import PointSource
from data_utils.sources.records import LandmarkNames, ListRecords, Subset
from data_utils.targets.classes import ClassReader, PartlyLabeledReader, class_weight_tensor
from data_utils.targets.find import EITHER, find_task, holds_many_values, reading_of_numbers, task_warnings
from data_utils.targets.label_sets import LabelSets
from data_utils.targets.objects import ObjectCensus, ObjectReader, shapes_of_objects
from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.points import PointReader, PointWindows, point_records
from data_utils.targets.reader import TargetReader
from data_utils.targets.regions import RegionReader, parse_regions
from data_utils.targets.sides import Sides, mirrored_name, point_sides
from runtime.errors import DataError, SettingsError
from tasks.matching import pack_labels
from tasks.overlapping import pack_bits
from tasks.points import ABSENT, OUTSIDE, PRESENT
from tasks.regions import Region


class Masks(ListRecords):
    """Records of masks that are arrays, and which of them were read."""

    def __init__(self, masks: list[np.ndarray], dims: int = 2) -> None:
        super().__init__([{"image": mask, "target": mask, "name": str(number)} for number, mask in enumerate(masks)])
        self.dims = dims
        self.read: list[int] = []

    def __getitem__(self, i: int) -> dict:
        self.read.append(i)
        return super().__getitem__(i)


def numbered(highest: int, *, broken: bool = False) -> np.ndarray:
    """A mask with a pixel of each number; a broken one has a second piece of the first number."""
    values = np.arange(highest + 1, dtype=np.uint16)
    return np.append(values, [0, 1])[None] if broken else values[None]


NOTHING = np.zeros((2, 2), np.uint8)


@pytest.mark.parametrize(
    ("masks", "reading"),
    [
        ([numbered(8), numbered(9), numbered(10)], "objects"),
        ([numbered(7), numbered(8), numbered(9)], EITHER),  # few sets of classes have ten values
        ([numbered(10), numbered(11)], EITHER),  # three highest values differ
        ([numbered(10 + number % 4) for number in range(8)], "objects"),  # as many differ as half of the masks
        ([numbered(10 + number % 3) for number in range(8)], EITHER),
        ([numbered(10 + number % 10) for number in range(20)], "objects"),
        ([numbered(10 + number % 9) for number in range(20)], EITHER),
        ([numbered(10 + number, broken=number == 0) for number in range(10)], "objects"),  # nine of ten are whole
        ([numbered(10 + number, broken=number < 2) for number in range(10)], EITHER),
        ([numbered(10, broken=True)] * 8, EITHER),  # a tenth more pieces than numbers
        ([numbered(9, broken=True)] * 8, "classes"),
        ([numbered(256)] * 2, "objects"),  # no class has such a value
        ([numbered(255)] * 2, EITHER),
        ([numbered(255), numbered(300)], EITHER),
        ([numbered(256), NOTHING], "objects"),  # a mask without any object says nothing
        ([NOTHING], "classes"),
    ],
)
def test_masks_number_objects_where_their_highest_values_differ_and_are_many(masks, reading):
    assert reading_of_numbers(Masks(masks)) == reading


def test_masks_are_sampled_from_the_first_to_the_last():
    for dims, count in ((2, 20), (3, 4)):
        records = Masks([numbered(3)] * 60, dims)
        reading_of_numbers(records)
        assert len(records.read) == count and (records.read[0], records.read[-1]) == (0, 59)


def test_a_mask_that_cannot_be_read_is_passed_over():
    records = Masks([numbered(8), numbered(9), numbered(10)])
    records.records.insert(1, {"image": "", "target": "nowhere.png", "name": "gone"})
    assert reading_of_numbers(records) == "objects"


def test_more_than_three_values_in_one_of_three_masks_call_for_a_closer_look():
    assert not holds_many_values(Masks([numbered(2)] * 3 + [numbered(9)]))
    assert holds_many_values(Masks([numbered(2), numbered(2), numbered(3)]))
    colors = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    assert not holds_many_values(Masks([colors]))


def test_the_smallest_prediction_is_half_of_the_hundredth_smallest_object():
    sizes = np.arange(11, 111)  # the percentile lies just below 12
    mask = np.repeat(np.arange(1, 101), sizes)[None]
    assert shapes_of_objects(Masks([mask]), ObjectReader())["smallest"] == 5
    assert shapes_of_objects(Masks([numbered(3)]), ObjectReader())["smallest"] == 1
    records = Masks([NOTHING] * 130)
    assert shapes_of_objects(records, ObjectReader()) == {"smallest": 1, "fills_holes": False}
    assert (len(records.read), records.read[-1]) == (64, 129)
    assert not ObjectReader.may_shrink and ClassReader.may_shrink


def test_of_a_stream_small_objects_are_kept_and_holes_stay():
    """Its records are not looked at, so nothing is known of their shapes."""
    task = ObjectReader().task("ce+logdice", None)
    assert (task.smallest, task.fills_holes, task.drops_border) == (1, False, False)


def test_objects_of_other_classes_are_none_and_may_count_nowhere():
    ids, values = np.array([[1, 2, 3, 0, 4]]), np.array([[7, 9, 8, 0, 255]])
    labels = pack_labels(ids, values)
    for outside in (0, 255):
        reader = ObjectReader(classes=((9, "a"), (7, "b")), outside=outside, reads_labels=True)
        target = reader.of_mask(labels, "mask")
        assert target.mask.tolist() == [[2, 1, outside, 0, 255]] and target.ids.tolist() == [[1, 2, 0, 0, 0]]
    for others, outside in ((None, 0), ("background", 0), ("ignore", 255)):
        config = DataConfig(outside=others)
        assert ObjectReader.of_values({}, ((0, "none"), (9, "a")), config) == ObjectReader((), ((9, "a"),), outside)


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


SETS = {("a",): "first", ("b",): "second"}
BY_A = LabelSets(((True, True), (True, False)), {("a",): 1})
BY_B = LabelSets(((True, True), (True, False)), {("b",): 1})
TWO = ClassMap(("a", "b"), (1, 2), None)
REGION = Region("whole", (1, 2))


@pytest.mark.parametrize(
    "readers",
    [
        [
            ClassReader(TWO),
            ClassReader(ClassMap(("a", "b"), (2, 1), None)),
            ClassReader(ClassMap(("a", "b"), (1, 2), 9)),
            ClassReader(ClassMap(("a", "b"), (1, 2), None, joined=((3, 0),))),
            ClassReader(ClassMap(("a", "b"), (1, 2), None, joined=((3, 1),))),
            ClassReader(ClassMap(("a", "b"), (1, 2), None, outside=0)),
            ClassReader(ClassMap(("a", "b"), (1, 2), None, outside=255)),
            PartlyLabeledReader(TWO, label_sets=BY_A),
            PartlyLabeledReader(TWO, label_sets=BY_B),
            PartlyLabeledReader(TWO, label_sets=LabelSets(((True, True), (False, True)), {("a",): 1})),
        ],
        [
            PointReader(("a", "b"), (0, 1), (0, 1)),
            PointReader(("a", "c"), (0, 1), (0, 1)),
            PointReader(("a", "b"), (1, 0), (0, 1)),
        ],
        [
            OverlapReader(("a", "b")),
            OverlapReader(("a", "b"), label_sets=BY_A),
            OverlapReader(("a", "b"), label_sets=LabelSets(((True, True), (False, True)), {("a",): 1})),
            RegionReader((REGION,)),
            RegionReader((Region("whole", (2, 1)),)),
            RegionReader((Region("other", (1, 2)),)),
            RegionReader((REGION,), ignored=(9,)),
            RegionReader((REGION,), label_sets=LabelSets(((True,), (False,)), {("a",): 1})),
            ObjectReader(),
        ],
    ],
    ids=["classes", "points", "bits"],
)
def test_what_a_reader_makes_of_a_file_is_told_apart_by_its_key(readers: list[TargetReader]):
    keys = [repr(reader.key) for reader in readers]
    assert len(set(keys)) == len(keys)


def test_names_of_classes_do_not_matter_to_what_is_kept():
    assert ClassReader(TWO).key == ClassReader(ClassMap(("x", "y"), (1, 2), None)).key


def test_no_class_weights_are_asked_for_in_two_ways():
    assert class_weight_tensor(None, (1, 2)) is class_weight_tensor(["none"], (1, 2)) is None
    assert class_weight_tensor(["auto"], (0, 30, 10)).tolist() == pytest.approx([1, (4 / 9) ** 0.5, (4 / 3) ** 0.5])


def test_the_first_place_with_a_set_that_lacks_classes_is_named():
    sets = LabelSets.of({("a", "b"): "whole", ("a",): "half", ("b",): "rest"}, ("a", "b"), ((1,), (2,)), ())
    assert (sets.where, sets.numbers[("a", "b")], sets.are_complete) == ("half", 0, False)
    assert LabelSets.of({("a", "b"): "whole"}, ("a", "b"), ((1,), (2,)), ()).are_complete


def test_a_wrong_name_is_shown_with_eight_classes_and_in_eighty_characters():
    names = [f"class {number}" for number in range(9)]
    values = [(number,) for number in range(9)]
    with pytest.raises(DataError) as error:
        LabelSets.of({("z" * 99,): "here"}, names, values, ())
    listed = ", ".join(names[:8])
    assert str(error.value) == f"here: no class is called {'z' * 80!r}; the classes are {listed}, ..."


def test_gaussians_are_as_wide_as_the_image_asks_for_within_bounds():
    reader = PointReader(("a",), (0,), (0,))
    for size, sigma in (((320, 160), 2.0), ((100, 90), 1.0), ((40, 2000), 3.0), ((10, 200, 30), 1.25)):
        at_size = reader.at_size(size)
        assert (at_size.sigma, at_size.nowhere) == (sigma, round(float(np.log(np.prod(size))), 2))
        assert (at_size.task("", None).sigma, at_size.task("", None).nowhere) == (sigma, at_size.nowhere)


def test_points_follow_a_resized_image_and_its_pixels_keep_their_length():
    states = np.array([PRESENT, PRESENT, ABSENT, PRESENT])
    positions = np.array([[3.5, 1.5], [39.5, 0], [7, 7], [-0.5, -0.5]])  # (x, y) in an image of 20 x 40
    last = PointReader(("a",), (0,), (0,)).read(
        {"image": "", "target": PointSource("file", "pixels", np.array([[39.25, 19.0]]), states[:1]), "name": "a"},
        (20, 40),
        (10, 10),
    )
    assert last.points.tolist() == [[9.25, 9.4375]] and last.states.tolist() == [PRESENT]
    record = {"image": "", "target": PointSource("file", "pixels", positions, states), "name": "a"}
    reader = PointReader(tuple("dcba"), (3, 2, 1, 0), (0, 1, 2, 3))
    target = reader.read(record, (20, 40), (10, 10))
    assert target.points.tolist() == [[-0.5, -0.5], [0, 0], [-0.25, 9.5], [0.5, 0.5]]
    assert target.states.tolist() == [PRESENT, ABSENT, OUTSIDE, PRESENT]
    assert (target.unit.tolist(), target.size.tolist()) == ([2, 4], [10, 10])
    assert states.tolist() == [PRESENT, PRESENT, ABSENT, PRESENT]  # those of the file stay
    assert reader.read(record, (20, 40)).unit.tolist() == [1, 1]
    volume = reader._target(record["target"], positions, (4, 4), (2, 4), (5.0, 0.5))
    assert volume.unit.tolist() == [10, 0.5]


def test_records_of_points_that_two_splits_share_are_counted_once(monkeypatch):
    monkeypatch.setattr("data_utils.targets.points.PointRecords", ListRecords)
    records, others = ListRecords([]), ListRecords([])
    splits = [Subset(records, np.arange(0)), Subset(Subset(records, np.arange(0)), np.arange(0)), others]
    assert point_records(splits) == [records, others]


def test_all_ignored_values_are_unknown_and_kept_for_prediction():
    reader = RegionReader((Region("whole", (3, 1)), Region("core", (1,))), ignored=(9, 8))
    target = reader.of_label_volume(np.array([[0, 1, 3, 8, 9]]), "mask")
    assert target.truth.tolist() == [[0, 3, 1, 0, 0]] and target.known.tolist() == [[3, 3, 3, 0, 0]]
    assert reader.to_preprocess() == {
        "class_names": ("whole", "core"),
        "class_values": (3, 1),
        "ignore_value": 9,
        "joined_values": ((8, 255),),
    }


@pytest.mark.parametrize(
    ("names", "partners", "mirrors"),
    [
        (("left ear", "right ear", "nose"), (1, 0, 2), True),
        (("left ear", "right ear", "left eye"), (0, 1, 2), False),  # one has no partner
        (("left ear", "right eye"), (0, 1), False),
        (("left ear", "left eye"), (0, 1), True),  # a picture of one side
        (("Left ear", "left eye", "L_paw"), (0, 1, 2), True),
        (("1",), (0,), True),
        (("1", "2"), (0, 1), False),
        (("1", "tip"), (0, 1), True),
        (("paw_LH", "paw_RH", "paw_LF", "paw_RF"), (1, 0, 3, 2), True),
        (("L_eye", "R_eye", "LEFT", "RIGHT"), (1, 0, 3, 2), True),
        (("eyel", "eyer"), (0, 1), True),  # no letter stands alone
    ],
)
def test_left_and_right_are_read_from_names(names, partners, mirrors):
    sides = point_sides(names, None)
    assert (sides.partners, sides.mirrors) == (partners, mirrors)
    assert [mirrored_name(mirrored_name(name)) for name in names] == [*names]


@pytest.mark.parametrize("swap", ["a=b,b=c", "a=b,c=b", "a=b,a=c", "a=a", "a=b=c", "a", "a=x"])
def test_a_point_has_one_partner_and_another_than_itself(swap):
    assert point_sides(("a", "b", "c"), "a=b, ").partners == (1, 0, 2)
    with pytest.raises(DataError, match="--swap "):
        point_sides(("a", "b", "c"), swap)


def test_what_a_setting_of_the_data_means():
    assert DataConfig(crop_size=(4, 4)).may_crop and DataConfig(plan="auto").may_crop and not DataConfig().may_crop
    assert DataConfig(classes="a,b").outside_rule == "background"
    assert DataConfig(classes="a,b", outside="ignore").outside_rule == "ignore"
    assert DataConfig().outside_rule is None
    assert (DataConfig().skipped_errors, DataConfig(on_bad_sample="skip").skipped_errors) == ((), (DataError,))
    config = DataConfig()
    assert (config.val_fraction, config.augment, config.seed, config.draft) == (0.1, "basic", 0, False)
    flags = vars(DataConfig(image_size=[4, 5], spacing=[1, 2, 3], crop_size=[2, 2], fold="2/5", bands=["3", "1"]))
    read = DataConfig.from_args(SimpleNamespace(**flags))
    assert (read.image_size, read.spacing, read.crop_size, read.fold) == ((4, 5), (1, 2, 3), (2, 2), (2, 5))
    assert read.bands == ("3", "1")
    decided = DataConfig.from_args(SimpleNamespace(**vars(DataConfig(place=False, val_blocks=0, val_fraction=0.0))))
    assert (decided.place, decided.val_blocks, decided.val_fraction) == (False, 0, 0)  # 0 and False are decisions


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, {}),
        ({"classes": "0=no,1=a"}, None),
        ({"ignore_index": "3"}, None),
        ({"task": "classes"}, None),
        ({"regions": "a=1"}, None),
        ({}, {"classes": ((0, "no"),)}),
        ({}, {"group_sizes": np.array([8])}),
        ({}, {"task": "objects"}),
    ],
)
def test_numbers_are_in_doubt_only_where_nothing_says_what_they_are(settings, said):
    records = Masks([numbered(9, broken=number == 0) for number in range(8)])
    vars(records).update(said or {})
    lines = task_warnings(records, DataConfig(**settings))
    assert len(lines) == (not settings and not said)


def test_a_flag_says_the_task_before_the_records_do_and_these_before_their_masks():
    records = Masks([numbered(3)])
    vars(records)["task"] = "overlapping"
    assert find_task(records, DataConfig(task="classes")) == "classes"
    assert find_task(records, DataConfig()) == "overlapping"
    assert find_task(records, DataConfig(regions="a=1")) == "regions"
    doubtful = Masks([numbered(9)] * 8)
    assert find_task(doubtful, DataConfig()) == "classes"


class Kept(Masks):
    """Masks with a key, under which is kept what they are."""

    def __init__(self, masks: list[np.ndarray], digest: str) -> None:
        super().__init__(masks)
        self.digest = digest


def test_what_is_kept_of_one_data_set_is_not_that_of_another():
    objects = Kept([numbered(highest) for highest in range(11, 19)], "a data set of objects")
    classes = Kept([numbered(3)] * 8, "a data set of classes")
    assert [find_task(records, DataConfig()) for records in (objects, classes)] == ["objects", "classes"]
    large = np.repeat(np.arange(1, 4), 20)[None]
    readers = [ObjectReader().with_records(records) for records in (objects, Kept([large], "three large objects"))]
    assert [reader.smallest for reader in readers] == [1, 10]
    objects.read.clear()
    assert find_task(objects, DataConfig()) == "objects" and len(objects.read) == 1  # it is not looked at again


def test_a_hole_in_every_twentieth_object_is_taken_for_a_mistake():
    ring = np.ones((5, 5), int)
    ring[2, 2] = 0
    for count, are_filled in ((20, True), (19, False)):
        mask = np.concatenate([ring, *(np.full((5, 5), number) for number in range(2, count + 1))])
        assert shapes_of_objects(Masks([mask]), ObjectReader())["fills_holes"] == are_filled
    records = Masks([NOTHING] * 60, dims=3)
    shapes_of_objects(records, ObjectReader())
    assert len(records.read) == 4


def test_a_reader_of_objects_tells_its_task_and_itself():
    reader = ObjectReader(classes=((9, "a"), (7, "b")), smallest=7, fills_holes=True, class_pixels=(10, 0, 30))
    task = reader.task("ce", ["auto"])
    assert (task.smallest, task.fills_holes, task.classes.names) == (7, True, ("background", "a", "b"))
    assert task.classes.class_weights.tolist() == pytest.approx([(4 / 3) ** 0.5, 1, (4 / 9) ** 0.5])
    assert reader.describe() == "numbered objects of the classes a, b"
    assert ObjectReader().describe() == "numbered objects"
    assert ObjectReader.of_values({}, (), DataConfig(ignore_index="3,9")) == ObjectReader((3, 9))
    highest = np.array([[0, 2**31 - 1]])
    assert ObjectReader().of_mask(highest, "a").ids.tolist() == highest.tolist()


def test_a_census_says_the_median_and_names_three_images_with_pieces():
    census = ObjectCensus()
    for name in "abcd":
        census.add(name, np.array([[1, 0, 1, 0, 2, 0, 3, 3, 3, 3, 3, 3, 3]]))
    median, pieces = census.lines()[1:]
    assert median.startswith("sizes of objects in pixels: 1 to 7, median 2; 0 (0.0%) touch")
    assert pieces.endswith("in 4 images a number names several pieces, which count as one object: a, b, c, ...")


def test_a_reader_of_classes_describes_what_is_ignored_and_shows_what_is_known():
    reader = ClassReader(ClassMap(("a", "b"), (1, 2), 0))
    assert reader.describe() == "classes 1=a, 2=b, ignored 0"
    partly = PartlyLabeledReader(TWO, label_sets=BY_A)
    target = partly.of_record(partly.of_mask(np.array([[1, 2]]), "mask"), {"labeled": ("a",)})
    assert partly.shown_truth(target).tolist() == [[0, 255]] and target.mask.tolist() == [[0, 1]]
    whole = partly.of_record(partly.of_mask(np.array([[1, 2]]), "mask"), {})
    assert partly.shown_truth(whole).tolist() == [[0, 1]]


SIDED = Sides((1, 0), False, "")


def test_a_reader_of_overlapping_classes_hands_on_values_sides_and_weights():
    classes = ((1, "a"), (2, "b"), (3, "a"))
    reader = OverlapReader.of_values({}, classes, DataConfig())
    assert reader.values == ((1, 3), (2,))
    reader = OverlapReader(("a", "b"), class_pixels=(30, 10), sides=SIDED)
    task = reader.task("ce", ["auto"])
    assert (task.partners, task.mirrors) == ((1, 0), False)
    assert task.class_weights.tolist() == pytest.approx([(2 / 3) ** 0.5, 2**0.5])
    unknown = int(pack_bits(np.array(0), np.array(2)))
    assert reader.is_empty(0) and reader.is_empty(unknown) and not reader.is_empty(1)
    text = "classes that may overlap a, b"
    assert reader.describe() == text
    assert OverlapReader(("a", "b"), overlap=0.25).describe() == f"{text} (25.0% of their pixels have several)"


def test_a_reader_of_regions_hands_on_its_classes_sides_and_weights():
    pixels = {value: 5 for value in (0, 1, 2, 3, 7, 8, 9)}
    config = DataConfig(regions="a=1+2;b=3", swap="a=b", ignore_index="9,8,7")
    reader = RegionReader.of_values(pixels, (), config)
    assert reader.ignored == (9, 8, 7) and reader.describe() == "regions a=1+2, b=3, ignored 9, 8, 7"
    reader = reader.with_pixels({0: 100, 1: 10, 2: 20, 3: 10, 9: 7})
    assert reader.class_pixels == (30, 10)
    task = reader.task("ce", ["auto"])
    assert (task.partners, task.mirrors, task.regions) == ((1, 0), True, reader.regions)
    assert task.class_weights.tolist() == pytest.approx([(2 / 3) ** 0.5, 2**0.5])
    off = RegionReader((Region("left", (1,)), Region("right", (2,))), sides=SIDED).task("ce", None)
    assert (off.partners, off.mirrors) == ((1, 0), False)


def test_as_many_regions_as_bits_are_read_and_each_is_compared_with_all_before_it():
    regions = parse_regions(";".join(f"r{number}={number}" for number in range(1, 32)))
    assert len(regions) == 31
    with pytest.raises(SettingsError, match="a and c would both be written as 1"):
        parse_regions("a=1;b=2;c=1+2")


def test_a_reader_of_points_hands_on_all_that_the_task_needs():
    given = {"unit": "mm", "layout": "tps", "space": "LPS", "sigma": 1.5, "nowhere": 3.0, "mirrors": False}
    reader = PointReader(("b", "a"), (1, 0), (1, 0), **given)
    task = reader.task("", None)
    assert {name: getattr(task, name) for name in given} == given
    assert (task.names, task.partners) == (("b", "a"), (1, 0)) and reader.sided_pairs == [(1, 0)]
    points = ListRecords([])
    points.landmarks = LandmarkNames(("nose", "right_eye", "left_eye"), "long")
    chosen = PointReader.of_records(points, {}, (), DataConfig(classes="left_eye, right_eye"))
    assert (chosen.chosen, chosen.partners, chosen.unit) == ((2, 1), (1, 0), "px")
    swapped = PointReader.of_records(points, {}, (), DataConfig(swap="nose=left_eye"))
    assert swapped.partners == (2, 1, 0)
    assert chosen.warnings([]) == ("in the mirror left_eye and right_eye change places",)
    with pytest.raises(DataError, match="--classes nose,nose: expected some of nose, right_eye, left_eye"):
        PointReader.of_records(points, {}, (), DataConfig(classes="nose,nose"))


def test_regions_are_labeled_by_the_names_of_their_labels():
    labels = ClassMap(("background", "edema", "core"), (0, 1, 2), None)
    reader = RegionReader((Region("whole", (1, 2)), Region("inner", (2,))), class_map=labels)
    sets = {("core",): "t", ("core", "edema"): "t", ("swelling", "inner"): "t"}
    reader = reader.partly_labeled(sets, ((1, "swelling"),), {None: {0: 1}})
    assert [tuple(reader.labeled_classes(names)) for names in sets] == [(1,), (0, 1), (1,)]


def test_points_of_a_window_are_those_of_the_resized_image():
    positions = np.array([[9.5, 4.5], [39.0, 19.0]])  # (x, y) in an image of 20 x 40
    record = {"image": "", "target": PointSource("file", "pixels", positions, np.array([PRESENT] * 2)), "name": "a"}
    windows = PointWindows(PointReader(("a", "b"), (0, 1), (0, 1)), record, (20, 40))
    target = windows.read((10, 20), ((1, 6), (2, 12)))
    assert target.points.tolist()[0] == [1, 2.5] and target.states.tolist() == [PRESENT, OUTSIDE]
