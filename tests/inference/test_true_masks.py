"""The true mask of each input: by the stem of its name, a suffix, its page, or in a folder for each class.

Module: inference/true_masks.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.formats import class_format, format_of, object_format, overlap_format
from support.inputs import find_jobs
from support.prediction import touch, true_labels
from support.rasters import feature, square, write_geojson, write_raster
from support.written_files import PLACE

from data_utils.class_map import ClassMap
from data_utils.image_io.class_masks import ClassMasks
from data_utils.image_io.formats import PageFile, VolumeFile
from data_utils.image_io.places import PlacedMask
from inference.output_folder import record_provenance
from inference.true_masks import TrueMasks, TruthFolder, truths_of_data_set
from runtime.errors import DataError
from tasks.classes.reader import ClassReader
from tasks.job import Job, MaskFile
from tasks.objects.write import write_coco
from tasks.prediction_format import MaskFormat
from unet.config import Preprocess, UNetConfig

CLASSES = class_format(("a", "b"), (0, 1))
MODEL = UNetConfig(preprocess=Preprocess(place=True))


def objects_of(*names: str) -> MaskFormat:
    """The format of objects of these classes; of classes without objects if there are none."""
    return object_format(*names) if names else CLASSES


def stems(*names: str) -> list[Path]:
    return [Path(name) for name in names]


def pages_of(name: str, pages: int = 1, image: Path | None = None) -> list[Job]:
    """The jobs of all pages of an image, whose outputs are numbered if there are several."""
    job = Job(source=PageFile(image or f"{name}.tif"), size=None, root=Path("out"), stem=Path(name), pages=pages)
    return [job] if pages == 1 else [replace(job, number=number) for number in range(1, pages + 1)]


def find(masks: TrueMasks, name: str, number: int = 0, pages: int = 1) -> MaskFile | None:
    """The true mask of page `number` of an image."""
    return masks.find(pages_of(name, pages)[number])


def truth_in(folder: TruthFolder, name: str, number: int = 0, pages: int = 1) -> MaskFile | None:
    """The true mask of page `number` of the only image that a folder is searched for."""
    return folder.with_truths(pages_of(name, pages))[number].truth


@pytest.fixture
def suffixed(tmp_path) -> TrueMasks:
    """True masks with the suffix _mask, of which one is a TIFF of two pages."""
    tifffile.imwrite(tmp_path / "stack.tif", np.zeros((2, 4, 4), np.uint8), photometric="minisblack")
    files = {Path(name): tmp_path / f"{name}.png" for name in ("a_mask", "b_mask", "sub/a_mask")}
    files[Path("stack_mask")] = tmp_path / "stack.tif"
    return TrueMasks(files, None, stems("a", "b", "sub/a", "stack"))


@pytest.mark.parametrize("name", ["a", "sub/a"])
def test_true_masks_are_found_by_a_suffix_that_is_detected(tmp_path, suffixed, name):
    assert find(suffixed, name) == PageFile(tmp_path / f"{name}_mask.png")


def test_true_masks_of_pages_are_pages_of_as_many(tmp_path, suffixed):
    assert find(suffixed, "stack", 1, 2) == PageFile(tmp_path / "stack.tif", 1)
    with pytest.raises(DataError, match=r"stack\.tif: has 2 pages, the image 3"):
        find(suffixed, "stack", 0, 3)


@pytest.mark.parametrize(
    ("images", "mask"),
    [
        (["a.png"], "a_mask.png"),
        (["0_img.png"], "0_masks.png"),
        (["images/image_0.png"], "masks/mask_0.png"),
        (["case/image.png"], "case/label.png"),
        (["case/image.nii.gz"], "case/label.nii.gz"),
        (["case/case_t1.nii.gz", "case/case_t2.nii.gz"], "case/case_seg.nii.gz"),
        (["volume-0.nii.gz"], "segmentation-0.nii.gz"),
        (["train/a.png"], "train_masks/a_mask.png"),
        (["img_dir/train/a.png"], "ann_dir/train/a.png"),
        (["imagesTr/a_0000.png"], "labelsTr/a.png"),
        (["JPEGImages/a.png"], "SegmentationClass/a.png"),
    ],
)
def test_images_of_a_data_set_have_the_masks_that_training_reads_and_masks_are_no_inputs(tmp_path, images, mask):
    touch(tmp_path, *images, mask)
    jobs = find_jobs([str(tmp_path)], tmp_path / "out", channels=len(images))
    (job,) = TruthFolder(tmp_path, MODEL, CLASSES).with_truths(jobs)
    assert job.files == tuple(str(tmp_path / image) for image in images)
    path = job.truth.paths[0] if isinstance(job.truth, VolumeFile) else job.truth.path
    assert Path(path) == tmp_path / mask


def test_true_masks_are_found_whose_accents_are_stored_in_another_way(tmp_path):
    masks = TrueMasks({Path("cafe\u0301_mask"): tmp_path / "mask.png"}, None, stems("caf\u00e9"))
    assert find(masks, "caf\u00e9") == PageFile(tmp_path / "mask.png")


@pytest.mark.parametrize("objects", [(), ("cell",), ("cell", "other")])
@pytest.mark.parametrize("name", ["file", "none"])
def test_true_masks_lie_in_a_folder(tmp_path, name, objects):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"--truth .*{name}: is not a folder"):
        truth_in(TruthFolder(tmp_path / name, MODEL, objects_of(*objects)), "a")


def test_masks_are_the_true_objects_of_a_model_of_one_class(tmp_path):
    touch(tmp_path, "a.png")
    assert truth_in(TruthFolder(tmp_path, MODEL, objects_of("cell"), ""), "a") == PageFile(tmp_path / "a.png")


def test_masks_that_were_predicted_are_truth_beside_the_other_outputs(tmp_path):
    touch(tmp_path, "a.png")
    write_coco(tmp_path, [], objects_of("cell"))
    record_provenance(tmp_path, {"models": {"model": "0"}}, overwrite=False)
    assert truth_in(TruthFolder(tmp_path, MODEL, objects_of("cell")), "a") == PageFile(tmp_path / "a.png")


def test_masks_are_not_the_true_objects_of_a_model_of_two_classes(tmp_path):
    touch(tmp_path, "a.png")
    with pytest.raises(DataError, match="masks do not say the classes of objects"):
        truth_in(TruthFolder(tmp_path, MODEL, objects_of("cell", "other"), ""), "a")


@pytest.mark.parametrize("names", [("a.png", "a_x.png"), ("c/a.png", "c/a_x.png")], ids=["one file", "folders"])
def test_the_suffix_that_is_given_is_that_of_the_true_masks_of_classes(tmp_path, names):
    touch(tmp_path, *names)
    mask = truth_in(TruthFolder(tmp_path, MODEL, overlap_format("c", "none"), "_x"), "a")
    assert mask.name.endswith("a_x.png")


def test_the_suffix_of_true_masks_of_a_class_is_detected(tmp_path):
    touch(tmp_path, "c/a_x.png")
    mask = truth_in(TruthFolder(tmp_path, MODEL, overlap_format("c"), None), "a")
    assert mask == ClassMasks((PageFile(str(tmp_path / "c" / "a_x.png")),), (0,))


def test_a_page_has_the_true_masks_of_its_classes_in_stacks(tmp_path):
    (tmp_path / "a").mkdir()
    stack = tmp_path / "a" / "s.tif"
    tifffile.imwrite(stack, np.zeros((2, 3, 4), np.uint8), photometric="minisblack")
    second = ClassMasks((PageFile(str(stack), 1), PageFile("")), (0, 1))
    assert truth_in(TruthFolder(tmp_path, MODEL, overlap_format("a", "none"), ""), "s", 1, 2) == second


def test_a_page_has_the_true_masks_of_its_classes_in_a_file_of_its_own(tmp_path):
    touch(tmp_path, "s_0001.png", "s_0002.png")
    page = truth_in(
        TruthFolder(tmp_path, MODEL, overlap_format("s_0001"), ""), "s", 1, 2
    )  # a file is no folder of a class
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
    truth_of = truths_of_data_set(SPLITS, lambda records, record: PageFile(record["image"]))
    (job,) = pages_of(name, image=Path(image))
    assert truth_of(job) == (file and PageFile(file))


def has_truth(folder: TruthFolder, pages: list[Job]) -> bool:
    """Whether an image has a true mask in a folder."""
    try:
        folder.with_truths(pages)
    except DataError as error:
        assert "has no mask for 1 input" in str(error)
        return False
    return True


@pytest.mark.parametrize(("name", "is_found"), [("train", True), ("test", True), ("unlabeled", False)])
def test_true_objects_are_those_of_all_splits(name, is_found, tmp_path):
    """Annotated images in train/ and test/, which has one without annotations too."""
    for split in ("train", "test"):
        touch(tmp_path, f"{split}/{split}.png")
        shape = {"label": "cell", "shape_type": "rectangle", "points": [[0, 0], [2, 2]]}
        content = {"imagePath": f"{split}.png", "imageHeight": 3, "imageWidth": 4, "shapes": [shape]}
        (tmp_path / split / f"{split}.json").write_text(json.dumps(content))
    touch(tmp_path, "test/unlabeled.png")
    assert has_truth(TruthFolder(tmp_path, MODEL, objects_of("cell"), None), pages_of(name)) is is_found


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
    pages = pages_of(name, image=tmp_path / "elsewhere" / "1.png")
    assert has_truth(TruthFolder(tmp_path, MODEL, objects_of("cell"), None), pages) is is_found


def test_objects_of_annotations_are_the_truth_of_classes_that_overlap(tmp_path):
    Image.new("L", (4, 3)).save(tmp_path / "a.png")
    content = {"images": [{"id": 1, "file_name": "a.png", "width": 4, "height": 3}], "annotations": []}
    content["categories"] = [{"id": number, "name": name} for number, name in enumerate(("other", "left", "right"), 1)]
    for number, left in ((1, 0), (2, 0), (3, 1)):
        box = [left, 0, left + 2, 0, left + 2, 3, left, 3]
        entry = {"id": number, "image_id": 1, "category_id": number, "segmentation": [box], "bbox": [left, 0, 2, 3]}
        content["annotations"].append(entry)
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    truths = TruthFolder(tmp_path, MODEL, overlap_format("right", "left"))
    (job,) = truths.with_truths(find_jobs([str(tmp_path / "a.png")], tmp_path / "out"))
    np.testing.assert_array_equal(true_labels(job.truth, truths.output_format), [[2, 3, 1, 0]] * 3)


@pytest.mark.parametrize(("classes", "is_said"), [(("background", "a", "b"), True), (("background", "b"), False)])
def test_a_line_says_that_annotations_are_of_some_classes_only(tmp_path, capsys, classes, is_said):
    for name in ("a", "b"):
        Image.new("L", (4, 3)).save(tmp_path / f"{name}.png")
        content = {"images": [{"id": 1, "file_name": f"{name}.png"}], "annotations": []}
        content["categories"] = [{"id": 1, "name": name}, {"id": 2, "name": "b" if name == "a" else "c"}]
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / f"instances_train_{name}.json").write_text(json.dumps(content))
    truths = TruthFolder(tmp_path, MODEL, class_format(classes, range(len(classes))))
    truths.with_truths(find_jobs([str(tmp_path / "a.png")], tmp_path / "out"))
    assert ("labeled for some classes only" in capsys.readouterr().out) is is_said


def test_polygons_are_true_classes_by_their_column(tmp_path):
    image = write_raster(tmp_path / "images" / "a.tif", np.zeros((1, 4, 4), np.uint16))
    write_geojson(tmp_path / "crops.geojson", [feature(square(0, 0, 2), crop="b"), feature(square(2, 0, 2), crop="a")])
    classes = class_format(("background", "a", "b"), (0, 1, 2))
    truths = TruthFolder(tmp_path, MODEL, classes, label_column="crop")
    (job,) = truths.with_truths(find_jobs([str(image)], tmp_path / "out"))
    np.testing.assert_array_equal(true_labels(job.truth, classes), [[2, 2, 1, 1]] * 2 + [[0] * 4] * 2)


@pytest.mark.parametrize("outside", [0, 255])
def test_polygons_without_the_column_of_their_classes_are_no_truth_of_several(tmp_path, outside):
    image = write_raster(tmp_path / "images" / "a.tif", np.zeros((1, 4, 4), np.uint16))
    write_geojson(tmp_path / "crops.geojson", [feature(square(0, 0, 2), crop="b"), feature(square(2, 0, 2), crop="a")])
    classes = format_of(ClassReader(ClassMap(("a", "b"), (1, 2), None, outside=outside)))
    with pytest.raises(DataError, match=r"--truth .*--label-column"):
        TruthFolder(tmp_path, MODEL, classes).with_truths(find_jobs([str(image)], tmp_path / "out"))


def test_masks_of_voc_are_truth_by_their_values_whatever_its_list_calls_them(tmp_path):
    touch(tmp_path, "JPEGImages/a.png", "SegmentationClass/a.png")
    (tmp_path / "labelmap.txt").write_text("background:0,0,0::\ncell:128,0,0::\nnucleus:0,128,0::\n")
    truths = TruthFolder(tmp_path, MODEL, class_format(("background", "one", "two"), (0, 1, 2)))
    (job,) = truths.with_truths(find_jobs([str(tmp_path / "JPEGImages")], tmp_path / "out"))
    assert job.truth is not None


def test_masks_of_classes_in_a_folder_of_each_case_are_its_truth(tmp_path):
    touch(tmp_path, "case/ct.nii.gz", "case/segmentations/a.nii.gz", "case/segmentations/b.nii.gz")
    inputs = find_jobs([str(tmp_path)], tmp_path / "out")
    (job,) = TruthFolder(tmp_path, MODEL, overlap_format("a", "b")).with_truths(inputs)
    assert job.truth.paths == tuple(str(tmp_path / "case" / "segmentations" / f"{name}.nii.gz") for name in "ab")
    with pytest.raises(DataError, match=r"has no mask for 1 input, the first is case/ct"):
        TruthFolder(tmp_path, MODEL, overlap_format("b", "c")).with_truths(inputs)


def test_true_masks_of_classes_that_overlap_lie_in_a_folder_for_each_and_nothing_is_known_without_one(tmp_path):
    """True masks of two classes in a folder each."""
    touch(tmp_path, "a/x.png", "b/x.png", "a/sub/y.png", "a/v.nii.gz")
    class_folders = TruthFolder(tmp_path, MODEL, overlap_format("a", "b"), "")
    files = (PageFile(str(tmp_path / "a" / "x.png")), PageFile(str(tmp_path / "b" / "x.png")))
    assert truth_in(class_folders, "x") == ClassMasks(files, (0, 1))
    files = (PageFile(str(tmp_path / "a" / "sub" / "y.png")), PageFile(""))
    assert truth_in(class_folders, "sub/y") == ClassMasks(files, (0, 1))
    volume = truth_in(class_folders, "v")
    assert volume.paths == (str(tmp_path / "a" / "v.nii.gz"),)
    assert volume.layers.unknown == (1,)


def test_a_folder_of_a_class_lies_in_that_of_all_true_masks(tmp_path):
    touch(tmp_path, "a/x.png", "old/b/x.png")
    mask = truth_in(TruthFolder(tmp_path, MODEL, overlap_format("a", "b"), ""), "x")
    assert mask == ClassMasks((PageFile(str(tmp_path / "a" / "x.png")), PageFile("")), (0, 1))


def test_folders_of_classes_may_lie_in_the_folder_of_masks_of_a_data_set(tmp_path):
    touch(tmp_path, "images/x.png", "masks/a/x.png", "masks/b/x.png")
    files = tuple(PageFile(str(tmp_path / "masks" / name / "x.png")) for name in "ab")
    assert truth_in(TruthFolder(tmp_path, MODEL, overlap_format("a", "b")), "x") == ClassMasks(files, (0, 1))


def test_the_true_mask_of_a_later_page_is_read_as_it_is_whatever_its_place(tmp_path):
    tags = [(33550, "d", 3, (1.0, 1.0, 0.0), True), (33922, "d", 6, (0.0, 0.0, 0.0, 5.0, 9.0, 0.0), True)]
    with tifffile.TiffWriter(tmp_path / "s.tif") as tiff:
        for _ in range(2):
            tiff.write(np.zeros((3, 4), np.uint8), photometric="minisblack", extratags=tags)
    jobs = pages_of("s", 2)
    inputs = [replace(job, source=PageFile("s.tif", page), size=(3, 4), place=PLACE) for page, job in enumerate(jobs)]
    first, second = TruthFolder(tmp_path, MODEL, CLASSES, "").with_truths(inputs)
    assert isinstance(first.truth, PlacedMask)
    assert second.truth == PageFile(tmp_path / "s.tif", 1)
    pictures = TruthFolder(tmp_path, UNetConfig(), CLASSES, "").with_truths(inputs)
    assert [job.truth for job in pictures] == [PageFile(tmp_path / "s.tif", page, reads_place=False) for page in (0, 1)]


def test_the_true_mask_of_a_later_page_may_be_the_first_page_of_a_file(tmp_path):
    touch(tmp_path, "s_0002.tif")
    truth = truth_in(TruthFolder(tmp_path, UNetConfig(), CLASSES, ""), "s_0002")
    assert truth == PageFile(tmp_path / "s_0002.tif", reads_place=False)


def test_true_masks_of_pages_are_counted_without_small_copies_of_the_image(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.zeros((2, 3, 4), np.uint8), photometric="minisblack")
    jobs = [replace(job, source=PageFile("s.tif", page)) for job, page in zip(pages_of("s", 2), (0, 2), strict=True)]
    scored = TruthFolder(tmp_path, MODEL, CLASSES, "").with_truths(jobs)
    assert [job.truth for job in scored] == [PageFile(tmp_path / "s.tif", page) for page in (0, 1)]


def test_the_true_mask_of_a_stack_is_no_picture(tmp_path):
    tifffile.imwrite(tmp_path / "v.tif", np.zeros((2, 3, 4), np.uint8), photometric="minisblack")
    (job,) = pages_of("v")
    inputs = [replace(job, size=(2, 3, 4), source=VolumeFile(("v.tif",)))]
    (scored,) = TruthFolder(tmp_path, UNetConfig(), CLASSES, "").with_truths(inputs)
    assert scored.truth == VolumeFile((str(tmp_path / "v.tif"),), grid_of=VolumeFile(("v.tif",)))


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
    mask = truth_in(TruthFolder(class_stacks, MODEL, overlap_format("a", "b"), ""), "s")
    assert mask == ClassMasks((PageFile(stack, 0), PageFile(stack, 1)), (0, 1))
    assert mask.name == stack


@pytest.mark.parametrize("file", ["s.tif", "p.tif", "x.png"])
def test_the_true_mask_of_one_class_that_may_overlap_is_a_channel(class_stacks, file):
    name = Path(file).stem
    mask = truth_in(TruthFolder(class_stacks, MODEL, overlap_format("a"), ""), name)
    assert mask == ClassMasks((PageFile(str(class_stacks / file)),), (0,))
    assert mask.name == str(class_stacks / file)
