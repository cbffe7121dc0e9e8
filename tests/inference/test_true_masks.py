"""The true mask of each input: by the stem of its name, a suffix, its page, or in a folder for each class.

Module: inference/input_pages.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from support.prediction import touch
from support.written_files import PLACE

from data_utils.image_io.class_masks import ClassMasks
from data_utils.image_io.formats import PageFile, VolumeFile
from data_utils.image_io.placed_masks import PlacedMask
from inference.input_files import files_below
from inference.input_pages import InputPages
from inference.scoring.true_masks import AnnotatedTruths, TrueMasks, TruthFolder
from runtime.errors import DataError
from tasks.job import Job


def stems(*names: str) -> list[Path]:
    return [Path(name) for name in names]


def find(masks, name: str, page: str | None = None, number: int = 0, pages: int = 1, image: Path | None = None):
    """The true mask of page `number` of an image, whose outputs are named `page`."""
    jobs = [Job(image=image or Path(name), size=None, output=Path("out"))] * pages
    return masks.find(InputPages(Path(name), jobs, stems(page or name) * pages), number)


@pytest.fixture
def suffixed(tmp_path) -> TrueMasks:
    """True masks with the suffix _mask, of which one is a TIFF of two pages."""
    tifffile.imwrite(tmp_path / "stack.tif", np.zeros((2, 4, 4), np.uint8), photometric="minisblack")
    files = {Path(name): tmp_path / f"{name}.png" for name in ("a_mask", "b_mask", "sub/a_mask")}
    files[Path("stack_mask")] = tmp_path / "stack.tif"
    return TrueMasks(files, None, stems("a", "b", "sub/a", "stack"))


@pytest.mark.parametrize("name", ["a", "sub/a"])
def test_true_masks_are_found_by_a_suffix_that_is_detected(tmp_path, suffixed, name):
    assert suffixed.suffix == "_mask"
    assert find(suffixed, name) == PageFile(tmp_path / f"{name}_mask.png")


def test_true_masks_of_pages_are_pages(tmp_path, suffixed):
    assert find(suffixed, "stack", "stack_0002", 1, 2) == PageFile(tmp_path / "stack.tif", 1)


@pytest.mark.parametrize("pages", [1, 3])
def test_true_masks_of_other_pages_are_refused(suffixed, pages):
    with pytest.raises(DataError, match=rf"stack\.tif: has 2 pages, the image {pages}"):
        find(suffixed, "stack", "stack_0001", 0, pages)


def test_a_true_mask_may_be_missing(suffixed):
    assert find(suffixed, "c") is None


def test_a_picture_is_no_true_mask_of_pages(suffixed):
    assert find(suffixed, "a", "a_0001", 0, 2) is None


def test_true_masks_are_found_by_a_suffix_that_is_given(tmp_path):
    given = TrueMasks({Path("a_x"): tmp_path / "a_x.png", Path("a"): tmp_path / "a.png"}, "_x", stems("a"))
    assert find(given, "a") == PageFile(tmp_path / "a_x.png")


def test_true_masks_are_found_whose_accents_are_stored_in_another_way(tmp_path):
    masks = TrueMasks({Path("cafe\u0301_mask"): tmp_path / "mask.png"}, None, stems("caf\u00e9"))
    assert find(masks, "caf\u00e9") == PageFile(tmp_path / "mask.png")


@pytest.mark.parametrize("objects", [(), ("cell",), ("cell", "other")])
@pytest.mark.parametrize("name", ["file", "none"])
def test_true_masks_lie_in_a_folder(tmp_path, name, objects):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"--truth .*{name}: is not a folder"):
        TruthFolder(tmp_path / name, None, (), objects).open(stems("a"))


def test_masks_are_the_true_objects_of_a_model_of_one_class(tmp_path):
    touch(tmp_path, "a.png")
    masks = TruthFolder(tmp_path, "", (), ("cell",)).open(stems("a"))
    assert find(masks, "a") == PageFile(tmp_path / "a.png")


def test_masks_are_not_the_true_objects_of_a_model_of_two_classes(tmp_path):
    touch(tmp_path, "a.png")
    with pytest.raises(DataError, match="masks do not say the classes of objects"):
        TruthFolder(tmp_path, "", (), ("cell", "other")).open(stems("a"))


@pytest.mark.parametrize("names", [("a.png", "a_x.png"), ("c/a.png", "c/a_x.png")], ids=["one file", "folders"])
def test_the_suffix_that_is_given_is_that_of_the_true_masks_of_classes(tmp_path, names):
    touch(tmp_path, *names)
    mask = find(TruthFolder(tmp_path, "_x", ["c", "none"]).open(stems("a")), "a")
    assert mask.name.endswith("a_x.png")


def test_the_suffix_of_true_masks_of_a_class_is_detected(tmp_path):
    touch(tmp_path, "c/a_x.png")
    mask = find(TruthFolder(tmp_path, None, ["c"]).open(stems("a")), "a")
    assert mask == ClassMasks((PageFile(str(tmp_path / "c" / "a_x.png")),), (0,))


def test_a_page_has_the_true_masks_of_its_classes_in_stacks(tmp_path):
    (tmp_path / "a").mkdir()
    stack = tmp_path / "a" / "s.tif"
    tifffile.imwrite(stack, np.zeros((2, 3, 4), np.uint8), photometric="minisblack")
    masks = TruthFolder(tmp_path, "", ["a", "none"]).open(stems("s"))
    second = ClassMasks((PageFile(str(stack), 1), PageFile("")), (0, 1))
    assert find(masks, "s", "s_0002", 1, 2) == second


def test_a_page_has_the_true_masks_of_its_classes_in_a_file_of_its_own(tmp_path):
    touch(tmp_path, "a.png", "s_0002.png")
    masks = TruthFolder(tmp_path, "", ["a"]).open(stems("a", "s"))  # a file is no folder of a class
    assert find(masks, "a") == ClassMasks((PageFile(str(tmp_path / "a.png")),), (0,))
    page = find(masks, "s", "s_0002", 1, 2)
    assert page == ClassMasks((PageFile(str(tmp_path / "s_0002.png")),), (0,))


class Annotated(list):
    """Records of annotated images."""

    def __init__(self, *names: tuple[str, str]) -> None:
        super().__init__({"name": name, "image": image} for name, image in names)

    def listed_name(self, i: int) -> str:
        return self[i]["name"]


SPLITS = [
    Annotated(("sub/a.png", "/images/sub/x.png"), ("b", "/images/b/picture.png"), ("twice.png", "/1.png")),
    Annotated(("other/a.png", "/images/other/y.png"), ("twice.png", "/2.png"), ("cafe\u0301.png", "/3.png")),
]


@pytest.mark.parametrize(
    ("name", "image", "file"),
    [
        ("sub/a", "/elsewhere/a.png", "/images/sub/x.png"),
        ("b", "/elsewhere/b.png", "/images/b/picture.png"),
        ("picture", "/images/b/../b/picture.png", "/images/b/picture.png"),
        ("twice", "/2.png", "/2.png"),
        ("twice", "/elsewhere/twice.png", None),
        ("third/a", "/third/a.png", None),
        ("a", "/third/a.png", None),
        ("caf\u00e9", "/elsewhere/caf\u00e9.png", "/3.png"),
    ],
    ids=["path", "folder", "same file", "file of two", "path of two", "name in another folder", "name", "accents"],
)
def test_annotations_are_those_of_the_same_file_or_path(name, image, file):
    truths = AnnotatedTruths(SPLITS, lambda records, record: PageFile(record["image"]))
    assert find(truths, name, image=Path(image)) == (file and PageFile(file))


@pytest.fixture
def two_splits(tmp_path) -> Path:
    """Annotated images in train/ and test/, which has one without annotations too."""
    for split in ("train", "test"):
        touch(tmp_path, f"{split}/{split}.png")
        shape = {"label": "cell", "shape_type": "rectangle", "points": [[0, 0], [2, 2]]}
        content = {"imagePath": f"{split}.png", "imageHeight": 3, "imageWidth": 4, "shapes": [shape]}
        (tmp_path / split / f"{split}.json").write_text(json.dumps(content))
    touch(tmp_path, "test/unlabeled.png")
    return tmp_path


@pytest.mark.parametrize(("name", "is_found"), [("train", True), ("test", True), ("unlabeled", False)])
def test_true_objects_are_those_of_all_splits(two_splits, name, is_found):
    masks = TruthFolder(two_splits, None, (), ("cell",)).open(stems("train", "test"))
    assert (find(masks, name) is not None) is is_found


@pytest.mark.parametrize(
    ("listed", "name", "is_found"),
    [
        ("b/1.png", "b/1", True),
        ("b/1.png", "a/1", False),
        ("b/1.png", "1", False),
        ("images/b/1.png", "b/1", True),
        ("C:\\x\\b\\1.png", "b/1", True),
        ("images/0.png", "0", True),
        ("0.png", "b/0", False),
    ],
)
def test_true_objects_are_those_of_an_image_in_the_folder_that_their_file_lists(tmp_path, listed, name, is_found):
    touch(tmp_path, "images/a/1.png", "images/b/1.png", "images/0.png")
    content = {"images": [{"id": 1, "file_name": listed}], "categories": [{"id": 1, "name": "cell"}]}
    content["annotations"] = [{"image_id": 1, "category_id": 1, "segmentation": [[0, 0, 2, 0, 2, 2]]}]
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    masks = TruthFolder(tmp_path, None, (), ("cell",)).open(stems("a", "b"))
    assert (find(masks, name, image=tmp_path / "elsewhere" / "1.png") is not None) is is_found


@pytest.fixture
def class_folders(tmp_path) -> TrueMasks:
    """True masks of two classes in a folder each."""
    touch(tmp_path, "a/x.png", "b/x.png", "a/sub/y.png", "a/v.nii.gz")
    return TruthFolder(tmp_path, "", ["a", "b"]).open(stems("x", "sub/y", "v", "z"))


def test_true_masks_of_classes_that_overlap_lie_in_a_folder_for_each(tmp_path, class_folders):
    files = (PageFile(str(tmp_path / "a" / "x.png")), PageFile(str(tmp_path / "b" / "x.png")))
    assert find(class_folders, "x") == ClassMasks(files, (0, 1))


def test_a_folder_of_a_class_lies_in_that_of_all_true_masks(tmp_path):
    touch(tmp_path, "a/x.png", "old/b/x.png")
    mask = find(TruthFolder(tmp_path, "", ["a", "b"]).open(stems("x")), "x")
    assert mask == ClassMasks((PageFile(str(tmp_path / "a" / "x.png")), PageFile("")), (0, 1))


def test_nothing_is_known_of_a_class_without_a_mask(tmp_path, class_folders):
    files = (PageFile(str(tmp_path / "a" / "sub" / "y.png")), PageFile(""))
    assert find(class_folders, "sub/y") == ClassMasks(files, (0, 1))
    volume = find(class_folders, "v")
    assert volume.paths == (str(tmp_path / "a" / "v.nii.gz"),)
    assert volume.layers.unknown == (1,)


def test_the_true_mask_of_a_later_page_is_read_as_it_is_whatever_its_place(tmp_path):
    tags = [(33550, "d", 3, (1.0, 1.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 5.0, 9.0, 0.0), True)]
    with tifffile.TiffWriter(tmp_path / "s.tif") as tiff:
        for _ in range(2):
            tiff.write(np.zeros((3, 4), np.uint8), photometric="minisblack", extratags=tags)
    job = Job(image=Path("s.tif"), size=(3, 4), output=Path("out"), place=PLACE)
    inputs = [InputPages(Path("s"), [job, replace(job, page=1)], stems("s_0001", "s_0002"))]
    first, second = TruthFolder(tmp_path, "").with_truths(inputs)
    assert isinstance(first.truth, PlacedMask)
    assert second.truth == PageFile(tmp_path / "s.tif", 1)
    pictures = TruthFolder(tmp_path, "", reads_places=False).with_truths(inputs)
    assert [job.truth for job in pictures] == [
        PageFile(str(tmp_path / "s.tif"), page, reads_place=False) for page in (0, 1)
    ]


def test_the_true_mask_of_a_later_page_may_be_the_first_page_of_a_file(tmp_path):
    touch(tmp_path, "s_0002.tif")
    job = Job(image=Path("s.tif"), size=(3, 4), output=Path("out"), page=1)
    (scored,) = TruthFolder(tmp_path, "", reads_places=False).with_truths(
        [InputPages(Path("s"), [job], stems("s_0002"))]
    )
    assert scored.truth == PageFile(str(tmp_path / "s_0002.tif"), reads_place=False)


def test_true_masks_of_pages_are_counted_without_small_copies_of_the_image(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((2, 3, 4), np.uint8), photometric="minisblack")
    jobs = [Job(image=Path("s.tif"), size=(3, 4), output=Path("out"), page=page) for page in (0, 2)]
    scored = TruthFolder(tmp_path, "").with_truths([InputPages(Path("s"), jobs, stems("s_0001", "s_0002"))])
    assert [job.truth for job in scored] == [PageFile(tmp_path / "s.tif", page) for page in (0, 1)]


def test_the_true_mask_of_a_stack_is_no_picture(tmp_path):
    tifffile.imwrite(tmp_path / "v.tif", np.zeros((2, 3, 4), np.uint8), photometric="minisblack")
    job = Job(image=Path("v.tif"), size=(2, 3, 4), output=Path("out"), volume=VolumeFile(("v.tif",)))
    inputs = [InputPages(Path("v"), [job], stems("v"))]
    (scored,) = TruthFolder(tmp_path, "", reads_places=False).with_truths(inputs)
    assert scored.truth == PageFile(tmp_path / "v.tif")


@pytest.fixture
def class_stacks(tmp_path) -> Path:
    """A folder with a stack of two pages, one of a page, and a picture."""
    touch(tmp_path, "x.png")
    for name, pages in (("s", 2), ("p", 1)):
        stack = np.zeros((pages, 3, 4), np.uint8)
        tifffile.imwrite(tmp_path / f"{name}.tif", stack, photometric="minisblack")
    return tmp_path


def test_true_masks_of_classes_that_overlap_are_pages_of_a_stack(class_stacks):
    stack = str(class_stacks / "s.tif")
    mask = find(TruthFolder(class_stacks, "", ["a", "b"]).open(stems("s")), "s")
    assert mask == ClassMasks((PageFile(stack, 0), PageFile(stack, 1)), (0, 1))
    assert mask.name == stack


@pytest.mark.parametrize("file", ["s.tif", "p.tif", "x.png"])
def test_the_true_mask_of_one_class_that_may_overlap_is_a_channel(class_stacks, file):
    name = Path(file).stem
    mask = find(TruthFolder(class_stacks, "", ["a"]).open(stems("s", "p", "x")), name)
    assert mask == ClassMasks((PageFile(str(class_stacks / file)),), (0,))
    assert mask.name == str(class_stacks / file)


def test_small_copies_within_a_stack_are_no_true_masks(tmp_path):
    file = tmp_path / "stack.tif"
    with tifffile.TiffWriter(file) as tiff:
        for _ in range(2):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack")
            tiff.write(np.zeros((2, 2), np.uint8), photometric="minisblack", subfiletype=1)
    masks = TrueMasks({Path("stack"): file}, "", [Path("stack")])
    pages = [find(masks, "stack", f"stack_{number:04}", number, 2) for number in range(2)]
    assert pages == [PageFile(file, 0), PageFile(file, 2)]


def test_files_come_in_the_order_of_their_names_whatever_the_disk_says(tmp_path):
    order = np.random.default_rng(0).permutation(40)
    touch(tmp_path, *[f"{number % 3}/{number:02}.png" for number in order])
    files = [file.relative_to(tmp_path).as_posix() for file in files_below(tmp_path) if file.is_file()]
    assert files == sorted(files)
    assert len(files) == 40


@pytest.mark.parametrize(("name", "unknown"), [("a", (1, 2)), ("b", (0, 2)), ("c", (0, 1))])
def test_a_volume_may_have_a_mask_of_any_of_the_classes_alone(tmp_path, name, unknown):
    touch(tmp_path, f"{name}/v.nii.gz", "a/x.nii.gz", "b/x.nii.gz", "c/x.nii.gz")
    masks = TruthFolder(tmp_path, "", ["a", "b", "c"]).open(stems("v", "x"))
    volume = find(masks, "v")
    assert volume.paths == (str(tmp_path / name / "v.nii.gz"),)
    assert volume.layers.unknown == unknown
    assert len(find(masks, "x").paths) == 3
