"""Where burnish keeps what it can make or fetch again: downloads and compiled programs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$BURNISH_CACHE, else $XDG_CACHE_HOME/burnish, else ~/.cache/burnish."""
    own = os.environ.get("BURNISH_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "burnish"
