"""predict.py --rank: the least sure images of each class in turn, one in four at random.

Modules: inference/ranking.py.
"""

import csv
from dataclasses import replace

import numpy as np
import pytest
from conftest import predict
from PIL import Image
from volumes import write_nifti

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import VolumeFile
from inference.outputs.classes import ClassFormat
from inference.outputs.jobs import ImageJob, VolumeJob
from inference.ranking import RIVAL, Candidate, Ranked, find_candidates, rank
from predict import print_ranking


def test_classes_take_turns_and_one_image_in_four_is_drawn_at_random():
    candidates = [Candidate(f"a{index}", index / 100, "cell") for index in range(20)]
    candidates += [Candidate(f"b{index}", 0.9 + index / 100, "dirt") for index in range(3)]
    order = rank(candidates)
    assert sorted(ranked.candidate.name for ranked in order) == sorted(candidate.name for candidate in candidates)
    assert [ranked.reason for ranked in order[:8]] == [
        "the least sure of cell",
        "the least sure of dirt",
        "the least sure of cell",
        "at random",
        *[f"the least sure of {'dirt' if 'b' in order[index].candidate.name else 'cell'}" for index in (4, 5, 6)],
        "at random",
    ]
    assert (order[0].candidate.name, order[1].candidate.name) == ("a19", "b2")
    chosen = [ranked.candidate.entropy for ranked in order if ranked.reason == "the least sure of cell"]
    assert chosen == sorted(chosen, reverse=True)
    drawn = [ranked.candidate.name for ranked in order if ranked.reason == "at random"]
    assert len(drawn) == 5
    assert [ranked.candidate.name for ranked in rank(candidates[::-1])] == [ranked.candidate.name for ranked in order]
    assert rank([]) == []


def test_equally_unsure_images_come_by_their_names():
    names = ["d", "a", "e", "c", "b"]
    order = rank([Candidate(name, 0.5, "cell") for name in names])
    assert [ranked.candidate.name for ranked in order if ranked.reason != "at random"][:3] == ["a", "b", "c"]
    assert order == rank([Candidate(name, 0.5, "cell") for name in sorted(names)])


def test_an_image_is_of_the_class_that_most_of_its_foreground_has(tmp_path):
    output_format = ClassFormat(ClassMap(("background", "front", "back"), (0, 1, 7), None))
    jobs = []
    for name, values in (("none", [0] * 6), ("front", [0, 0, 0, 1, 1, 7]), ("back", [0, 0, 0, 1, 7, 7])):
        Image.fromarray(np.array([values], np.uint8)).save(tmp_path / f"{name}.png")
        Image.fromarray(np.array([[0, 51, 51, 102, 102, 0]], np.uint8)).save(tmp_path / f"{name}.uncertainty.png")
        jobs.append(ImageJob(image=tmp_path / f"{name}.jpg", size=(1, 6), output=tmp_path / name))
    tall = np.zeros((300, 2), np.uint8)
    tall[0] = 1
    tall[290:] = 7  # below the rows that are read first
    Image.fromarray(tall).save(tmp_path / "tall.png")
    Image.fromarray(np.full((300, 2), 51, np.uint8)).save(tmp_path / "tall.uncertainty.png")
    jobs.append(ImageJob(image=tmp_path / "tall.jpg", size=(300, 2), output=tmp_path / "tall"))
    for name in ("half_done.png", "half_done_too.uncertainty.png"):
        Image.fromarray(tall).save(tmp_path / name)
    for name in ("half_done", "half_done_too"):
        jobs.insert(0, ImageJob(image=tmp_path / f"{name}.jpg", size=(300, 2), output=tmp_path / name))
    candidates = find_candidates(jobs, output_format)
    strata = [(candidate.name, candidate.stratum) for candidate in candidates]
    assert strata == [("none.jpg", "background"), ("front.jpg", "front"), ("back.jpg", "back"), ("tall.jpg", "back")]
    assert [candidate.entropy for candidate in candidates] == pytest.approx([0.2] * 4)


def test_ten_images_are_named_and_all_are_in_the_table(tmp_path, capsys):
    order = [Ranked(Candidate(f"{number}\udce9.png", 0.1234567, "cell"), "at random") for number in range(12)]
    print_ranking(tmp_path, order)
    lines = (tmp_path / "rank.csv").read_text().splitlines()
    assert lines[:2] == ["rank,image,entropy,reason", "1,0\\udce9.png,0.123457,at random"]
    assert len(lines) == 13
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("to annotate next, of 12 in ")
    assert printed[-1] == RIVAL
    assert len(printed) == 12
    assert printed[10].endswith(".png: at random, entropy 0.123")


def test_volumes_are_ranked_by_their_least_sure_slices(tmp_path):
    output_format = ClassFormat(ClassMap(("background", "front", "back"), (0, 1, 7), None))
    jobs = []
    for name, sure_slices in (("a", 5), ("b", 0)):
        mask = np.zeros((4, 6, 8), np.uint8)
        mask[1:3, :, 2:6] = 7
        mask[0, 0, 0] = 1
        levels = np.full(mask.shape, 51, np.uint8)
        levels[:, :, :sure_slices] = 0
        levels[:, :, 7] = 102
        (tmp_path / "out").mkdir(exist_ok=True)
        write_nifti(tmp_path / "out" / f"{name}.nii.gz", mask)
        write_nifti(tmp_path / "out" / f"{name}.uncertainty.nii.gz", levels)
        volume = VolumeFile((str(tmp_path / f"{name}.nii.gz"),))
        output = tmp_path / "out" / name
        jobs.append(VolumeJob(image=tmp_path / f"{name}.nii.gz", size=(8, 6, 4), output=output, volume=volume))
    missing = replace(jobs[0], output=tmp_path / "out" / "c")
    candidates = find_candidates([*jobs, missing], output_format)
    assert [candidate.name for candidate in candidates] == ["a.nii.gz", "b.nii.gz"]
    assert [candidate.stratum for candidate in candidates] == ["back", "back"]
    assert [candidate.entropy for candidate in candidates] == pytest.approx([(0.4 + 0.2 + 0.2) / 3] * 2)


def test_images_are_ranked_by_what_is_written_of_them(model, photos, tmp_path, fails_with):
    result = predict(model, [photos], tmp_path / "out", "--rank")
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "out" / "rank.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert {row["image"] for row in rows} == {
        "a.png",
        "b.jpg",
        "sub/a.png",
        "sub/c.tif",
        "sub/d.npy",
    }
    for row in rows:
        stem = row["image"].rpartition(".")[0]
        levels = np.asarray(Image.open(tmp_path / "out" / f"{stem}.uncertainty.png"))
        assert abs(float(row["entropy"]) - levels.mean() / 255) < 1e-6
    assert RIVAL in result.stdout
    assert f"{rows[0]['image']}: {rows[0]['reason']}, entropy" in result.stdout
    again = predict(model, [photos], tmp_path / "out", "--rank")
    assert again.returncode == 0
    assert "5 of 5 masks are there already" in again.stdout
    with open(tmp_path / "out" / "rank.csv", newline="") as file:
        assert list(csv.DictReader(file)) == rows
    (tmp_path / "out" / "a.uncertainty.png").write_bytes(b"cut off")
    damaged = predict(model, [photos], tmp_path / "out", "--rank")
    assert damaged.returncode == 1
    assert "5 of 5 masks" in damaged.stdout
    assert f"{tmp_path / 'out'}: the images cannot be ranked" in damaged.stderr
    assert "a.uncertainty.png" in damaged.stderr
    refused = predict(model, [photos / "a.png"], tmp_path / "one.png", "--rank")
    fails_with(refused, "--rank orders several images; give a folder as --output", 2)
