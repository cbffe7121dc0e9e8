"""What predict.py takes: files, folders, globs, pages of TIFFs, and how they are shared out.

Modules: inference/inputs.py, inference/readers.py.
"""

import json
import os
from pathlib import Path

import numpy as np
import tifffile
import torch
from conftest import predict
from PIL import Image

from data_utils.loading.batch_sampler import images_per_batch, pixels_per_batch
from inference import Predictor
from inference.batches import batches_of, share_of
from inference.inputs import find_jobs
from inference.outputs.jobs import ImageJob


def test_globs_keep_the_folders_that_they_match(model, photos, tmp_path):
    result = predict(model, [f"{photos}/*/*.tif", f"{photos}/a.*"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")) == ["a.png", "sub/c.png"]


def test_outputs_never_take_the_place_of_inputs_or_of_each_other(model, photos, tmp_path, fails_with):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.jpg", "a.overlay.png"):
        Image.new("RGB", (8, 8)).save(folder / name)
    fails_with(predict(model, [folder], tmp_path / "out", "--overlay"), "would both write", 1)
    fails_with(predict(model, [folder / "a.overlay.png"], folder), "is an input, not to be overwritten", 1)
    legend = tmp_path / "legend.png"
    Image.new("RGB", (8, 8)).save(legend)
    fails_with(predict(model, [legend], tmp_path / "out", "--overlay"), "the legend of the overlays; rename it", 1)
    assert predict(model, [legend], tmp_path / "out").returncode == 0
    fails_with(predict(model, [folder], folder), "is a folder of inputs", 1)
    for _ in range(2):  # the second time does not take the masks for images
        assert "2 of 2 masks" in predict(model, [folder], folder / "masks").stdout
    for pattern in ("*", "**/*.*g"):
        jobs = find_jobs([f"{folder}/{pattern}"], folder / "masks", [".png"])
        assert {job.image.name for job in jobs} == {"a.jpg", "a.overlay.png"}


def test_pages_of_a_tiff_are_predicted_and_scored_one_by_one(model, tmp_path):
    pages = np.random.default_rng(0).integers(0, 256, (3, 40, 50), dtype=np.uint8)
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in" / "stack.tif", pages, photometric="minisblack")
    for number, page in enumerate(pages):
        Image.fromarray(page).save(tmp_path / f"{number}.png")
    assert predict(model, [tmp_path / "in"], tmp_path / "out").returncode == 0
    assert predict(model, [tmp_path / f"{number}.png" for number in range(3)], tmp_path / "one").returncode == 0
    masks = [np.asarray(Image.open(tmp_path / "out" / f"stack_000{number + 1}.png")) for number in range(3)]
    of_third = Predictor.from_pretrained(model).mask(tmp_path / "in" / "stack.tif", page=2)
    np.testing.assert_array_equal(np.array([10, 200, 255])[of_third], masks[2])
    for number, mask in enumerate(masks):
        np.testing.assert_array_equal(mask, np.asarray(Image.open(tmp_path / "one" / f"{number}.png")))
    (tmp_path / "truth").mkdir()
    tifffile.imwrite(tmp_path / "truth" / "stack.tif", np.stack(masks), photometric="minisblack")
    for truth in (tmp_path / "truth", tmp_path / "out"):
        result = predict(model, [tmp_path / "in"], tmp_path / "scored", "--truth", truth)
        assert result.returncode == 0, result.stderr
        report = json.loads((tmp_path / "scored" / "metrics.json").read_text())
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


def test_work_is_shared_by_pixels():
    sizes = [(2000, 2000), *[(100, 100)] * 8, (300, 200), (1500, 1500), (1200, 1300)]
    jobs = [
        ImageJob(image=Path(f"{number}.png"), size=size, output=Path(str(number))) for number, size in enumerate(sizes)
    ]
    pixels = pixels_per_batch(torch.device("cpu"))
    batches = batches_of(jobs, lambda size: (size, images_per_batch(pixels, size)))
    assert max(map(len, batches)) == 8
    shares = [share_of(batches, process, 2) for process in range(2)]
    assert sorted((job for share in shares for batch in share for job in batch), key=jobs.index) == jobs
    pixels = [sum(job.pixels for batch in share for job in batch) for share in shares]
    assert max(pixels) / min(pixels) < 1.1


def test_a_hostile_file_among_three_good_ones_costs_no_mask(tmp_path, model):
    (tmp_path / "in").mkdir()
    for name in "abc":
        Image.new("RGB", (20, 16), (90, 50, 10)).save(tmp_path / "in" / f"{name}.png")
    for number, content in enumerate(
        (b"", b"II*\0\x08\0\0\0" + b"\xff" * 400, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\0" * 99)
    ):
        (tmp_path / "in" / "hostile.tif").write_bytes(content)
        result = predict(model, [tmp_path / "in"], tmp_path / f"out{number}")
        assert result.returncode == 1 and "3 of 4 masks" in result.stdout, result.stderr
        assert sorted(path.name for path in (tmp_path / f"out{number}").glob("*.png")) == ["a.png", "b.png", "c.png"]
        assert "Traceback" not in result.stderr and "hostile.tif" in result.stderr


def test_names_of_any_bytes_are_predicted_and_named_in_one_line(tmp_path, model):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (b"a\xff.png", b"b\nc.png"):
        Image.new("RGB", (20, 16)).save(folder / "x.png")
        (folder / "x.png").rename(folder / os.fsdecode(name))
    (folder / os.fsdecode(b"d\n\xfe\x1b[2J.png")).write_bytes(b"no picture")
    result = predict(model, [folder], tmp_path / "out", "--overlay")
    assert "2 of 3 masks" in result.stdout and "Traceback" not in result.stderr, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "failed:" in line]
    assert r"d\n\udcfe\x1b[2J.png" in line
    assert (tmp_path / "out" / os.fsdecode(b"a\xff.png")).is_file()
