"""Publishing a model on the Hugging Face Hub."""

from pathlib import Path

import huggingface_hub

from runtime.console import say
from runtime.errors import SettingsError, one_line


def check_token(repo_id: str | None) -> None:
    """Raise SettingsError if a model is to be published and nobody is logged in; call it before the training."""
    if repo_id and huggingface_hub.get_token() is None:
        raise SettingsError(f"--push-to-hub {repo_id} needs a token: run `hf auth login`, or set HF_TOKEN")


def push_to_hub(folder: Path, repo_id: str | None) -> bool:
    """Upload a model folder with its card, if asked to; returns whether nothing is left to do.

    If the upload fails, the model stays on disk, and the printed line says how to try again.
    """
    if repo_id is None:
        return True
    try:
        url = huggingface_hub.create_repo(repo_id, exist_ok=True)
        huggingface_hub.upload_folder(
            repo_id=url.repo_id, folder_path=folder, commit_message="U-Net and its model card"
        )
    except Exception as error:  # client, network or server may raise anything: the run is over
        reason = f"{type(error).__name__}: {one_line(error, limit=200)}"
        say(f"could not upload to {repo_id} ({reason}); to try again: hf upload {repo_id} {folder}")
        return False
    say(f"model published: {url}")
    return True
