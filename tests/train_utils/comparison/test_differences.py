"""Differences of recipes: which images are paired, which interval holds the mean, and in which words it is told.

Module: train_utils/comparison/differences.py.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit
from support.comparisons import HARD, recipes_of, write_run, write_seeds

from train_utils.comparison.differences import compare_recipes


def differences_of(folders: list[Path]) -> tuple[list[str], list[str]]:
    """A sentence on each difference of the recipes of runs, and a line for each that cannot be compared."""
    return compare_recipes(recipes_of(folders))


def test_runs_of_one_recipe_have_no_difference(tmp_path):
    assert differences_of(write_seeds(tmp_path, "a", [0.0, 0.1, 0.2])) == ([], [])


@pytest.mark.parametrize(("seed", "common"), [(0, "1 common seed or fold"), (1, "0 common seeds or folds")])
def test_one_seed_each_does_not_say_which_recipe_is_better(tmp_path, seed, common):
    low = write_run(tmp_path / "a", [0.1, 0.2, 0.3, 0.4])
    high = write_run(tmp_path / "b", [0.3, 0.3, 0.4, 0.4], seed=seed, epochs=9)
    (sentence,), lines = differences_of([low, high])
    assert lines == []
    deviation = np.std([-0.2, -0.1, -0.1, 0], ddof=1)
    assert sentence.startswith("B - A: mean IoU -0.1000 on average over 4 images (standard deviation over images")
    assert f"{deviation:.4f}; B is better on 0, worse on 3). With {common} this does not say which" in sentence
    assert "--seed 0, 1 and 2" in sentence


GAINS = [0.0, 0.05, 0.02]
HIGHER_GAINS = [0.05, 0.101, 0.072]


def interval_of(sentence: str) -> list[float]:
    """The ends of the interval in a sentence."""
    return [float(number) for number in re.search(r"interval (\S+) to ([^:]+):", sentence).groups()]


def test_three_seeds_that_agree_show_a_difference(tmp_path):
    runs = write_seeds(tmp_path, "a", GAINS) + write_seeds(tmp_path, "b", HIGHER_GAINS, epochs=9)
    (sentence,), _ = differences_of(runs)
    gains = np.array([0.05, 0.051, 0.052])  # of what the images have in common nothing is left
    half = stdtrit(2, 0.975) * gains.std(ddof=1) / np.sqrt(3)
    assert interval_of(sentence) == pytest.approx([-gains.mean() - half, -gains.mean() + half], abs=5.1e-5)
    assert "Over 3 seeds or folds, 95% interval -0.0535 to -0.0485: A is better on these data." in sentence


def test_seeds_that_disagree_show_no_difference(tmp_path):
    one = write_seeds(tmp_path, "a", [0.0, 0.0, 0.0])
    other = write_seeds(tmp_path, "b", [0.1, -0.05, 0.02], epochs=9)
    (sentence,), _ = differences_of(one + other)
    assert "it holds 0" in sentence


def test_folds_have_a_longer_interval_since_they_share_training_images(tmp_path):
    runs = []
    for number, count in enumerate((40, 20, 30), 1):
        for name, gain, epochs, images in (("a", 0.0, 3, 80), ("b", 0.01 * number, 9, count)):
            identity = {"data set": f"{images} + 10 images (abc)"}
            scores = {f"{number}-{index}": score + gain for index, score in enumerate(HARD)}
            folder = tmp_path / f"{name}-{number}"
            runs.append(write_run(folder, scores, fold=f"{number}/5", epochs=epochs, identity=identity))
    (sentence,), _ = differences_of(runs)
    values = np.array([0.01, 0.02, 0.03])
    half = stdtrit(2, 0.975) * values.std(ddof=1) * np.sqrt(1 / 3 + 10 / 20)
    assert interval_of(sentence) == pytest.approx([-0.02 - half, -0.02 + half], abs=5.1e-5)
    assert "on average over 12 images" in sentence


def test_the_level_is_divided_by_the_pairs_of_recipes(tmp_path):
    runs = []
    for number, epochs in enumerate((3, 4, 5)):
        runs += write_seeds(tmp_path, f"r{number}", [0.01 * number, 0.02 * number, 0.03 * number], epochs=epochs)
    runs.append(write_run(tmp_path / "stopped", epochs=6, finished=False))  # it is compared with none
    sentences, _ = differences_of(runs)
    assert [sentence[:5] for sentence in sentences] == ["B - A", "C - A"]
    low, high = interval_of(sentences[0])
    assert high - low == pytest.approx(2 * stdtrit(2, 1 - 0.05 / 6) * 0.01 / np.sqrt(3), abs=1.1e-4)


def test_runs_on_other_files_are_reported(tmp_path):
    """A run of classes on four images."""
    run = write_run(tmp_path / "a")
    files = write_run(tmp_path / "files", dataset="other", identity={"content of the data set": "y"})
    _, lines = differences_of([run, files])
    assert len(lines) == 1
    assert "were made with other files: their validation images are paired by name" in lines[0]


def test_each_recipe_is_compared_with_the_first_of_its_task(tmp_path):
    first = write_run(tmp_path / "a", [0.9] * 4)
    runs = [first, write_run(tmp_path / "b", [0.8] * 4, identity={"classes": ["c"]})]
    runs.append(write_run(tmp_path / "c", {"x": 0.7}, epochs=5))
    runs.append(write_run(tmp_path / "d7", [0.6] * 4, seed=7, epochs=6))  # without another run of this seed
    runs += [write_run(tmp_path / "d0", {"i0": 0.6}, epochs=6), write_run(tmp_path / "e", [0.5] * 3, epochs=7)]
    runs.append(write_run(tmp_path / "points", task="landmarks"))
    sentences, lines = differences_of(runs)
    assert [sentence[:5] for sentence in sentences] == ["D - A", "E - A"]
    assert lines == [
        "the runs have other tasks (classes, landmarks): only those of one task are compared",
        "A and B have other classes: their scores cannot be compared",
        "A and C have no validation image in common: they are not compared",
        f"{first} and {runs[4]} have 4 and 1 validation images: the 1 of the same name are compared",
        f"{first} and {runs[5]} have 4 and 3 validation images: the 3 of the same name are compared",
    ]
