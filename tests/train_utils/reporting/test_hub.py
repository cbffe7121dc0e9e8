"""--push-to-hub against a stand-in for the Hub: whatever fails there costs no run.

Module: train_utils/publisher.py.
"""

from pathlib import Path

import huggingface_hub
import pytest
from support.in_process import Run, run_train
from support.launches import TINY

from runtime.errors import SettingsError
from train_utils.publisher import check_token, push_to_hub


class Hub:
    """A stand-in for the Hub: the names of its repositories, and what was uploaded."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.files: dict[str, bytes] = {}

    def create_repo(self, repo_id: str, **_: object) -> huggingface_hub.RepoUrl:
        self.created.append(repo_id)
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self, repo_id: str, folder_path: Path, **_: object) -> None:
        assert repo_id in self.created
        self.files = {path.name: path.read_bytes() for path in folder_path.iterdir()}


@pytest.fixture(scope="module")
def published(tiny_folder, tmp_path_factory) -> tuple[Run, Hub]:
    """A run with --push-to-hub whose tracker cannot start, and what the Hub has received."""
    output = tmp_path_factory.mktemp("runs") / "run"
    output.mkdir()
    (output / "tensorboard").write_text("a file where the tracker wants its folder")
    flags = ["--max-steps", "2", "--push-to-hub", "me/cells", "--resume", "auto"]
    hub = Hub()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("create_repo", "upload_folder"):
            patch.setattr(huggingface_hub, name, getattr(hub, name))
        patch.setenv("HF_TOKEN", "secret")
        run = run_train(output, "--dataset", tiny_folder, *TINY, *flags)
    assert run.exit_code == 0, run.output
    return run, hub


def test_a_run_whose_tracker_cannot_start_goes_on(published):
    run, _ = published
    assert len([line for line in run.output.splitlines() if line.startswith("tracker tensorboard failed")]) == 1
    assert "training goes on without it" in run.output
    assert (run.folder / "report.html").exists()


def test_a_run_publishes_all_files_of_its_model(published):
    run, hub = published
    assert hub.created == ["me/cells"]
    assert "model published: " in run.output
    assert hub.files == {path.name: path.read_bytes() for path in (run.folder / "model").iterdir()}


def test_an_upload_that_fails_costs_one_line_with_the_command_to_repeat(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    push_to_hub(tmp_path, "me/cells")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("could not upload to me/cells (OfflineModeIsEnabled: ")
    assert line.endswith(f"to try again: hf upload me/cells {tmp_path}")


def test_nobody_trains_for_a_hub_without_a_token(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(SettingsError, match="needs a token: run `hf auth login`, or set HF_TOKEN"):
        check_token("me/cells")
    check_token(None)
