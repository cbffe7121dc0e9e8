"""--push-to-hub against a stand-in for the Hub: whatever fails there costs no run.

Module: train_utils/reporting/hub.py.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
from support.in_process import Run, run_train
from support.launches import TINY

from runtime.errors import SettingsError
from train_utils.reporting.hub import check_token, push_to_hub
from unet import UNet


class Hub(ThreadingHTTPServer):
    """What the Hub's interface does for an upload; `files` holds what a commit brought."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.created: list[str] = []
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}  # by checksum


class Requests(BaseHTTPRequestHandler):
    """Answers to what an upload asks of the Hub."""

    server: Hub

    def do_GET(self) -> None:
        self._answer({"id": "me/cells", "sha": "0" * 40})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == "Bearer secret"
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            self.server.created.append(f"{asked['organization']}/{asked['name']}")
            self._answer({"url": f"{self.server.url}/me/cells", "name": "me/cells", "id": "1"})
        elif self.path.endswith("/preupload/main"):
            answers = [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular"}
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": [answer | {"shouldIgnore": False} for answer in answers]})
        elif self.path.endswith("/objects/batch"):
            objects = [
                {**file, "actions": {"upload": {"href": f"{self.server.url}/large/{file['oid']}"}}}
                for file in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.server.files[value["path"]] = self.server.large[value["oid"]]
            self._answer({"commitUrl": f"{self.server.url}/me/cells/commit/1", "commitOid": "1" * 40})
        else:
            self._answer({})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.large[hashlib.sha256(content).hexdigest()] = content
        self._answer({})

    def _answer(self, answer: dict) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        pass


@contextmanager
def serving() -> Iterator[Hub]:
    """Within, the stand-in answers."""
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def published(tiny_folder, tmp_path_factory) -> tuple[Run, Hub]:
    """A run with --push-to-hub whose tracker cannot start, and what the Hub has received."""
    output = tmp_path_factory.mktemp("runs") / "run"
    output.mkdir()
    (output / "tensorboard").write_text("a file where the tracker wants its folder")
    flags = ["--max-steps", "2", "--push-to-hub", "me/cells", "--resume", "auto"]
    with serving() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        patch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(huggingface_hub.hf_api.api, "endpoint", hub.url)
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
    for path in (run.folder / "model").iterdir():
        assert hub.files[path.name] == path.read_bytes()


def test_a_published_model_can_be_loaded(published, tmp_path):
    _, hub = published
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    assert UNet.from_pretrained(tmp_path).config.preprocess.class_values == (0, 255)


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
