"""What predict.py takes: files, folders, globs, and pages of TIFFs.

Modules: inference/inputs.py, inference/network_inputs.py.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.formats import object_format, overlap_format
from support.in_process import run_predict
from support.inputs import find_jobs
from support.launches import predict
from support.prediction import touch

from data_utils.image_io.formats import PageFile, VolumeFile
from inference import Predictor
from inference.inputs import files_of_patterns
from runtime.errors import DataError
from tasks.job import Job


def test_globs_keep_the_folders_that_they_match(model, photos, tmp_path):
    result = predict(model, [f"{photos}/*/*.tif", f"{photos}/a.*"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")) == ["a.png", "sub/c.png"]


def test_outputs_never_lie_among_inputs(model, fails_with, tmp_path):
    """A folder with a.jpg, and an image that is called as the overlay of it would be."""
    (tmp_path / "in").mkdir()
    for name in ("a.jpg", "a.overlay.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / "in" / name)
    two_images = tmp_path / "in"
    fails_with(predict(model, [two_images], two_images), "is a folder of inputs", 1)


@pytest.fixture(scope="module")
def pages(model, tmp_path_factory) -> Path:
    """A folder with in/stack.tif of three pages, their masks in out/, and those of the pages as pictures in one/."""
    folder = tmp_path_factory.mktemp("pages")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 40, 50), dtype=np.uint8)
    (folder / "in").mkdir()
    tifffile.imwrite(folder / "in" / "stack.tif", pixels, photometric="minisblack")
    pictures = [folder / f"{number}.png" for number in range(3)]
    for picture, page in zip(pictures, pixels, strict=True):
        Image.fromarray(page).save(picture)
    assert predict(model, [folder / "in"], folder / "out").returncode == 0
    assert predict(model, pictures, folder / "one").returncode == 0
    return folder


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_page_of_a_tiff_is_predicted_as_an_image(pages, number):
    mask = np.asarray(Image.open(pages / "out" / f"stack_000{number + 1}.png"))
    np.testing.assert_array_equal(mask, np.asarray(Image.open(pages / "one" / f"{number}.png")))


def test_a_page_of_a_tiff_is_predicted_in_python(model, pages):
    indices = Predictor.from_pretrained(model).mask(pages / "in" / "stack.tif", page=2)
    expected = np.asarray(Image.open(pages / "out" / "stack_0003.png"))
    np.testing.assert_array_equal(np.array([10, 200, 255])[indices], expected)


@pytest.fixture(scope="module", params=["in a stack", "in files"])
def truth_of_pages(pages, tmp_path_factory, request) -> Path:
    """The masks of the pages, as the true ones."""
    if request.param == "in files":
        return pages / "out"
    folder = tmp_path_factory.mktemp("truth")
    masks = [np.asarray(Image.open(file)) for file in sorted((pages / "out").glob("*.png"))]
    tifffile.imwrite(folder / "stack.tif", np.stack(masks), photometric="minisblack")
    return folder


def test_pages_of_a_tiff_are_scored_one_by_one(model, pages, truth_of_pages, tmp_path):
    result = predict(model, [pages / "in"], tmp_path, "--truth", truth_of_pages)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "metrics.json").read_text())
    assert report["images"] == 3
    assert report["pixel_accuracy"] == 1


def test_a_header_that_tells_another_size_costs_nobody_a_mask(model, tmp_path):
    """A PNG whose EXIF orientation comes after its pixels."""
    folder = tmp_path / "in"
    folder.mkdir()
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    picture.save(folder / "a.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(folder / "b.png", exif=exif)
    content = (folder / "b.png").read_bytes()
    start = content.index(b"eXIf") - 4
    stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
    end = content.index(b"IEND") - 4
    (folder / "b.png").write_bytes(content[:start] + content[stop:end] + content[start:stop] + content[end:])
    result = predict(model, [folder], tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert Image.open(tmp_path / "out" / "a.png").size == (60, 40)
    assert Image.open(tmp_path / "out" / "b.png").size == (40, 60)


def test_names_of_any_bytes_are_predicted_and_named_in_one_line(tmp_path, model):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (b"a\xff.png", b"b\nc.png"):
        Image.new("RGB", (20, 16)).save(folder / "x.png")
        (folder / "x.png").rename(folder / os.fsdecode(name))
    (folder / os.fsdecode(b"d\n\xfe\x1b[2J.png")).write_bytes(b"no picture")
    result = predict(model, [folder], tmp_path / "out", "--overlay")
    assert "2 of 3 masks" in result.stdout, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "failed:" in line]
    assert r"d\n\udcfe\x1b[2J.png" in line
    assert (tmp_path / "out" / os.fsdecode(b"a\xff.png")).is_file()


def outputs(folder: Path, *patterns: str, channels: int = 1) -> dict[str, tuple[str, ...]]:
    """The outputs of inputs below `folder`, each with the files that are read for it."""
    inputs = [str(folder / pattern) for pattern in patterns]
    jobs = find_jobs(inputs, folder / "out", channels=channels)
    relative = {}
    for job in jobs:
        files = tuple(str(Path(file).relative_to(folder)) for file in job.files)
        relative[str(job.output.relative_to(folder / "out"))] = files
    return relative


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["in"], {"a": "in/a.PNG", "b": "in/b.png", "sub/f": "in/sub/f.nii.gz"}),
        (["in/b.png", "in"], {"b": "in/b.png", "a": "in/a.PNG", "sub/f": "in/sub/f.nii.gz"}),
        (["*/*.png"], {"in/b": "in/b.png"}),
        (["i*"], {"in/a": "in/a.PNG", "in/b": "in/b.png", "in/sub/f": "in/sub/f.nii.gz"}),
    ],
    ids=["folder", "file and folder", "files of a pattern", "folders of a pattern"],
)
def test_a_folder_holds_pictures_and_volumes_but_no_hidden_files(tmp_path, patterns, expected):
    touch(tmp_path, "in/b.png", "in/a.PNG", "in/.c.png", "in/sub/.d/e.png", "in/sub/f.nii.gz")
    (tmp_path / "in" / "notes.txt").write_text("")
    assert outputs(tmp_path, *patterns) == {output: (file,) for output, file in expected.items()}


@pytest.mark.parametrize(
    ("in_sets", "names"),
    [(True, ["one", "two"]), (False, ["one/images/x", "two/images/y"])],
    ids=["objects", "classes"],
)
def test_a_folder_for_each_image_holds_no_inputs_but_images(tmp_path, in_sets, names):
    output_format = object_format("cell") if in_sets else overlap_format("a")
    touch(tmp_path, *(f"in/{name}.png" for name in ("one/images/x", "one/masks/1", "two/images/y", "two/masks/1")))
    jobs = find_jobs([str(tmp_path / "in")], tmp_path / "out", output_format=output_format)
    assert [job.output.relative_to(tmp_path / "out").as_posix() for job in jobs] == names


@pytest.mark.parametrize(
    ("files", "suffix", "inputs"),
    [
        (["d/a.png", "d/a_mask.png", "d/b_mask.png"], None, ["d/a", "d/b_mask"]),
        (["d/a.jpg", "d/a-Label.png", "d/a_1.png"], None, ["d/a", "d/a_1"]),
        (["d/a.png", "d/a_x.png", "d/a_mask.png"], "_x", ["d/a", "d/a_mask"]),
        (["d/images/a.png", "d/Masks/a.png", "masks/b.png"], None, ["d/images/a", "masks/b"]),
        (["imgs/train/a.png", "labels/train/a.png"], None, ["imgs/train/a"]),
        (["imagesTr/a.nii.gz", "labelsTr/a.nii.gz", "imagesTs/b.nii.gz"], None, ["imagesTr/a", "imagesTs/b"]),
    ],
)
def test_masks_beside_their_images_are_no_inputs(tmp_path, capsys, files, suffix, inputs):
    touch(tmp_path, *(f"in/{file}" for file in files))
    found = files_of_patterns([str(tmp_path / "in")], tmp_path / "out", in_sets=False, mask_suffix=suffix)
    assert sorted(file.stem.as_posix() for file in found) == inputs
    left_out = len(files) - len(inputs)
    words = "1 mask that lies beside its image" if left_out == 1 else f"{left_out} masks that lie beside their images"
    assert f"left out {words}, the first is" in capsys.readouterr().out


def test_a_series_in_the_working_directory_has_its_name_in_tables(tmp_path, monkeypatch):
    (tmp_path / "scan").mkdir()
    monkeypatch.chdir(tmp_path / "scan")
    series = VolumeFile(("0.dcm", "1.dcm"), is_series=True)
    job = Job(source=series, size=None, root=tmp_path / "out", stem=Path("a", "b"))
    assert job.relative_name == "a/scan"


def test_inputs_are_named_below_the_folder_that_is_given(tmp_path):
    touch(tmp_path, "in/a.png", "in/sub/a.png", "in/sub/b.nii.gz")
    (tmp_path / "in" / "sub" / "c.png").write_bytes(b"no picture")
    tifffile.imwrite(tmp_path / "in" / "sub" / "d.tif", np.zeros((2, 4, 5), np.uint8), photometric="minisblack")
    jobs = find_jobs([str(tmp_path / "in")], tmp_path / "out")
    pages = ["sub/d_0001.tif", "sub/d_0002.tif"]
    assert [job.relative_name for job in jobs] == ["a.png", "sub/a.png", "sub/b.nii.gz", "sub/c.png", *pages]


BOTH_CHANNELS = ("two/a_0000.nii.gz", "two/a_0001.nii.gz")


@pytest.mark.parametrize("patterns", [["two"], BOTH_CHANNELS[::-1]], ids=["folder", "files in another order"])
def test_channels_of_a_case_are_joined_where_the_model_takes_several(tmp_path, patterns):
    touch(tmp_path, *BOTH_CHANNELS)
    assert outputs(tmp_path, *patterns, channels=2) == {"a": BOTH_CHANNELS}


def test_channels_that_words_name_are_joined_and_masks_of_cases_left_out(tmp_path):
    files = [f"in/B0/B0_{word}.nii.gz" for word in ("flair", "seg", "T1")] + [
        "in/k/ct.nii.gz",
        "in/k/segmentations/liver.nii.gz",
    ]
    touch(tmp_path, *files)
    expected = {"B0": ("in/B0/B0_flair.nii.gz", "in/B0/B0_T1.nii.gz"), "k/ct": ("in/k/ct.nii.gz",)}
    assert outputs(tmp_path, "in", channels=2) == expected


@pytest.mark.parametrize(("pattern", "folder"), [("one", ""), ("o*", "one/")])
def test_channels_of_cases_have_the_name_of_the_case_where_all_are_the_first(tmp_path, pattern, folder):
    touch(tmp_path, "one/a_0000.nii.gz", "one/b_0000.nii.gz")
    expected = {f"{folder}{name}": (f"one/{name}_0000.nii.gz",) for name in "ab"}
    assert outputs(tmp_path, pattern) == expected


@pytest.mark.parametrize("numbers", [(1, 2, 3), (0, 1, 2), (0, 2), (1,)], ids=str)
def test_volumes_whose_numbers_do_not_fit_the_channels_are_inputs_of_their_own(tmp_path, numbers):
    names = ["other", *(f"scan_{number:04}" for number in numbers)]
    touch(tmp_path, *(f"in/{name}.nii.gz" for name in names))
    expected = {name: (f"in/{name}.nii.gz",) for name in names}
    assert outputs(tmp_path, "in", channels=2) == expected


def test_pages_that_are_channels_are_one_input_of_a_model_that_takes_as_many(tmp_path):
    file = tmp_path / "s.tif"
    tifffile.imwrite(file, np.zeros((2, 4, 5), np.uint8), imagej=True, metadata={"axes": "CYX"})
    (job,) = find_jobs([str(file)], tmp_path / "out", channels=2)
    assert job.source == PageFile(str(file), 0, more_channels=(1,))
    assert job.output.name == "s"
    assert len(find_jobs([str(file)], tmp_path / "out", channels=3)) == 2


@pytest.mark.parametrize("name", ["s.tif", "S.TIF"])
def test_a_stack_is_a_volume_where_a_spacing_is_known(name, tmp_path):
    file = tmp_path / name
    tifffile.imwrite(file, np.zeros((3, 4, 5), np.uint8), photometric="minisblack")
    (stack,) = find_jobs([str(file)], tmp_path / "out", dims=3, spacing=(3.0, 1.0, 1.0))
    assert stack.size == (3, 4, 5)
    assert stack.spacing == (3, 1, 1)
    assert stack.output.name == Path(name).stem


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("FOLDER/none*", "no image or volume found"),
        ("FOLDER/none", "is not there"),
        ("/dev/null", "is neither a file nor a folder"),
        ("FOLDER/link.png", "is a link to lost.png, which is not there"),
        ("FOLDER/unread", "no image or volume found; convert HEIC to JPEG or PNG"),
    ],
)
def test_inputs_that_cannot_be_are_a_one_line_error(tmp_path, pattern, line):
    (tmp_path / "unread" / "sub").mkdir(parents=True)
    (tmp_path / "unread" / "sub" / "b.HEIC").write_bytes(b"heic")
    (tmp_path / "link.png").symlink_to("lost.png")
    with pytest.raises(DataError, match=line):
        find_jobs([pattern.replace("FOLDER", str(tmp_path))], tmp_path / "out")


def test_files_that_are_not_read_are_counted_where_others_are(tmp_path, capsys):
    touch(tmp_path, "phone/a.png", "phone/out/predicted.png")
    for name in ("a.txt", "b.HEIC", ".hidden", "out/predict.json"):
        (tmp_path / "phone" / name).write_bytes(b"")
    assert len(find_jobs([f"{tmp_path}/phone"], tmp_path / "phone" / "out")) == 1
    assert "left out 2 files that are not read, the first is b.HEIC; convert HEIC" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ending", "kind"),
    [("jfif", "jpeg"), ("JPE", "jpeg"), ("avif", "avif"), ("dib", "bmp"), ("j2k", "jpeg2000"), ("jpx", "jpeg2000")],
)
def test_pictures_are_predicted_by_every_name_that_their_formats_have(tmp_path, model, ending, kind):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (20, 16), (90, 50, 10)).save(tmp_path / "in" / f"a.{ending}", kind)
    result = run_predict("--model", model, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert Image.open(tmp_path / "out" / "a.png").size == (20, 16)


def test_an_image_of_two_folders_that_are_given_has_an_output_below_each(tmp_path):
    touch(tmp_path, "in/sub/a.png")
    assert outputs(tmp_path, "in", "in/sub") == {"sub/a": ("in/sub/a.png",), "a": ("in/sub/a.png",)}


@pytest.mark.parametrize("output", ["in/x/out", "other/in/x/out", "other/out"])
@pytest.mark.parametrize("pattern", ["in", "in/*", "in/x/*", "in/**/*.png", "other/in"])
def test_masks_of_an_earlier_call_are_no_inputs_by_any_name(tmp_path, pattern, output):
    touch(tmp_path, "in/x/a.png", "in/x/out/b.png", "in/x/out/sub/c.png")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "in").symlink_to(tmp_path / "in")
    (tmp_path / "other" / "out").symlink_to(tmp_path / "in" / "x" / "out")
    jobs = find_jobs([str(tmp_path / pattern)], tmp_path / output)
    assert [job.image.name for job in jobs] == ["a.png"]
