"""The remarks at the end of a run say what stands out, with the flag that mends it.

Module: train_utils/reporting/remarks.py.
"""

from dataclasses import replace

import pytest

from train_utils.reporting.remarks import Facts, remarks_on

SOUND = Facts(
    steps=2000,
    total_steps=2000,
    resume=None,
    validation_images=40,
    unfound=[],
    is_generated=False,
    is_good=False,
    score="eval/mean_iou",
)


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


@pytest.mark.parametrize(
    ("changes", "records", "parts"),
    [
        ({"steps": 180}, FLAT, ["Only 180 steps were made", "masks are often poor", "--max-minutes"]),
        ({"steps": 94, "total_steps": 1200, "resume": "train.py x"}, FLAT, ["94 steps of 1,200 were", "train.py x"]),
        (
            {"unfound": ["cat", "dog"]},
            FLAT,
            ["Nothing of cat, dog was found", "--class-weights auto or add images of them"],
        ),
        ({"unfound": ["cat"], "is_weighted": True}, FLAT, ["train longer, and add images of it (docs"]),
        (
            {"unfound": ["cat"], "is_weighted": True, "is_reduced": True},
            FLAT,
            ["and give a larger --scale or add images"],
        ),
        ({}, OVER, ["since step 300 the validation loss has risen from 0.5 to 1", "--augment strong"]),
        ({"validation_images": 9}, FLAT, ["measured on 9 images only", "--fold 1/5", "docs/data.md"]),
        ({}, RISING, ["still rising at the end"]),
        ({}, OVER_AND_RISING, ["still rising at the end"]),
        ({"resume": "train.py x"}, RISING, ["still rising when the run was stopped", "train.py x"]),
        ({"score": "eval/closeness"}, CLOSER, ["still rising at the end"]),
        ({"steps": 500, "validation_images": 10}, FLAT, ["Nothing stands out"]),
        ({"steps": 100, "is_good": True}, FLAT, ["Nothing stands out"]),
        ({"validation_images": 2, "is_generated": True}, FLAT, ["Nothing stands out"]),
    ],
)
def test_what_stands_out_is_a_remark_with_the_flag_that_helps(changes, records, parts):
    (remark,) = remarks_on(records, replace(SOUND, **changes))
    assert all(part in remark for part in parts)


@pytest.mark.parametrize("records", [OVER, RISING, OVER_AND_RISING])
def test_few_validation_images_are_the_first_remark_and_bear_no_verdict(records):
    changes = {"steps": 320, "validation_images": 2, "unfound": ["cat"]}
    openings = [remark.split()[0] for remark in remarks_on(records, replace(SOUND, **changes))]
    assert openings == ["The", "Only", "Nothing"]


@pytest.mark.parametrize(("records", "opening"), [(OVER, "Over-fitting"), (RISING, "Only 320 steps")])
def test_no_remark_advises_against_another(records, opening):
    remarks = remarks_on(records, replace(SOUND, steps=320, unfound=["cat"]))
    assert remarks[0].startswith(opening)
    assert len(remarks) == 2
    advises_longer = ["more --max-minutes" in remark or "train longer" in remark for remark in remarks]
    assert advises_longer == [records is RISING] * 2


def test_a_run_without_an_evaluation_is_not_called_sound():
    assert remarks_on([], SOUND) == []
    (remark,) = remarks_on([], replace(SOUND, steps=4, resume="train.py x"))
    assert remark.startswith("Only 4 steps")


def series(key: str, values: list[float]) -> list[dict]:
    """A record of these values after every 10 steps."""
    return [{"step": 10 * number, key: value} for number, value in enumerate(values, 1)]


def only_remark(*records: dict) -> str:
    """The only remark on a run with these records whose score is flat."""
    (remark,) = remarks_on([*records, *series("eval/mean_iou", [0.5])], SOUND)
    return remark


@pytest.mark.parametrize(
    ("last", "train_after", "is_said"),
    [(0.55, (0.6, 0.6), True), (0.549, (0.6, 0.6), False), (0.9, (0.75, 0.75), False)],
)
def test_over_fitting_is_a_loss_a_tenth_above_its_lowest_while_training_goes_on(last, train_after, is_said):
    remark = only_remark(*series("train/loss", [1.0, 0.5, *train_after]), *series("eval/loss", [0.9, 0.5, 0.5, last]))
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
    (remark,) = remarks_on(series("eval/mean_iou", scores), SOUND)
    assert remark.startswith("The validation score was still rising at the end") is is_said
