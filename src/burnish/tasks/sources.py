"""Where the rows of a data set come from: a local .jsonl or .parquet file, a folder of them, or the hub."""

import bisect
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from burnish.errors import UserError

_EVAL_PREFIXES = ("test", "eval", "validation", "val", "dev")
_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Table:
    """Rows as mappings from field to value, some of them read only when asked for."""

    num_rows: int
    row: Callable[[int], Mapping[str, Any]]
    column: Callable[[str], Sequence[Any]]
    """All values of one field, None where a row has none."""
    where: Callable[[int], str]
    """Names a row for people: its file and line."""

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """All rows, in order."""
        return (self.row(index) for index in range(self.num_rows))


def read_local(path: str) -> tuple[Table, Table | None]:
    """The (training, evaluation) tables of a folder with train* and test* files, or (all rows, None) of one file."""
    place = Path(path).expanduser()
    if place.is_file():
        return read_file(place), None
    if not place.is_dir():
        raise UserError(f"task.path={path}: there is no such file or folder (looked from {Path.cwd()})")
    files = sorted(file for file in place.iterdir() if file.suffix in _SUFFIXES)
    train = [file for file in files if file.name.startswith("train")]
    evaluation = next(
        (found for prefix in _EVAL_PREFIXES if (found := [file for file in files if file.name.startswith(prefix)])), []
    )
    if not train or not evaluation:
        raise UserError(
            f"task.path={path} needs train*.jsonl and test*.jsonl (or .parquet) files, but holds "
            f"{', '.join(file.name for file in files) or 'neither kind of file'}; a single file may be given instead"
        )
    return _chained([read_file(file) for file in train]), _chained([read_file(file) for file in evaluation])


def read_file(file: Path) -> Table:
    """The rows of one .jsonl or .parquet file; UserError with the line where it can't be read."""
    if file.suffix == ".jsonl":
        return _read_jsonl(file)
    if file.suffix == ".parquet":
        return _read_parquet(file)
    raise UserError(f"task.path={file} is neither .jsonl nor .parquet")


def load_hub(dataset: str, subset: str | None, split: str) -> Table:
    """One split of a data set on the hub."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"reading {dataset} from the hub needs the package datasets ({error}); "
            "type pip install 'burnish[datasets]', or give a local file with task.path=…"
        ) from None
    # Blind, because the hub, the network and the data set's own code each raise their own kinds of error.
    try:
        loaded = datasets.load_dataset(dataset, subset, split=split)
    except Exception as error:
        raise UserError(
            f"the data set {dataset} could not be loaded from the hub ({type(error).__name__}: {_first_line(error)}); "
            "give a local file or folder with task.path=…"
        ) from error
    return Table(
        num_rows=len(loaded),
        row=lambda index: loaded[index],
        column=lambda name: loaded[name] if name in loaded.column_names else [None] * len(loaded),
        where=lambda index: f"{dataset}, split {split}, row {index}",
    )


def text_field(row: Mapping[str, Any], name: str) -> str:
    """The text of a field; ValueError where the row has none."""
    if name not in row:
        raise ValueError(f'it has no "{name}" (its fields are {", ".join(row) or "none"})')
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'its "{name}" is {value!r:.80} instead of text')
    return value


def hold_out(questions: Sequence[str], share: float) -> tuple[list[int], list[int]]:
    """Row numbers to train on and to hold out: about `share` of the questions, the same ones wherever they stand.

    Of rows with the same question only the first is used, so that no question is on both sides or counts double.
    """
    train: list[int] = []
    evaluation: list[int] = []
    seen: set[bytes] = set()
    for index, question in enumerate(questions):
        digest = hashlib.blake2b(question.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            held_out = int.from_bytes(digest[:8]) < share * 2**64
            (evaluation if held_out else train).append(index)
    return train, evaluation


def _read_jsonl(file: Path) -> Table:
    rows: list[dict[str, Any]] = []
    line_numbers: list[int] = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}, line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{file}, line {number} is {type(row).__name__} instead of a JSON object")
        rows.append(row)
        line_numbers.append(number)
    return Table(
        num_rows=len(rows),
        row=rows.__getitem__,
        column=lambda name: [row.get(name) for row in rows],
        where=lambda index: f"{file}, line {line_numbers[index]}",
    )


def _read_parquet(file: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f"reading {file} needs the package pyarrow ({error}); type pip install 'burnish[datasets]'"
        ) from None
    try:
        table = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} is not a Parquet file that can be read: {_first_line(error)}") from None
    names = table.column_names
    return Table(
        num_rows=table.num_rows,
        row=lambda index: {name: table.column(name)[index].as_py() for name in names},
        column=lambda name: table.column(name).to_pylist() if name in names else [None] * table.num_rows,
        where=lambda index: f"{file}, row {index + 1}",
    )


def _chained(tables: list[Table]) -> Table:
    """Tables one after the other, as the shards of a data set are."""
    ends = list(accumulate(table.num_rows for table in tables))

    def locate(index: int) -> tuple[Table, int]:
        which = bisect.bisect_right(ends, index)
        return tables[which], index - (ends[which] - tables[which].num_rows)

    def row(index: int) -> Mapping[str, Any]:
        table, place = locate(index)
        return table.row(place)

    def where(index: int) -> str:
        table, place = locate(index)
        return table.where(place)

    return Table(ends[-1], row, lambda name: [value for table in tables for value in table.column(name)], where)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
