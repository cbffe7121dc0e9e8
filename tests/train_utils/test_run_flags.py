"""Flags of train.py that say which files a run writes, and when."""

import json

import pytest
import torch
from flag_runs import Trainer

import train
from runtime.errors import SettingsError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


@pytest.mark.flags("--resume", "--checkpoint-every", "--keep-checkpoints")
def test_checkpoints_are_saved_kept_and_resumed(run, tmp_path, monkeypatch):
    rebuilt = []  # what only several processes show: the order of sums after the first step
    monkeypatch.setattr(train, "rebuild_buckets", lambda model, network: rebuilt.append(network is model))
    whole = run.fresh("--max-steps", "4", "--eval-every", "4")
    assert whole.checkpoints() == [0, 1, 2, 3, 4]
    assert rebuilt == []
    result = run.fresh("--max-steps", "4", "--eval-every", "4", "--checkpoint-every", "2", "--keep-checkpoints", "2")
    assert result.checkpoints() == [2, 4]
    begun = run.fresh("--max-steps", "2", "--eval-every", "4", output=tmp_path / "out")
    with pytest.raises(SettingsError, match="not an empty folder"):
        run.fresh(output=tmp_path / "out")
    outcome = run.fresh("--max-steps", "4", "--eval-every", "4", "--resume", "auto", output=tmp_path / "out")
    assert begun.checkpoints()[-1] == 4
    assert outcome.steps("train/loss") == [1, 2, 3, 4]
    assert rebuilt == [True]
    assert all(torch.equal(outcome.weights(4)[name], weight) for name, weight in whole.weights(4).items())


@pytest.mark.flags("--eval-every", "--log-every")
def test_evaluations_and_records_come_as_often_as_given(run):
    result = run("--max-steps", "5", "--eval-every", "2", "--log-every", "3")
    assert result.steps("eval/loss") == [2, 4, 5]
    assert result.steps("train/loss") == [3, 5]
    each = run("--max-steps", "5", "--eval-every", "5").values("train/loss")
    means = [sum(each[:3]) / 3, sum(each[3:]) / 2]  # of the steps since the last record
    assert result.values("train/loss") == pytest.approx(means, rel=1e-6)


@pytest.mark.flags("--trace-steps")
def test_a_trace_holds_the_given_steps(run):
    result = run.fresh("--trace-steps", "1", "--max-steps", "5", "--eval-every", "5")
    events = json.loads((result.folder / "traces" / "process-0.json").read_text())["traceEvents"]
    assert any("conv" in event.get("name", "") for event in events)
    assert not (run().folder / "traces").exists()


@pytest.mark.flags("--push-to-hub")
def test_a_model_is_pushed_to_its_name(run, monkeypatch):
    pushed = []
    monkeypatch.setattr("train_utils.reporting.hub.huggingface_hub.get_token", lambda: "token")
    monkeypatch.setattr("train_utils.results.push_to_hub", lambda *given: pushed.append(given))
    result = run.fresh("--push-to-hub", "me/cells")
    assert pushed == [(result.folder / "model", "me/cells")]


@pytest.mark.flags("--tracker")
def test_a_tracker_is_chosen_by_its_name(run):
    assert not (run().folder / "tensorboard").exists()
    result = run.fresh("--tracker", "tensorboard")
    assert [*(result.folder / "tensorboard").glob("events.out.tfevents*")]
    with pytest.raises(SettingsError, match="--tracker nothing is unknown"):
        run.fresh("--tracker", "nothing")


@pytest.mark.flags("--deterministic")
def test_algorithms_are_deterministic_where_asked(run, monkeypatch):
    calls = []
    step = train.train_step
    monkeypatch.setattr(
        train, "train_step", lambda *a, **k: calls.append(torch.are_deterministic_algorithms_enabled()) or step(*a, **k)
    )
    run.fresh()
    run.fresh("--deterministic")
    assert calls == [False, True]
