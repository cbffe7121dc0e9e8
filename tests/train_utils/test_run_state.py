"""Where a run stands: its best evaluation, what came after it, and the file that holds it.

Module: train_utils/run_state.py.
"""

import pytest
import torch

from tasks.classes import Classes, ClassScores
from train_utils.evaluation import Evaluation
from train_utils.run_state import RunState

TASK = Classes(("a", "b"))


def evaluation(step: int, hits: int) -> Evaluation:
    """One whose classes both have this IoU, in hundredths."""
    matrix = torch.tensor([[2 * hits, 100 - hits], [100 - hits, 2 * hits]])
    return Evaluation(step, 0.5, ClassScores(TASK.names, matrix, torch.tensor([[hits / 100]])))


@pytest.fixture
def state() -> RunState:
    """The state of a run that was best after 6 steps, the first of two equal evaluations, and then worse."""
    state = RunState()
    for step, hits in ((3, 40), (6, 50), (9, 50), (12, 20)):
        state.update(evaluation(step, hits))
    return state


def test_an_evaluation_improves_a_run_if_it_is_better_than_all_before():
    state = RunState()
    improvements = [state.update(evaluation(step, hits)) for step, hits in ((3, 40), (6, 40), (9, 80), (12, 60))]
    assert improvements == [True, False, True, False]


def test_the_best_evaluation_is_the_first_of_the_highest_score(state):
    assert state.best == pytest.approx(0.5)
    assert state.best_step == 6
    assert state.evaluations_since_best == 2
    best = state.best_evaluation(TASK)
    assert best.step == 6
    assert best.loss is None
    assert best.scores.sums.tolist() == [[100, 50], [50, 100]]
    assert best.scores.image_comparison == pytest.approx([0.5])


def test_a_score_of_0_is_better_than_none():
    state = RunState()
    assert state.update(evaluation(3, 0))
    assert state.best == 0.0
    assert state.best_step == 3
    assert state.best_evaluation(TASK).step == 3


def test_a_best_score_that_is_forgotten_is_that_of_a_new_run(state):
    state.forget_best()
    assert state.best == -1.0
    assert state.evaluations_since_best == 0
    assert state.best_evaluation(TASK) is None
    assert state.update(evaluation(18, 0))


OLD = {"step": 4, "best": 0.5, "best_matrix": [[1, 0], [0, 1]], "best_images": [[0.5]]}


def test_a_state_of_an_earlier_version_is_read():
    state = RunState.from_json(OLD)
    assert state.best_scores == {"sums": [[1, 0], [0, 1]], "by_image": [[0.5]]}
    assert state.step == 4
    assert state.skipped == 0
    assert state.window == {"total": 0.0, "steps": 0}


@pytest.mark.parametrize(("entries", "names"), [({"wings": 2, "wheels": 4}, "wheels, wings")], ids=["two"])
def test_a_state_of_a_later_version_is_refused(entries, names):
    with pytest.raises(ValueError, match=f"its run holds {names}, "):
        RunState.from_json(OLD | entries)
