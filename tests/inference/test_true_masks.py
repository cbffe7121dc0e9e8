"""The true mask of each input: by the stem of its name, a suffix, its page, or in a folder for each class."""

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
from prediction import touch

from data_utils.image_io.class_masks import ClassChannels, ClassFile, ClassMasks
from data_utils.image_io.formats import ClassLayers, RenderedMask, VolumeFile
from inference.input_files import files_below, pictures_among
from inference.true_masks import ObjectTruths, TrueMasks, open_true_masks
from runtime.errors import DataError


def stems(*names: str) -> list[Path]:
    return [Path(name) for name in names]


def test_true_masks_are_found_by_stem_suffix_and_page(tmp_path):
    tifffile.imwrite(tmp_path / "stack.tif", np.zeros((2, 4, 4), np.uint8), photometric="minisblack")
    files = {Path(name): tmp_path / f"{name}.png" for name in ("a_mask", "b_mask", "sub/a_mask")}
    files[Path("stack_mask")] = tmp_path / "stack.tif"
    masks = TrueMasks(files, None, stems("a", "b", "sub/a", "stack"))
    assert masks.suffix == "_mask"
    assert masks.find(Path("a"), Path("a"), 0, 1) == (tmp_path / "a_mask.png", 0)
    assert masks.find(Path("sub/a"), Path("sub/a"), 0, 1) == (tmp_path / "sub/a_mask.png", 0)
    assert masks.find(Path("stack"), Path("stack_0002"), 1, 2) == (tmp_path / "stack.tif", 1)
    for pages in (1, 3):
        with pytest.raises(DataError, match=rf"stack\.tif: has 2 pages, the image {pages}"):
            masks.find(Path("stack"), Path("stack_0001"), 0, pages)
    assert masks.find(Path("c"), Path("c"), 0, 1) is None
    assert masks.missing == ["c_mask"]
    assert masks.find(Path("a"), Path("a_0001"), 0, 2) is None  # a picture has no pages
    assert TrueMasks({Path("a"): tmp_path / "a.png"}, "", ["a"]).suffix == ""
    given = TrueMasks({Path("a_x"): tmp_path / "a_x.png", Path("a"): tmp_path / "a.png"}, "_x", stems("a"))
    assert given.find(Path("a"), Path("a"), 0, 1) == (tmp_path / "a_x.png", 0)
    assert TrueMasks({}, None, stems("a")).suffix == ""


def test_hidden_pictures_are_left_out_and_those_of_a_folder_below_a_hidden_one_are_found(tmp_path):
    folder = tmp_path / ".data" / "masks"
    touch(folder, "a.png", ".b.png", ".trash/c.png", "sub/d.nii.gz", "sub/e.PNG")
    (folder / "e.txt").touch()
    (folder / "folder.png").mkdir()
    expected = [(Path("a"), folder / "a.png"), (Path("sub/d"), folder / "sub" / "d.nii.gz")]
    expected.append((Path("sub/e"), folder / "sub" / "e.PNG"))
    assert pictures_among(files_below(folder), folder) == expected
    outputs = pictures_among(files_below(folder), folder, lambda file: file.name == "a.png")
    assert outputs == expected[1:]


@pytest.mark.parametrize("objects", [(), ("cell",), ("cell", "other")])
def test_true_masks_lie_in_a_folder(tmp_path, objects):
    (tmp_path / "file").touch()
    for name in ("file", "none"):
        with pytest.raises(DataError, match=f"--truth .*{name}: is not a folder"):
            open_true_masks(tmp_path / name, None, stems("a"), (), objects)


def test_masks_are_the_true_objects_of_a_model_of_one_class_alone(tmp_path):
    touch(tmp_path, "a.png")
    masks = open_true_masks(tmp_path, "", stems("a"), (), ("cell",))
    assert masks.find(Path("a"), Path("a"), 0, 1) == (tmp_path / "a.png", 0)
    with pytest.raises(DataError, match="masks do not say the classes of objects"):
        open_true_masks(tmp_path, "", stems("a"), (), ("cell", "other"))


def test_the_suffix_that_is_given_is_that_of_the_true_masks(tmp_path):
    touch(tmp_path, "plain/a.png", "plain/a_x.png", "classes/c/a.png", "classes/c/a_x.png")
    plain = open_true_masks(tmp_path / "plain", "_x", stems("a"), ())
    assert plain.find(Path("a"), Path("a"), 0, 1) == (tmp_path / "plain" / "a_x.png", 0)
    for folder, classes in (("classes", ["c", "none"]), ("plain", ["c", "none"])):
        mask = open_true_masks(tmp_path / folder, "_x", stems("a"), classes).find(Path("a"), Path("a"), 0, 1)
        assert mask.name.endswith("a_x.png")


def test_the_suffix_of_true_masks_in_folders_is_detected(tmp_path):
    assert TrueMasks({Path("sub/a_mask"): tmp_path / "a"}, None, stems("sub/a")).suffix == "_mask"


def test_a_page_has_the_true_masks_of_its_classes_in_stacks_or_in_files_of_its_own(tmp_path):
    (tmp_path / "folders" / "a").mkdir(parents=True)
    stack = tmp_path / "folders" / "a" / "s.tif"
    tifffile.imwrite(stack, np.zeros((2, 3, 4), np.uint8), photometric="minisblack")
    masks = open_true_masks(tmp_path / "folders", "", stems("s"), ["a", "none"])
    second = ClassMasks((ClassFile(str(stack), 1), ClassFile("")), (0, 1))
    assert masks.find(Path("s"), Path("s_0002"), 1, 2) == second
    touch(tmp_path / "files", "a.png", "s_0002.png")
    joined = open_true_masks(tmp_path / "files", "", stems("a", "s"), ["a"])  # a file is no folder of a class
    assert joined.find(Path("a"), Path("a"), 0, 1) == ClassChannels(str(tmp_path / "files" / "a.png"), (0,))
    page = joined.find(Path("s"), Path("s_0002"), 1, 2)
    assert page == ClassChannels(str(tmp_path / "files" / "s_0002.png"), (0,))


def test_the_volume_of_all_classes_has_a_channel_for_each(tmp_path):
    touch(tmp_path, "v.nii.gz")
    volume = open_true_masks(tmp_path, "", stems("v"), ["a", "b"]).find(Path("v"), Path("v"), 0, 1)
    assert volume == VolumeFile((str(tmp_path / "v.nii.gz"),), layers=ClassLayers((0, 1)))


class Drawn(RenderedMask):
    """A mask that is told from others by being another one."""

    def render(self) -> np.ndarray:
        return np.zeros((3, 4), np.uint8)


class Annotated(list):
    """Records of annotated images."""

    classes = ((1, "cell"),)

    def __init__(self, *names: tuple[str, str]) -> None:
        super().__init__({"name": name, "image": image, "target": Drawn()} for name, image in names)


def test_true_objects_are_found_by_the_names_of_images_and_of_their_folders():
    first = Annotated(
        ("sub/a.png", "/images/sub/x.png"), ("b", "/images/b/picture.png"), ("sub/only.png", "/images/sub/z.png")
    )
    second = Annotated(("other/a.png", "/images/other/y.png"), ("c", "/images/c/picture.png"))
    masks = ObjectTruths([first, second], ("cell",))

    def found(name: str) -> RenderedMask | None:
        path = Path(name)
        mask = masks.find(path, path, 0, 1)
        return mask and mask.source

    assert found("sub/a") is first[0]["target"]
    assert found("other/a") is second[0]["target"]
    assert found("x") is first[0]["target"]  # by the name of the file
    assert found("elsewhere/only") is first[2]["target"]  # or by that of the record, wherever it lies
    assert found("anywhere/y") is second[0]["target"]
    assert found("c/b/picture") is first[1]["target"]  # the folder next to the file comes first
    assert found("deep/a") is None
    assert masks.missing == ["deep/a"]


def test_true_objects_are_those_of_all_splits_also_of_the_one_that_is_tested(tmp_path):
    for split in ("train", "test"):
        touch(tmp_path, f"{split}/{split}.png")
        shape = {"label": "cell", "shape_type": "rectangle", "points": [[0, 0], [2, 2]]}
        content = {"imagePath": f"{split}.png", "imageHeight": 3, "imageWidth": 4, "shapes": [shape]}
        (tmp_path / split / f"{split}.json").write_text(json.dumps(content))
    touch(tmp_path, "test/unlabeled.png")
    masks = open_true_masks(tmp_path, None, stems("train", "test"), (), ("cell",))
    for name in ("train", "test"):
        assert masks.find(Path(name), Path(name), 0, 1) is not None
    assert masks.find(Path("unlabeled"), Path("unlabeled"), 0, 1) is None


def test_true_masks_of_classes_that_overlap_lie_in_a_folder_for_each_or_in_one_file(tmp_path):
    touch(tmp_path, "folders/a/x.png", "folders/b/x.png", "folders/a/sub/y.png", "folders/a/v.nii.gz", "files/x.png")
    folders = tmp_path / "folders"
    masks = open_true_masks(folders, "", stems("x", "sub/y", "v", "z"), ["a", "b"])
    files = (ClassFile(str(folders / "a" / "x.png")), ClassFile(str(folders / "b" / "x.png")))
    assert masks.find(Path("x"), Path("x"), 0, 1) == ClassMasks(files, (0, 1))
    lacking = (ClassFile(str(folders / "a" / "sub" / "y.png")), ClassFile(""))  # nothing is known of the other class
    assert masks.find(Path("sub/y"), Path("sub/y"), 0, 1) == ClassMasks(lacking, (0, 1))
    volume = masks.find(Path("v"), Path("v"), 0, 1)
    assert volume.paths == (str(folders / "a" / "v.nii.gz"),)
    assert volume.layers.unknown == (1,)
    assert masks.find(Path("z"), Path("z"), 0, 1) is None
    assert masks.missing == ["z"]
    stack = np.zeros((2, 3, 4), np.uint8)
    tifffile.imwrite(tmp_path / "files" / "s.tif", stack, photometric="minisblack")
    for classes, expected in (
        (["a", "b"], ClassMasks(tuple(ClassFile(str(tmp_path / "files" / "s.tif"), page) for page in (0, 1)), (0, 1))),
        (["a"], ClassChannels(str(tmp_path / "files" / "s.tif"), (0,))),
    ):
        joined = open_true_masks(tmp_path / "files", "", stems("s", "x", "z"), classes)
        assert joined.find(Path("s"), Path("s"), 0, 1) == expected
        assert expected.name == str(tmp_path / "files" / "s.tif")
    tifffile.imwrite(tmp_path / "files" / "p.tif", stack[:1], photometric="minisblack")
    page = open_true_masks(tmp_path / "files", "", stems("p"), ["a"]).find(Path("p"), Path("p"), 0, 1)
    assert page == ClassChannels(str(tmp_path / "files" / "p.tif"), (0,))
    assert joined.find(Path("x"), Path("x"), 0, 1) == ClassChannels(str(tmp_path / "files" / "x.png"), (0,))
    assert joined.find(Path("z"), Path("z"), 0, 1) is None
    assert joined.missing == ["z"]
    assert joined.find(Path("s"), Path("s_0002"), 1, 2) is None
    assert joined.missing == ["z", "s_0002"]


def test_small_copies_within_a_stack_are_no_true_masks(tmp_path):
    file = tmp_path / "stack.tif"
    with tifffile.TiffWriter(file) as tiff:
        for _ in range(2):
            tiff.write(np.zeros((8, 8), np.uint8), photometric="minisblack")
            tiff.write(np.zeros((2, 2), np.uint8), photometric="minisblack", subfiletype=1)
    masks = TrueMasks({Path("stack"): file}, "", [Path("stack")])
    pages = [masks.find(Path("stack"), Path(f"stack_{number:04}"), number, 2) for number in range(2)]
    assert pages == [(file, 0), (file, 2)]


def test_files_come_in_the_order_of_their_names_whatever_the_disk_says(tmp_path):
    order = np.random.default_rng(0).permutation(40)
    touch(tmp_path, *[f"{number % 3}/{number:02}.png" for number in order])
    files = [file.relative_to(tmp_path).as_posix() for file in files_below(tmp_path) if file.is_file()]
    assert files == sorted(files)
    assert len(files) == 40


@pytest.mark.parametrize(("name", "unknown"), [("a", (1, 2)), ("b", (0, 2)), ("c", (0, 1))])
def test_a_volume_may_have_a_mask_of_any_of_the_classes_alone(tmp_path, name, unknown):
    touch(tmp_path, f"{name}/v.nii.gz", "a/x.nii.gz", "b/x.nii.gz", "c/x.nii.gz")
    masks = open_true_masks(tmp_path, "", [Path("v"), Path("x")], ["a", "b", "c"])
    volume = masks.find(Path("v"), Path("v"), 0, 1)
    assert volume.paths == (str(tmp_path / name / "v.nii.gz"),)
    assert volume.layers.unknown == unknown
    assert len(masks.find(Path("x"), Path("x"), 0, 1).paths) == 3
