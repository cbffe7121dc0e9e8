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
def test_what_stands_out_is_said_with_its_flag_and_page(changes, records, parts):
    (sentence,) = judge(records, replace(SOUND, **changes))
    assert all(part in sentence for part in parts)


def test_a_sound_run_is_called_so():
    for records in (FLAT, DIVERGING, [], FLAT[:2]):
        (sentence,) = judge(records, SOUND)
        assert sentence.startswith("Nothing stands out")


@pytest.mark.parametrize("steps", [range(400, 900, 100), range(100, 400, 100)], ids=["before", "after"])
def test_over_fitting_is_not_told_where_no_training_loss_was_logged_on_one_side_of_the_lowest_loss(steps):
    records = [record for record in OVER if "eval/loss" in record or record["step"] in steps]
    (sentence,) = judge(records, SOUND)
    assert sentence.startswith("Nothing stands out")


def test_the_weightiest_sentences_come_first_and_are_two():
    facts = replace(SOUND, steps=100, unfound=["cat"], validation_images=2, lacks_encoder=True)
    first, second = judge(OVER, facts)
    assert SENTENCES == 2
    assert first.startswith("Only 100 steps")
    assert second.startswith("No pixel of cat")


def test_generated_images_need_no_advice_on_images():
    facts = replace(SOUND, validation_images=2, lacks_encoder=True, is_generated=True)
    assert judge(FLAT, facts)[0].startswith("Nothing stands out")
