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
from collections.abc import Sequence
from statistics import mean, stdev

from runtime.console import counted
from train_utils.comparison.recipes import Recipes, RecordedRun
from train_utils.settings.record import CONTENT_ENTRY

LEVEL = 0.95  # of all intervals together
MIN_PAIRS = 3  # fewer pairs of runs have no interval
IMAGE_COUNTS = re.compile(r"(\d+) \+ (\d+) images")  # for training and validation: how `DatasetInfo.fingerprint` begins
REMEDY = "train both with --seed 0, 1 and 2, or with --fold 1/5 to 5/5"


Pair = tuple[RecordedRun, RecordedRun]  # a run of each of two recipes


def compare_recipes(recipes: Recipes) -> tuple[list[str], list[str]]:
    """A sentence on each finished recipe beside the first of its task, and a line for each that is not comparable."""
    finished = {label: runs for label, runs in recipes.items() if runs[0].is_finished}
    level = 1 - (1 - LEVEL) / max(1, math.comb(len(finished), 2))
    firsts: dict[str, str] = {}
    sentences = []
    lines = []
    for label, runs in finished.items():
        first = firsts.setdefault(runs[0].task, label)
        if first == label:
            continue
        alike = alike_runs(finished[first], runs)
        pairs = [pair for pair in alike if image_differences(pair)]
        if not pairs and image_differences((finished[first][0], runs[0])):
            pairs.append((finished[first][0], runs[0]))
        if finished[first][0].classes != runs[0].classes:
            lines.append(f"{first} and {label} have other classes: their scores cannot be compared")
        elif not pairs:
            lines.append(f"{first} and {label} have no validation image in common: they are not compared")
        else:
            sentences.append(difference(first, label, pairs, level))
            lines += _remarks(alike)
    if len(firsts) > 1:
        lines.insert(0, f"the runs have other tasks ({', '.join(firsts)}): only those of one task are compared")
    return sentences, lines


def alike_runs(first: Sequence[RecordedRun], second: Sequence[RecordedRun]) -> list[Pair]:
    """A run of each recipe for each seed and fold that both have."""
    by_replicate = {run.replicate: run for run in reversed(first)}
    others = {run.replicate: run for run in reversed(second)}
    return [(run, others[replicate]) for replicate, run in by_replicate.items() if replicate in others]


def image_differences(pair: Pair) -> dict[str, float]:
    """The score of the second run minus that of the first, of each image that both have scored."""
    first, second = pair
    differences = {}
    for name, score in first.image_scores.items():
        if name in second.image_scores:
            differences[name] = second.image_scores[name] - score
    return differences


def difference(first: str, second: str, pairs: Sequence[Pair], level: float) -> str:
    """The score of a recipe minus that of the first, in words, and its meaning.

    Args:
        first, second: the labels of the recipes.
        level: of the interval.
    """
    by_pair = list(map(image_differences, pairs))
    by_image: dict[str, list[float]] = defaultdict(list)
    for differences in by_pair:
        for name, value in differences.items():
            by_image[name].append(value)
    over_images = list(map(mean, by_image.values()))
    over_runs = [mean(differences.values()) for differences in by_pair]
    center = mean(over_runs)
    deviation = stdev(over_images) if len(over_images) > 1 else 0.0
    better = sum(value > 0 for value in over_images)
    worse = sum(value < 0 for value in over_images)
    summary = (
        f"{second} - {first}: {pairs[0][0].compared_by} {center:+.4f} on average over"
        f" {counted(len(over_images), 'image')} (standard deviation over images {deviation:.4f};"
        f" {second} is better on {better:,}, worse on {worse:,})"
    )
    common = sum(run.replicate == other.replicate for run, other in pairs)
    ratio = 0.0
    if any(differences.keys() != by_pair[0].keys() for differences in by_pair):
        ratio = max(image_ratio(run) for run, _ in pairs)
    if common < MIN_PAIRS or math.isinf(ratio):
        runs = counted(common, "common seed or fold", "common seeds or folds")
        return f"{summary}. With {runs} this does not say which recipe is better: {REMEDY}."
    half = half_interval(over_runs, ratio, level)
    low, high = center - half, center + half
    over = f"Over {common} seeds or folds, {LEVEL:.0%} interval {low:+.4f} to {high:+.4f}"
    if low <= 0 <= high:
        return f"{summary}. {over}: it holds 0, so the runs do not say which recipe is better."
    return f"{summary}. {over}: {second if center > 0 else first} is better on these data."


def half_interval(values: Sequence[float], ratio: float, level: float) -> float:
    """Half of the interval of the mean of `values` at `level`; the corrected resampled t adds `ratio` to 1/n."""
    from scipy.stats import t  # takes a second

    return float(t.ppf((1 + level) / 2, len(values) - 1)) * stdev(values) * math.sqrt(1 / len(values) + ratio)


def image_ratio(run: RecordedRun) -> float:
    """The ratio of validation to training images of a run; infinite if its record does not have their numbers."""
    counts = IMAGE_COUNTS.match(str(run.settings.identity.get("data set")))
    if counts is None or int(counts[1]) == 0:
        return math.inf
    return int(counts[2]) / int(counts[1])


def _remarks(pairs: Sequence[Pair]) -> list[str]:
    """A line if two recipes do not have the same images."""
    for first, second in pairs:
        if not (first.image_scores and second.image_scores):
            continue
        names = f"{first.folder} and {second.folder}"
        common = len(image_differences((first, second)))
        if common < max(len(first.image_scores), len(second.image_scores)):
            counts = f"{len(first.image_scores):,} and {len(second.image_scores):,}"
            return [f"{names} have {counts} validation images: the {common:,} of the same name are compared"]
        if first.settings.identity.get(CONTENT_ENTRY) != second.settings.identity.get(CONTENT_ENTRY):
            return [f"{names} were made with other files: their validation images are paired by name"]
    return []
