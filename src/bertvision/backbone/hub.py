"""The Hugging Face hub for whole folders: fetch one, upload one. An unreachable hub is one line, not minutes."""

from collections.abc import Sequence
from pathlib import Path

from bertvision.errors import UserError


def reachable() -> bool:
    """One quick question: an unreachable hub would else cost minutes of retries, file by file."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # no network, no proxy, switched off: whatever it is, the hub is not there
        return False
    return True


def fetch_folder(name: str, patterns: Sequence[str]) -> Path | None:
    """The files of a hub repository that fit `patterns`, in the hub's own cache; None if it cannot be had."""
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name, allow_patterns=list(patterns), ignore_patterns="*/*", local_files_only=not reachable()
            )
        )
    except Exception:  # no such name, no right to it, not in the cache: for the caller it is not there
        return None


def upload_folder(folder: Path, name: str, *, private: bool = False) -> str:
    """Makes the repository `name` ("user/name") hold the files of `folder`; its address. UserError if it cannot."""
    from huggingface_hub import HfApi

    if not reachable():
        raise UserError(f"{name}: the hub cannot be reached; save the reader to a directory and upload it from there")
    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a bertvision reader")
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
        raise UserError(f"{name}: the hub refused the upload ({reason}); log in with `hf auth login`") from None
    return str(getattr(done, "commit_url", "") or done)
