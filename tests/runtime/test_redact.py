"""The query of a URL: a run reads with it, and neither writes nor prints it. A password in a URL is refused."""

import io
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.folders import write_folder
from support.in_process import Run, run_train
from support.launches import ROOT, TINY

import predict
import train
from data_utils.config import DataConfig
from data_utils.sources.load import load_records
from data_utils.sources.streams.parquet import ParquetRows
from data_utils.sources.streams.remote import file_kind, find_files
from runtime.errors import DataError
from runtime.redact import PASSWORD, redact, redact_all
from train_utils.settings.flags import parse_args

TOKENS = ("open-sesame", "shazam-42")
OF_ENVIRONMENT = "from-the-environment"
SECRETS = (*TOKENS, OF_ENVIRONMENT)
SIZES = ["--image-size", "16", "24", "--batch-size", "4", "--log-every", "1"]
FLAGS = [*TINY, "--classes", "0=background,255=cell", *SIZES]


class Store(ThreadingHTTPServer):
    """A server that lists and sends files below `/cells?token=...&path=`, to who has a token."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.files = files
        self.place = f"127.0.0.1:{self.server_address[1]}/cells"

    def url(self, token: str = TOKENS[0]) -> str:
        return f"http://{self.place}?token={token}&path="


class Requests(BaseHTTPRequestHandler):
    server: Store

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        folder, _, name = self.path.partition("&path=/")
        if not folder.removesuffix("&path=").endswith(TOKENS):
            return self._answer(401, b"")
        if not name:
            links = "".join(f'<a href="{folder}/{file}">' for file in self.server.files)
            return self._answer(200, links.encode(), type="text/html")
        content = self.server.files[name]
        if "Range" not in self.headers:
            return self._answer(200, content)
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        last = min(int(last or len(content)), len(content) - 1)
        of_all = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[int(first) : last + 1], range=of_all)

    def _answer(self, status: int, content: bytes, type: str = "application/x-tar", range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Accept-Ranges", "bytes")
        if range:
            self.send_header("Content-Range", range)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_) -> None:
        pass


def tar_of(folder: Path) -> bytes:
    """The pictures and masks of a folder as a tar file of samples."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for image in sorted((folder / "images").iterdir()):
            tar.add(image, image.name)
            tar.add(folder / "masks" / image.name, f"{image.stem}.mask.png")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("folder")
    splits = {"train": 8, "val": 3}
    files = {}
    for seed, (split, count) in enumerate(splits.items()):
        files[f"{split}.tar"] = tar_of(write_folder(folder / split, count, seed, size=(16, 24)))
    server = Store(files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def done(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two steps on the server's files, with credentials in the environment too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN"):
            patch.setenv(name, OF_ENVIRONMENT)
        return run_train(tmp_path_factory.mktemp("runs") / "done", "--dataset", store.url(), *FLAGS, "--max-steps", "2")


def leaks(run: Run) -> list[str]:
    """The places in which a secret stands: files of the run, or `output`."""
    texts = {str(path): path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    texts["output"] = run.output.encode()
    return [f"{name}: {secret}" for name, text in texts.items() for secret in SECRETS if secret.encode() in text]


def test_a_run_writes_nothing_that_gives_access_to_its_data(done, store):
    names = {path.name.partition(".tfevents")[0] for path in done.folder.rglob("*")}
    assert {"run.json", "finished.json", "report.html", "README.md", "state.json", "events.out"} <= names
    assert leaks(done) == []
    assert done.settings["flags"]["dataset"] == f"http://{store.place}"
    assert f"--dataset http://{store.place} --plan none" in done.settings["run"]["command"]
    assert f"U-Net on http://{store.place}" in (done.folder / "model" / "README.md").read_text()


def test_a_run_goes_on_with_the_new_query_of_the_same_data(done, store, tmp_path):
    folder = Path(shutil.copytree(done.folder, tmp_path / "run"))
    command = ["--dataset", store.url(TOKENS[1]), *FLAGS, "--resume", "auto"]
    again = run_train(folder, *command, "--max-steps", "2")
    assert "the run has finished" in again.output
    longer = run_train(folder, *command, "--max-steps", "3")
    assert "resumed from" in longer.output
    assert longer.steps("train/loss") == [1, 2, 3]
    assert "dataset was" not in longer.output
    assert leaks(again) == leaks(longer) == []


def test_a_recorded_run_is_repeated_with_new_secrets(done, store, tmp_path):
    again = run_train(tmp_path / "again", "--like", done.folder, "--dataset", store.url(TOKENS[1]))
    assert "without a change" in again.output
    assert again.exit_code == 0
    assert again.values("train/loss") == done.values("train/loss")
    assert leaks(again) == []


@pytest.mark.parametrize(("token", "reason"), [("no-token", "401"), (TOKENS[0], "holds no .parquet or .tar")])
def test_a_url_that_cannot_be_read_is_a_one_line_error_without_the_secrets(store, monkeypatch, token, reason):
    monkeypatch.setattr(store, "files", {"notes.txt": b""})
    with pytest.raises(DataError, match=f"^--dataset http://{store.place} .*{reason}") as failed:
        find_files(store.url(token), [])
    assert token not in str(failed.value)
    assert "\n" not in str(failed.value)


def test_trackers_that_send_the_command_line_find_no_secret_in_it(store, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", f"--dataset={store.url()}"])
    assert parse_args("").dataset == store.url()
    assert sys.argv == ["train.py", f"--dataset=http://{store.place}"]


def test_warnings_beside_the_traceback_of_a_bug_show_no_secret():
    program = (
        "import warnings\n"
        "from runtime.errors import UserWarningLine\n"
        "from runtime.script import run_script\n"
        "def main():\n"
        "    warnings.warn('slow: https://host/z.tar?secret')\n"
        "    warnings.warn('see https://host/x?secret', UserWarningLine)\n"
        "    try:\n"
        "        raise FileNotFoundError('https://host/x.tar?token=secret')\n"
        "    except OSError as error:\n"
        "        raise LookupError('https://host/y.tar?secret') from error\n"
        "run_script(main)\n"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "secret" not in result.stdout + result.stderr
    assert "UserWarning: slow: https://host/z.tar\n" in result.stderr
    assert "\nwarning: see https://host/x\n" in result.stderr
    assert "FileNotFoundError: https://host/x.tar\n" in result.stderr
    assert result.stderr.endswith("LookupError: https://host/y.tar\n")


def test_the_query_of_a_signed_file_is_no_part_of_its_name():
    assert file_kind("https://host/x.tar?token=a.parquet") == ".tar"
    assert file_kind("https://host/download?path=/x.parquet") == ".parquet"
    assert file_kind("s3://bucket/x?.zip") is None
    records = ParquetRows(["https://host/a.parquet?token=secret"], np.array([[0, 0, 0, 2]]), {"image": "i"})
    records._read[0] = pa.array([b"1", b"2"]), pa.array([b"3", b"4"])
    assert records[0]["name"] == "a.parquet row 0"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("https://host:80/a@b/x.tar?token=secret", "https://host:80/a@b/x.tar"),
        ("HTTPS://Host/X.tar?secret", "HTTPS://Host/X.tar"),
        ("s3://bucket/x-{0..9}.tar?X-Amz-Signature=secret", "s3://bucket/x-{0..9}.tar"),
        ("zip://*.tar::https://host/x.zip?secret", "zip://*.tar::https://host/x.zip"),
        ("https://a/x?t=secret, https://b/y?secret; sftp://c/z", "https://a/x, https://b/y; sftp://c/z"),
        ("404, message='Not Found', url='https://host/x?t=secret'", "404, message='Not Found', url='https://host/x'"),
        ("retries exceeded with url: /x?t=secret (Caused by", "retries exceeded with url: /x (Caused by"),
        (str(Path("s3://bucket/x?t=secret")), "s3:/bucket/x"),
        ("see s3://bucket/x#access_token=secret", "see s3://bucket/x"),
    ],
)
def test_the_query_of_each_url_is_removed(text, redacted):
    assert redact(text) == redacted == redact(redacted)
    assert redact_all({"a": [text, 1, None], "b": {"c": text}}) == {"a": [redacted, 1, None], "b": {"c": redacted}}


@pytest.mark.parametrize(
    "text",
    [
        "hf://datasets/owner/name@v1/data/*.parquet",
        "owner/name@v1",
        "abfs://container@account.dfs.core.windows.net/x",
        "sftp://alice@host/x",
        "s3://bucket/part-?/year=2020/x.tar",
        "s3://bucket/x#1@2.tar",
        "https://[::1]:8080/a@b/x.tar",
        "https://host/x.tar: which of a, b are image and mask? Give them",
        "file:///data/run#lr=0.1/x.tar",
        r"C:\data\me@work\x.tar",
        "data/me@work/what?a=b.tar",
        "open http://127.0.0.1:7860 in a browser; Ctrl-C ends the page",
        "see https://host/docs/page.html#section for more",
    ],
)
def test_all_else_stays_as_it_is_and_holds_no_password(text):
    assert redact(text) == text
    assert not PASSWORD.search(text)


@pytest.mark.parametrize("script", [train, predict], ids=["train.py", "predict.py"])
@pytest.mark.parametrize(
    "words",
    [
        ["--dataset", "s3://alice:hunter-2@bucket/cells"],
        ["--dataset=https://alice:hun/ter-2@host/x.tar?token=hunter-2"],
        ["s3://alice:hunter-2@bucket/cells", "--epochs", "many"],
        ["--init-from", "https://hunter-2@host/model"],
        ["--init-from", "https://user:se@cret@host/hunter-2"],
        ["--output-dir", "zip://x::sftp://alice:hunter-2@host/x"],
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(script, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script.py", *words])
    with pytest.raises(SystemExit) as ended:
        script.main()
    line = capsys.readouterr().err
    assert ended.value.code == 2
    assert line.count("\n") == 1
    assert "was given with a password" in line
    assert words[0].partition("=")[0].partition("alice")[0] in line
    assert "in the environment" in line
    assert "hunter" not in line
    assert "alice" not in line


def test_a_password_in_a_data_set_of_python_is_refused():
    with pytest.raises(DataError, match=r"^the URL of --dataset was given with a password"):
        load_records(DataConfig("s3://alice:hunter-2@bucket/cells"))
