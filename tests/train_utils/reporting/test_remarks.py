"""The remarks at the end of a run say what stands out, with the flag that mends it.

Module: train_utils/reporting/report.py.
"""

from typing import Any

import pytest

from train_utils.reporting.report import remarks_on

SOUND = {
    "score": "eval/mean_iou",
    "steps": "2,000 steps",
    "is_short": False,
    "longer": "give more --max-steps",
    "images": 40,
    "image_kind": "image",
    "is_fold": False,
    "unfound": [],
    "weights_classes": False,
    "is_generated": False,
    "is_cached": False,
}


def remarks(records: list[dict], **changes: Any) -> list[str]:
    """The remarks on a run that is sound but for some changes."""
    return remarks_on(records, **SOUND | changes)


def log(train: list[float], val: list[float], scores: list[float]) -> list[dict]:
    """A record of training and one of an evaluation after every 100 steps."""
    records: list[dict] = []
    for number, (loss, val_loss, score) in enumerate(zip(train, val, scores, strict=True), 1):
        records.append({"step": 100 * number, "train/loss": loss})
        records.append({"step": 100 * number, "eval/loss": val_loss, "eval/mean_iou": score})
    return records


FLAT = log([1.0, 0.6, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4], [0.9, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5], [0.4] * 8)
OVER = log([1.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1], [0.9, 0.7, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], [0.4] * 8)
RISING = log([1.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1], [0.9] * 8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
OVER_AND_RISING = log(
    [1.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1], [0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], [0.1] * 7 + [0.2]
)
CLOSER = [{"step": 100 * number, "eval/closeness": 0.1 * number} for number in range(1, 9)]
WAITING = [{"step": 10 * number, "perf/data_wait_percent": 30.0} for number in range(1, 3)]


SHORT = {"steps": "94 of 1,200 steps", "is_short": True}


@pytest.mark.parametrize(
    ("changes", "records", "parts"),
    [
        (SHORT, FLAT, ["Only 94 of 1,200 steps were made", "below 500", "--max-steps"]),
        ({"unfound": ["cat", "dog"]}, FLAT, ["Nothing of cat, dog was found: train longer, and give --class-weights"]),
        ({"unfound": ["cat"]}, FLAT, ["or images that show it"]),
        ({"unfound": ["cat"], "weights_classes": True}, FLAT, ["and give a larger --scale or images"]),
        ({"unfound": ["cat"], "image_kind": "volume"}, FLAT, ["give --class-weights auto or volumes that show it"]),
        ({}, OVER, ["since step 300 the validation loss has risen from 0.5 to 1", "--augment strong"]),
        ({"images": 9}, FLAT, ["measured on 9 images only", "--fold 1/5", "docs/data.md"]),
        ({"images": 9} | SHORT, FLAT[:1], ["Only 94 of 1,200 steps were made"]),  # and no score yet
        ({"images": 9, "is_fold": True}, FLAT, ["on 9 images only", "compare.py computes the mean of all folds"]),
        ({}, RISING, ["still rising when the run ended", "--max-steps"]),
        ({}, OVER_AND_RISING, ["still rising when the run ended"]),
        ({"score": "eval/closeness"}, CLOSER, ["still rising when the run ended"]),
        ({}, [*FLAT, *WAITING], ["waited for data 30% of the time", "--num-workers, or give --cache"]),
        ({"is_cached": True}, [*FLAT, *WAITING], ["30% of the time: raise --num-workers (docs/performance.md)"]),
        ({"images": 10}, [*FLAT, *WAITING[:1]], ["Nothing stands out"]),
        ({"images": 2, "is_generated": True}, FLAT, ["Nothing stands out"]),
    ],
)
def test_what_stands_out_is_a_remark_with_the_flag_that_helps(changes, records, parts):
    (remark,) = remarks(records, **changes)
    assert all(part in remark for part in parts)


@pytest.mark.parametrize("records", [OVER, RISING, OVER_AND_RISING])
def test_few_validation_images_are_the_first_remark_and_bear_no_verdict(records):
    said = remarks(records, **SHORT, images=2, unfound=["cat"])
    assert [remark.split()[0] for remark in said] == ["The", "Only", "Nothing"]


@pytest.mark.parametrize(("records", "opening"), [(OVER, "Over-fitting"), (RISING, "Only 94")])
def test_no_remark_advises_against_another(records, opening):
    said = remarks(records, **SHORT, unfound=["cat"])
    assert said[0].startswith(opening)
    assert len(said) == 2
    advises_longer = ["more --max-steps" in remark or "train longer" in remark for remark in said]
    assert advises_longer == [records is RISING] * 2


def test_a_run_without_an_evaluation_is_not_called_sound():
    assert remarks([]) == []
    (remark,) = remarks([], **SHORT)
    assert remark.startswith("Only 94")


def series(key: str, values: list[float]) -> list[dict]:
    """A record of these values after every 10 steps."""
    return [{"step": 10 * number, key: value} for number, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("last", "train_after", "is_said"),
    [(0.55, (0.6, 0.6), True), (0.549, (0.6, 0.6), False), (0.9, (0.75, 0.75), False)],
)
def test_over_fitting_is_a_loss_a_tenth_above_its_lowest_while_training_goes_on(last, train_after, is_said):
    losses = series("train/loss", [1.0, 0.5, *train_after]) + series("eval/loss", [0.9, 0.5, 0.5, last])
    (remark,) = remarks(losses + series("eval/mean_iou", [0.5]))
    assert remark.startswith("Over-fitting: since step 20 the validation loss") is is_said


@pytest.mark.parametrize(
    ("scores", "is_said"),
    [
        ([0.5] * 6 + [0.5, 0.51], True),
        ([0.5] * 6 + [0.5, 0.509], False),
        ([0.5] * 4 + [0.6, 0.5, 0.5, 0.605], False),
    ],
)
def test_a_score_that_gained_a_hundredth_in_the_last_quarter_still_rises(scores, is_said):
    (remark,) = remarks(series("eval/mean_iou", scores))
    assert remark.startswith("The validation score was still rising when") is is_said
