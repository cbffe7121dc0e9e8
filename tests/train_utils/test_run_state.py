"""Where a run stands: its best evaluation, what came after it, and the file that holds it.

Module: train_utils/run_state.py.
"""

import pytest
import torch

from tasks.classes.loss import Classes
from tasks.classes.scores import ClassScores
from train_utils.evaluation import Evaluation
from train_utils.run_state import LossWindow, RunState

TASK = Classes(("a", "b"))


def evaluation(step: int, hits: int) -> Evaluation:
    """One whose classes both have this IoU, in hundredths."""
    matrix = torch.tensor([[2 * hits, 100 - hits], [100 - hits, 2 * hits]])
    return Evaluation(step, 0.5, ClassScores(TASK.names, matrix, torch.tensor([[hits / 100]])))


def test_the_best_evaluation_is_the_first_of_the_highest_score():
    state = RunState()
    improvements = []
    for step, hits in ((3, 0), (6, 50), (9, 50), (12, 20)):
        result = evaluation(step, hits)
        improvements.append(state.is_improved_by(result))
        state.update(result, improvements[-1])
    assert improvements == [True, True, False, False]  # a score of 0 is better than none
    assert state.best == pytest.approx(0.5)
    assert state.best_step == 6
    assert state.evaluations_since_best == 2
    best = state.best_evaluation(TASK)
    assert best.step == 6
    assert best.loss is None
    assert best.scores.sums.tolist() == [[100, 50], [50, 100]]
    assert best.scores.image_comparison == pytest.approx([0.5])


def test_a_better_evaluation_begins_the_patience_again():
    state = RunState()
    for step, is_best in ((1, True), (2, False), (3, True), (4, False)):
        state.update(evaluation(step, 10 * step), is_best)
    assert state.evaluations_since_best == 1


def test_a_best_score_that_is_forgotten_is_that_of_a_new_run():
    state = RunState(best=0.5, best_step=6, evaluations_since_best=2)
    state.forget_best()
    assert not state.has_best
    assert state.evaluations_since_best == 0
    assert state.best_evaluation(TASK) is None


OLD = {"step": 4, "best": 0.5, "best_matrix": [[1, 0], [0, 1]], "best_images": [[0.5]]}


def test_a_state_of_an_earlier_version_is_read():
    state = RunState.from_json(OLD)
    assert state.best_scores == {"sums": [[1, 0], [0, 1]], "by_image": [[0.5]]}
    assert state.step == 4
    assert state.skipped == 0
    assert state.window == LossWindow()


def test_a_state_of_a_later_version_is_refused():
    with pytest.raises(ValueError, match=r"its run holds wheels, wings, .* made by a newer version"):
        RunState.from_json(OLD | {"wings": 2, "wheels": 4})
