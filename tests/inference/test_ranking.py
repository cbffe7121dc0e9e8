"""predict.py --rank: the least sure images of each class in turn, one in four at random.

Modules: inference/ranking.py.
"""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.launches import predict
from support.volumes import write_nifti
from support.written_files import PLACE

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import VolumeFile
from inference.outputs.classes import ClassFormat
from inference.outputs.jobs import ImageJob, RasterJob, VolumeJob
from inference.ranking import RIVAL, Candidate, Ranked, find_candidates, rank
from predict import print_ranking

CANDIDATES = [
    *(Candidate(f"a{index}", index / 100, "cell") for index in range(20)),
    *(Candidate(f"b{index}", 0.9 + index / 100, "dirt") for index in range(3)),
]


def names_of(order: list[Ranked]) -> list[str]:
    return [ranked.candidate.name for ranked in order]


def test_all_images_are_ranked():
    assert sorted(names_of(rank(CANDIDATES))) == sorted(candidate.name for candidate in CANDIDATES)
    assert rank([]) == []


def test_classes_take_turns_from_the_least_sure_image_on():
    order = rank(CANDIDATES)
    assert [ranked.reason for ranked in order[:3]] == [
        "the least sure of cell",
        "the least sure of dirt",
        "the least sure of cell",
    ]
    assert names_of(order[:2]) == ["a19", "b2"]
    chosen = [ranked.candidate.entropy for ranked in order if ranked.reason == "the least sure of cell"]
    assert chosen == sorted(chosen, reverse=True)


def test_the_reason_of_an_image_is_its_class_or_chance():
    reasons = {"a": {"the least sure of cell", "at random"}, "b": {"the least sure of dirt", "at random"}}
    assert all(ranked.reason in reasons[ranked.candidate.name[0]] for ranked in rank(CANDIDATES))


def test_one_image_in_four_is_drawn_at_random():
    order = rank(CANDIDATES)
    drawn = [number for number, ranked in enumerate(order) if ranked.reason == "at random"]
    assert drawn == [3, 7, 11, 15, 19]


@pytest.mark.parametrize("names", ["abcdefgh", "hgfedcba"])
def test_an_image_is_drawn_by_its_name_among_those_that_are_left(names):
    unsure = [Candidate(name, 0.9, "cell") for name in "xyz"]
    order = rank([*unsure, *(Candidate(name, index / 10, "cell") for index, name in enumerate(names))])
    assert names_of(order)[:4] == ["x", "y", "z", "g"]


def test_the_order_does_not_depend_on_that_of_the_images():
    assert names_of(rank(CANDIDATES[::-1])) == names_of(rank(CANDIDATES))


def test_equally_unsure_images_come_by_their_names():
    names = ["d", "a", "e", "c", "b"]
    order = rank([Candidate(name, 0.5, "cell") for name in names])
    assert [ranked.candidate.name for ranked in order if ranked.reason != "at random"][:3] == ["a", "b", "c"]
    assert order == rank([Candidate(name, 0.5, "cell") for name in sorted(names)])


CLASS_FORMAT = ClassFormat(ClassMap(("background", "front", "back"), (0, 1, 7), None))


def write_uncertain(folder: Path, name: str, mask: list | np.ndarray, levels: list | np.ndarray) -> ImageJob:
    """An image whose mask and uncertainty are written."""
    mask = np.array(mask, np.uint8)
    Image.fromarray(mask).save(folder / f"{name}.png")
    Image.fromarray(np.array(levels, np.uint8)).save(folder / f"{name}.uncertainty.png")
    return ImageJob(image=folder / f"{name}.jpg", size=mask.shape, output=folder / name)


@pytest.mark.parametrize(
    ("values", "stratum"),
    [
        ([0] * 6, "background"),
        ([0, 0, 0, 1, 1, 7], "front"),
        ([0, 0, 0, 1, 7, 7], "back"),
        ([0, 0, 1, 1, 7, 7], "front"),
    ],
    ids=["none", "front", "back", "both"],
)
def test_an_image_is_of_the_class_that_most_of_its_foreground_has(tmp_path, values, stratum):
    job = write_uncertain(tmp_path, "a", [values], [[0, 51, 51, 102, 102, 0]])
    (candidate,) = find_candidates([job], CLASS_FORMAT)
    assert candidate.name == "a.jpg"
    assert candidate.stratum == stratum
    assert candidate.entropy == pytest.approx(0.2)


@pytest.mark.parametrize("joined", [(), ((255, 2),)], ids=["of no class", "of a class in other masks"])
def test_a_raster_is_of_the_class_that_most_of_its_pixels_with_data_have(tmp_path, joined):
    mask = np.array([[0, 1, 1, 7, 255, 255, 255]], np.uint8)  # 255 where there is no data
    for name in ("a.tif", "a.uncertainty.tif"):
        tifffile.imwrite(tmp_path / name, mask, photometric="minisblack")
    job = RasterJob(image=tmp_path / "in.tif", size=mask.shape, output=tmp_path / "a", place=PLACE)
    (candidate,) = find_candidates([job], ClassFormat(replace(CLASS_FORMAT.class_map, joined=joined)))
    assert candidate.stratum == "front"


def test_an_image_is_of_the_class_of_all_its_rows(tmp_path):
    tall = np.zeros((300, 2), np.uint8)
    tall[0] = 1
    tall[290:] = 7  # below the rows that are read first
    (candidate,) = find_candidates([write_uncertain(tmp_path, "tall", tall, np.full((300, 2), 51))], CLASS_FORMAT)
    assert candidate.stratum == "back"
    assert candidate.entropy == pytest.approx(0.2)


@pytest.mark.parametrize("missing", ["a.png", "a.uncertainty.png"])
def test_images_without_mask_or_uncertainty_are_not_ranked(tmp_path, missing):
    jobs = [write_uncertain(tmp_path, name, [[0, 1]], [[0, 51]]) for name in ("a", "b")]
    (tmp_path / missing).unlink()
    assert [candidate.name for candidate in find_candidates(jobs, CLASS_FORMAT)] == ["b.jpg"]


TWELVE = [Ranked(Candidate(f"{number}\udce9.png", 0.1234567, "cell"), "at random") for number in range(12)]


def test_classes_take_turns_whatever_is_drawn_at_random():
    order = rank([Candidate(f"{name}{index}", index / 100, name) for name in "abc" for index in range(20)])
    turns = [ranked.candidate.stratum for ranked in order[:24] if ranked.reason != "at random"]
    assert turns == [*"abc"] * 6


def test_all_images_are_in_the_table(tmp_path):
    print_ranking(tmp_path, TWELVE)
    lines = (tmp_path / "rank.csv").read_bytes().split(b"\n")
    assert lines[:2] == [b"rank,image,entropy,reason", b"1,0\\udce9.png,0.123457,at random"]
    assert len(lines) == 14  # nothing stands behind the last end of a line


def test_ten_images_are_named_to_annotate_next(tmp_path, capsys):
    print_ranking(tmp_path, TWELVE)
    first, *names, last = capsys.readouterr().out.splitlines()
    assert first.startswith("to annotate next, of 12 in ")
    assert len(names) == 10
    assert names[9].endswith(".png: at random, entropy 0.123")
    assert last == RIVAL


@pytest.mark.parametrize("sure_slices", [5, 0])
def test_volumes_are_ranked_by_their_least_sure_slices(tmp_path, sure_slices):
    mask = np.zeros((4, 6, 8), np.uint8)
    mask[1:3, :, 2:6] = 7
    mask[0, 0, 0] = 1
    levels = np.full(mask.shape, 51, np.uint8)
    levels[:, :, :sure_slices] = 0
    levels[:, :, 7] = 102
    (tmp_path / "out").mkdir()
    write_nifti(tmp_path / "out" / "a.nii.gz", mask)
    write_nifti(tmp_path / "out" / "a.uncertainty.nii.gz", levels)
    file = tmp_path / "a.nii.gz"
    job = VolumeJob(image=file, size=(8, 6, 4), output=tmp_path / "out" / "a", volume=VolumeFile((str(file),)))
    missing = replace(job, output=tmp_path / "out" / "c")
    (candidate,) = find_candidates([job, missing], CLASS_FORMAT)
    assert candidate.name == "a.nii.gz"
    assert candidate.stratum == "back"
    assert candidate.entropy == pytest.approx((0.4 + 0.2 + 0.2) / 3)


def test_volumes_of_two_slices_are_ranked_by_both(tmp_path):
    write_nifti(tmp_path / "a.nii.gz", np.zeros((4, 6, 2), np.uint8))
    write_nifti(tmp_path / "a.uncertainty.nii.gz", np.full((4, 6, 2), [51, 102], np.uint8))
    file = tmp_path / "in.nii.gz"
    job = VolumeJob(image=file, size=(2, 6, 4), output=tmp_path / "a", volume=VolumeFile((str(file),)))
    (candidate,) = find_candidates([job], CLASS_FORMAT)
    assert candidate.entropy == pytest.approx(0.3)


@pytest.fixture(scope="module")
def ranked_output(model, photos, tmp_path_factory) -> tuple[Path, str]:
    """The outputs of a call that ranks, and what it printed."""
    output = tmp_path_factory.mktemp("ranked")
    result = predict(model, [photos], output, "--rank")
    assert result.returncode == 0, result.stderr
    return output, result.stdout


def read_ranking(output: Path) -> list[dict[str, str]]:
    """The rows of the table."""
    with open(output / "rank.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_images_are_ranked_by_what_is_written_of_them(ranked_output):
    output, _ = ranked_output
    rows = read_ranking(output)
    assert sorted(row["image"] for row in rows) == ["a.png", "b.jpg", "sub/a.png", "sub/c.tif", "sub/d.npy"]
    for row in rows:
        stem = row["image"].rpartition(".")[0]
        levels = np.asarray(Image.open(output / f"{stem}.uncertainty.png"))
        assert abs(float(row["entropy"]) - levels.mean() / 255) < 1e-6


def test_a_call_that_ranks_names_the_first_image_with_its_reason(ranked_output):
    output, printed = ranked_output
    first = read_ranking(output)[0]
    assert f"{first['image']}: {first['reason']}, entropy" in printed
    assert RIVAL in printed


def test_images_that_are_there_are_ranked_as_before(model, photos, ranked_output):
    output, _ = ranked_output
    rows = read_ranking(output)
    again = predict(model, [photos], output, "--rank")
    assert again.returncode == 0
    assert "5 of 5 masks are there already" in again.stdout
    assert read_ranking(output) == rows


def test_images_are_not_ranked_where_an_uncertainty_is_damaged(model, photos, ranked_output, tmp_path):
    output = shutil.copytree(ranked_output[0], tmp_path / "out")
    (output / "a.uncertainty.png").write_bytes(b"cut off")
    damaged = predict(model, [photos], output, "--rank")
    assert damaged.returncode == 1
    assert "5 of 5 masks" in damaged.stdout
    assert f"{output}: the images cannot be ranked" in damaged.stderr
    assert "a.uncertainty.png" in damaged.stderr


def test_an_only_image_is_not_ranked(model, photos, tmp_path, fails_with):
    refused = predict(model, [photos / "a.png"], tmp_path / "one.png", "--rank")
    fails_with(refused, "--rank orders several images; give a folder as --output", 2)
