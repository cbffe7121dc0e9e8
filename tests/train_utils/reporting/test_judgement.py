"""Two sentences at the end of a run say what stands out, with the flag that mends it.

Module: train_utils/reporting/judgement.py.
"""

from dataclasses import replace

import pytest

from train_utils.reporting.judgement import SENTENCES, Facts, judge

SOUND = Facts(2000, 40, [], lacks_encoder=False, is_generated=False, score="eval/mean_iou")


def log(train: list[float], val: list[float], scores: list[float]) -> list[dict]:
    """A record of training and one of an evaluation after every 100 steps."""
    records: list[dict] = []
    for number, (loss, val_loss, score) in enumerate(zip(train, val, scores, strict=True), 1):
        records.append({"step": 100 * number, "train/loss": loss})
        records.append({"step": 100 * number, "eval/loss": val_loss, "eval/mean_iou": score})
    return records


FLAT = log([1.0, 0.6, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4], [0.9, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5], [0.4] * 7 + [0.4])
OVER = log([1.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1], [0.9, 0.7, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], [0.4] * 8)
RISING = log([1.0, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1], [0.9] * 8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
CLOSER = [{"step": 100 * number, "eval/closeness": 0.1 * number} for number in range(1, 9)]
DIVERGING = log([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2], [0.4] * 8)


@pytest.mark.parametrize(
    ("changes", "records", "parts"),
    [
        ({"steps": 180}, FLAT, ["Only 180 steps", "--max-minutes", "docs/choosing-settings.md"]),
        ({"unfound": ["cat", "dog"]}, FLAT, ["No pixel of cat, dog was found", "--class-weights auto"]),
        ({}, OVER, ["since step 300 the validation loss has risen from 0.5 to 1", "--augment strong"]),
        ({"validation_images": 6}, FLAT, ["measured on 6 images only", "--fold 1/5", "docs/data.md"]),
        ({"validation_images": 1}, FLAT, ["measured on 1 image only"]),
        ({"lacks_encoder": True}, FLAT, ["--encoder lite0 (docs/encoders.md)"]),
        ({}, RISING, ["still rising at the end"]),
        ({"score": "eval/closeness"}, CLOSER, ["still rising at the end"]),
    ],
)
def test_a_problem_is_reported_with_the_flag_that_helps(changes, records, parts):
    (sentence,) = judge(records, replace(SOUND, **changes))
    assert all(part in sentence for part in parts)


@pytest.mark.parametrize("records", [FLAT, DIVERGING, [], FLAT[:2]], ids=["flat", "diverging", "no log", "a short log"])
def test_a_sound_run_is_called_so(records):
    (sentence,) = judge(records, SOUND)
    assert sentence.startswith("Nothing stands out")


@pytest.mark.parametrize("steps", [range(400, 900, 100), range(100, 400, 100)], ids=["before", "after"])
def test_over_fitting_is_not_told_without_training_losses_on_both_sides(steps):
    records = [record for record in OVER if "eval/loss" in record or record["step"] in steps]
    (sentence,) = judge(records, SOUND)
    assert sentence.startswith("Nothing stands out")


def test_the_two_weightiest_sentences_are_reported_in_their_order():
    facts = replace(SOUND, steps=100, unfound=["cat"], validation_images=2, lacks_encoder=True)
    first, second = judge(OVER, facts)
    assert SENTENCES == 2
    assert first.startswith("Only 100 steps")
    assert second.startswith("No pixel of cat")


def test_generated_images_need_no_advice_on_images():
    facts = replace(SOUND, validation_images=2, lacks_encoder=True, is_generated=True)
    assert judge(FLAT, facts)[0].startswith("Nothing stands out")


def test_generated_images_need_advice_on_training():
    first, second = judge(FLAT, replace(SOUND, steps=100, unfound=["cat"], is_generated=True))
    assert first.startswith("Only 100 steps")
    assert second.startswith("No pixel of cat")


@pytest.mark.parametrize(
    ("changes", "opening"),
    [
        ({"steps": 500, "validation_images": 10}, "Nothing stands out"),
        ({"steps": 499}, "Only 499 steps were made, and predictions are poor below 500:"),
        ({"validation_images": 9}, "The score is measured on 9 images only,"),
        ({"unfound": ["a", "b", "c"]}, "No pixel of a, b, c was found:"),
        ({"unfound": ["a", "b", "c", "d", "e"]}, "No pixel of a, b, c, "),
    ],
    ids=["sound", "few steps", "few images", "three classes", "five classes"],
)
def test_a_sound_run_has_500_steps_10_images_all_classes_found(changes, opening):
    (sentence,) = judge([], replace(SOUND, **changes))
    assert sentence.startswith(opening)
    assert "d, e" not in sentence


def series(key: str, values: list[float]) -> list[dict]:
    """A record of these values after every 10 steps."""
    return [{"step": 10 * number, key: value} for number, value in enumerate(values, 1)]


OVER_AND_RISING = [
    *series("eval/mean_iou", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
    *series("train/loss", [0.9, 0.8, 0.7, 0.6]),
    *series("eval/loss", [0.9, 0.5, 0.7, 0.8]),
]
WEIGHTS = [
    ("Only 1 steps", {"steps": 1}),
    ("No pixel of a", {"unfound": ["a"]}),
    ("Over-fitting", {}),
    ("The score is measured on 1 image", {"validation_images": 1}),
    ("If these are photographs", {"lacks_encoder": True}),
    ("The validation score was still rising", {}),
]


@pytest.mark.parametrize("first", range(5))
def test_sentences_come_in_the_order_of_their_weight(first):
    changes = {}
    for _, change in WEIGHTS[first:]:
        changes |= change
    sentences = judge(OVER_AND_RISING if first <= 2 else RISING, replace(SOUND, **changes))
    assert len(sentences) == 2
    assert sentences[0].startswith(WEIGHTS[first][0])
    assert sentences[1].startswith(WEIGHTS[first + 1][0])


@pytest.mark.parametrize(
    ("last", "train_after", "is_said"),
    [
        (0.55, (0.6, 0.6), True),
        (0.549, (0.6, 0.6), False),
        (0.9, (0.75, 0.75), False),
        (0.9, (0.74, 0.74), True),
        (0.9, (0.6, 0.9), False),
        (0.9, (0.0, 0.0), True),
    ],
)
def test_over_fitting_is_a_loss_a_tenth_above_its_lowest_while_training_goes_on(last, train_after, is_said):
    train = series("train/loss", [1.0, 0.5, *train_after])
    sentences = judge(train + series("eval/loss", [0.9, 0.5, 0.5, last]), SOUND)
    assert sentences[0].startswith("Over-fitting: since step 20 the validation loss") is is_said


def test_a_loss_that_has_fallen_again_is_no_over_fitting():
    train = series("train/loss", [1.0, 0.5, 0.6, 0.4])
    (sentence,) = judge(train + series("eval/loss", [0.9, 0.5, 0.9, 0.52]), SOUND)
    assert sentence.startswith("Nothing stands out")


def test_over_fitting_is_told_by_training_losses_up_to_the_last_evaluation():
    train = series("train/loss", [1.0, 0.5, 0.6, 0.6, 9.0])
    assert judge(series("eval/loss", [0.9, 0.5, 0.5, 0.9]) + train, SOUND)[0].startswith("Over-fitting")


@pytest.mark.parametrize("last", [0.55, 0.9])
def test_over_fitting_is_not_told_after_three_evaluations(last):
    train = series("train/loss", [1.0, 0.5, 0.6, 0.6])
    (sentence,) = judge(train + series("eval/loss", [0.9, 0.5, last]), SOUND)
    assert sentence.startswith("Nothing stands out")


@pytest.mark.parametrize(
    ("scores", "is_said"),
    [
        ([0.5] * 6 + [0.5, 0.51], True),
        ([0.5] * 6 + [0.5, 0.509], False),
        ([0.5] * 4 + [0.6, 0.5, 0.5, 0.605], False),
        ([0.5] * 6 + [0.6, 0.5, 0.5], False),
        ([0.5] * 6 + [0.6, 0.5], True),  # the last quarter are two evaluations
        ([0.5] * 5 + [0.6, 0.61], False),  # seven are too few
    ],
)
def test_a_score_that_gained_a_hundredth_in_the_last_quarter_still_rises(scores, is_said):
    sentences = judge(series("eval/mean_iou", scores), SOUND)
    assert sentences[0].startswith("The validation score was still rising at the end") is is_said
