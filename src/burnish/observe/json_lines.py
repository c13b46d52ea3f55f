"""JSON lines that survive a kill: appended whole or cut back whole, replaced only at once."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from burnish.errors import UserError


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every record of the file; a last line that a kill left half-written is not one."""
    return (record for _, record in _lines(path))


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one record; once this returns it is on the disk."""
    with path.open("ab") as file:
        file.write(_encode(record))
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace the file by these records; whoever looks sees the old file or the new one, never a part."""
    _replace(path, map(_encode, records))


def keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Cut the file back to whole lines with records that are wanted, which stay byte for byte as they are."""
    if not path.exists():
        return
    kept = [line for line, record in _lines(path) if wanted(record)]
    if sum(map(len, kept)) < path.stat().st_size:
        _replace(path, kept)


def remove(paths: Iterable[Path], folder: Path) -> None:
    """Delete files of `folder` for good."""
    for path in paths:
        path.unlink()
    _sync_folder(folder)


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UserError(
                    f"{path}, line {number} is not JSON ({error}); remove the line, or type another run_name"
                ) from None
            yield line, record


def _encode(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    # What Python writes for a lone surrogate (a broken character in a model's text) is JSON's escape for it.
    return text.encode("utf-8", "backslashreplace")


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make renames and removals in `folder` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
