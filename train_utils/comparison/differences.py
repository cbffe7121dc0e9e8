"""How far two recipes are apart, and whether their runs say which one is better.

Runs of the same seed and fold are paired, and their validation images by name: hard images, which are hard for both,
cancel out. docs/comparing-runs.md says how the interval is computed: the corrected resampled t of Nadeau and Bengio,
"Inference for the Generalization Error", Machine Learning 52, 2003, at a level that is divided by the number of all
pairs of recipes (Bonferroni), since the first recipe is chosen for its score. Bouthillier et al., "Accounting for
Variance in Machine Learning Benchmarks", MLSys 2021 (arXiv:2103.03098), measured how often fewer runs mislead.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev

from runtime.console import counted
from train_utils.comparison.recipes import Recipe, RecordedRun
from train_utils.settings.record import CONTENT_ENTRY

LEVEL = 0.95  # of all intervals together
MIN_PAIRS = 3  # fewer pairs of runs have no interval
IMAGE_COUNTS = re.compile(r"(\d+) \+ (\d+) images")  # for training and validation: how `DatasetInfo.fingerprint` begins
REMEDY = "train both with --seed 0, 1 and 2, or with --fold 1/5 to 5/5"

Pair = tuple[RecordedRun, RecordedRun]


def compare_recipes(recipes: Sequence[Recipe]) -> tuple[list[str], list[str]]:
    """A sentence on each finished recipe beside the first of its task, and a line for each that is not comparable."""
    finished = [recipe for recipe in recipes if recipe.is_finished]
    level = 1 - (1 - LEVEL) / max(1, math.comb(len(finished), 2))
    firsts: dict[str, Recipe] = {}
    for recipe in finished:
        firsts.setdefault(recipe.runs[0].task, recipe)
    sentences = []
    lines = []
    if len(firsts) > 1:
        lines.append(f"the runs have other tasks ({', '.join(firsts)}): only those of one task are compared")
    for recipe in finished:
        first = firsts[recipe.runs[0].task]
        if first is recipe:
            continue
        names = f"{first.label} and {recipe.label}"
        sentence = difference(first, recipe, level)
        if first.runs[0].basis != recipe.runs[0].basis:
            lines.append(f"{names} have other classes: their scores cannot be compared")
        elif sentence is None:
            lines.append(f"{names} have no validation image in common: they are not compared")
        else:
            sentences.append(sentence)
            lines += _remarks(first, recipe)
    return sentences, lines


def difference(first: Recipe, second: Recipe, level: float) -> str | None:
    """The score of a recipe minus that of the first, in words, and its meaning; None without a common image.

    Args:
        level: of the interval.
    """
    pairs = _image_differences(_pairs(first, second))
    by_pair = pairs or _image_differences([(first.runs[0], second.runs[0])])
    if not by_pair:
        return None
    by_image: dict[str, list[float]] = defaultdict(list)
    for differences in by_pair:
        for name, value in differences.items():
            by_image[name].append(value)
    over_images = list(map(mean, by_image.values()))
    values = [mean(differences.values()) for differences in by_pair]
    value = mean(values)
    deviation = stdev(over_images) if len(over_images) > 1 else 0.0
    better = sum(difference > 0 for difference in over_images)
    worse = sum(difference < 0 for difference in over_images)
    summary = (
        f"{second.label} - {first.label}: {first.runs[0].compared_by} {value:+.4f} on average over"
        f" {counted(len(over_images), 'image')} (standard deviation over images {deviation:.4f};"
        f" {second.label} is better on {better:,}, worse on {worse:,})"
    )
    ratio = _overlap(first.runs, by_pair)
    if ratio is None or len(pairs) < MIN_PAIRS:
        runs = counted(len(pairs), "common seed or fold", "common seeds or folds")
        return f"{summary}. With {runs} this does not say which recipe is better: {REMEDY}."
    low, high = t_interval(values, ratio, level)
    over = f"Over {len(pairs)} seeds or folds, {LEVEL:.0%} interval {low:+.4f} to {high:+.4f}"
    if low <= 0 <= high:
        return f"{summary}. {over}: it holds 0, so the runs do not say which recipe is better."
    return f"{summary}. {over}: {(second if value > 0 else first).label} is better on these data."


def t_interval(values: Sequence[float], ratio: float, level: float) -> tuple[float, float]:
    """The interval of the mean of `values` at `level`; the corrected resampled t adds `ratio` to 1/n."""
    from scipy.stats import t  # takes a second

    count = len(values)
    center = mean(values)
    half = float(t.ppf((1 + level) / 2, count - 1)) * stdev(values) * math.sqrt(1 / count + ratio)
    return center - half, center + half


def _pairs(first: Recipe, second: Recipe) -> list[Pair]:
    """A run of each recipe for each seed and fold that both have."""
    runs = {run.replicate: run for run in reversed(first.runs)}
    others = {run.replicate: run for run in reversed(second.runs)}
    return [(run, others[replicate]) for replicate, run in runs.items() if replicate in others]


def _image_differences(pairs: Iterable[Pair]) -> list[dict[str, float]]:
    """Of each pair that has images in common, the second score minus the first of each of them."""
    differences = []
    for first, second in pairs:
        common = {}
        for name, score in first.image_scores.items():
            if name in second.image_scores:
                common[name] = second.image_scores[name] - score
        if common:
            differences.append(common)
    return differences


def _overlap(runs: Sequence[RecordedRun], differences: Sequence[Mapping[str, float]]) -> float | None:
    """The ratio of validation images to training images if pairs of runs differ in validation images, else 0.

    Returns None if the record of a run does not have the numbers of its images.
    """
    if all(by_image.keys() == differences[0].keys() for by_image in differences):
        return 0.0
    ratios = []
    for run in runs:
        counts = IMAGE_COUNTS.match(str(run.settings.identity.get("data set")))
        if counts is None or int(counts[1]) == 0:
            return None
        ratios.append(int(counts[2]) / int(counts[1]))
    return max(ratios)


def _remarks(first: Recipe, second: Recipe) -> list[str]:
    """A line if two recipes do not have the same images."""
    for other, run in _pairs(first, second):
        if not (run.image_scores and other.image_scores):
            continue
        names = f"{other.folder} and {run.folder}"
        common = len(run.image_scores.keys() & other.image_scores.keys())
        if common < max(len(run.image_scores), len(other.image_scores)):
            counts = f"{len(other.image_scores):,} and {len(run.image_scores):,}"
            return [f"{names} have {counts} validation images: the {common:,} of the same name are compared"]
        if run.settings.identity.get(CONTENT_ENTRY) != other.settings.identity.get(CONTENT_ENTRY):
            return [f"{names} were made with other files: their validation images are paired by name"]
    return []
