"""Where a model comes from: the embedded demo, a local folder, or the hub."""

from __future__ import annotations

from pathlib import Path

from ..errors import ExportError

DEMO = "demo"
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def find_checkpoint(model: str | Path) -> Path:
    """The local folder of `model`: "demo", a folder, or a hub name, which is fetched into the hub's own cache.

    Raises ExportError where there is no such folder, no such name, or no way to reach the hub.
    """
    if folder := local_checkpoint(model):
        return folder
    path = Path(model).expanduser()
    if path.is_file():
        raise ExportError(f"{path} is a file; give the folder that holds config.json and the weights")
    name = str(model)
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or isinstance(model, Path):
        raise ExportError(f"there is no folder {path}; give a checkpoint's folder, a hub name (owner/name), or `demo`")
    return _fetch(name)


def local_checkpoint(model: str | Path) -> Path | None:
    """The folder of "demo", or the folder `model` where it is one; None where it may be a name on the hub."""
    if model == DEMO:
        from .. import demo

        return Path(demo.__file__).parent
    path = Path(model).expanduser()
    return path if path.is_dir() else None


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    way_out = "give the name of a model on the hub (owner/name), a local folder, or `demo`"
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED))
    except GatedRepoError:
        raise ExportError(
            f"{name!r} is gated on the hub: accept its licence there and log in (`hf auth login`)"
        ) from None
    except RepositoryNotFoundError:
        raise ExportError(f"there is no folder and no model on the hub called {name!r}; {way_out}") from None
    except HFValidationError:
        raise ExportError(f"there is no folder {name!r}, and it is not a hub name; {way_out}") from None
    except Exception as error:  # the hub's client lets through its HTTP library's errors, and has changed the library
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(
            f"there is no folder {name!r}, and the hub cannot be reached or does not give that model ({reason}); "
            "fetch the checkpoint elsewhere and give its folder"
        ) from error
