"""GSM8K and OpenMathInstruct-2: rows arrive whole from local files, bad ones are named, the gold answers are found."""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from burnish.config.schema import TaskConfig
from burnish.errors import UserError
from burnish.tasks import Completion, GoldChecker, GradingPool, Task, check_gold, load_task

GSM8K = Path(os.environ.get("BURNISH_GSM8K", Path(__file__).parents[2] / "shared" / "data" / "gsm8k"))
needs_gsm8k = pytest.mark.skipif(
    not (GSM8K / "train.jsonl").is_file(), reason="GSM8K is not here; BURNISH_GSM8K can name its folder"
)


def gsm8k_row(question: str, gold: str) -> dict[str, str]:
    return {"question": question, "answer": f"A few steps.\n#### {gold}"}


def write_jsonl(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def load(name: str, path: Path, **options: Any) -> Task:
    return load_task(TaskConfig(name=name, path=str(path), options=options))


@pytest.fixture
def gsm8k_folder(tmp_path: Path) -> Path:
    write_jsonl(
        tmp_path / "train.jsonl", [{**gsm8k_row(f"How many? {i}", f"{i},000"), "extra": i} for i in range(1, 4)]
    )
    write_jsonl(tmp_path / "test.jsonl", [gsm8k_row("How much?", "-5")])
    return tmp_path


def test_a_folder_has_a_training_and_a_held_out_file(gsm8k_folder: Path) -> None:
    task = load("gsm8k", gsm8k_folder)
    assert [row.fields["question"] for row in task.train_rows()] == ["How many? 1", "How many? 2", "How many? 3"]
    (row,) = task.eval_rows()
    assert row.fields["answer"] == "-5"
    assert len({row.id for row in [*task.train_rows(), *task.eval_rows()]}) == 4


def test_every_field_of_the_data_set_is_kept(gsm8k_folder: Path) -> None:
    fields = load("gsm8k", gsm8k_folder).train_rows()[1].fields
    assert fields == {
        "question": "How many? 2",
        "solution": "A few steps.\n#### 2,000",
        "answer": "2,000",
        "extra": 2,
    }


def test_system_and_user_parts_are_messages(gsm8k_folder: Path) -> None:
    system, user = load("gsm8k", gsm8k_folder).train_rows()[0].messages
    assert (system["role"], user) == ("system", {"role": "user", "content": "How many? 1"})
    assert "<answer>" in system["content"]
    own = load("gsm8k", gsm8k_folder, system=None, user="Q: {question} {not a field}\nA:").train_rows()[0]
    assert own.messages == [{"role": "user", "content": "Q: How many? 1 {not a field}\nA:"}]


def test_a_user_template_without_the_question_is_refused(gsm8k_folder: Path) -> None:
    with pytest.raises(UserError, match=r"must contain \{question\}"):
        load("gsm8k", gsm8k_folder, user="Solve it.")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "Q", ', "line 3 is not JSON"),
        ('["Q", "A"]', "line 3 is list instead of a JSON object"),
        ('{"answer": "#### 3"}', 'line 3 can\'t be used: it has no "question" \\(its fields are answer\\)'),
        ('{"question": "Q"}', 'line 3 can\'t be used: it has no "answer"'),
        ('{"question": 5, "answer": "#### 3"}', 'its "question" is 5 instead of text'),
        ('{"question": "Q", "answer": "three"}', 'does not end with "#### <number>"'),
        ('{"question": "Q", "answer": "####  "}', 'does not end with "#### <number>"'),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(gsm8k_folder: Path, line: str, message: str) -> None:
    train = gsm8k_folder / "train.jsonl"
    train.write_text(json.dumps(gsm8k_row("Q", "1")) + "\n\n" + line + "\n")
    with pytest.raises(UserError, match=message) as error:
        load("gsm8k", gsm8k_folder)
    assert str(train) in str(error.value)


def test_of_a_single_file_a_share_of_the_questions_is_held_out_whatever_their_order(tmp_path: Path) -> None:
    rows = [gsm8k_row(f"Question {i}", str(i)) for i in range(400)]
    forward = load("gsm8k", write_jsonl(tmp_path / "forward.jsonl", rows), eval_share=0.25)
    backward = load("gsm8k", write_jsonl(tmp_path / "backward.jsonl", rows[::-1] + rows), eval_share=0.25)
    train, held_out = ({row.fields["question"] for row in rows} for rows in (forward.train_rows(), forward.eval_rows()))
    assert len(train) + len(held_out) == 400
    assert 70 < len(held_out) < 130
    assert {row.fields["question"] for row in backward.eval_rows()} == held_out
    assert len(backward.eval_rows()) == len(held_out)
    assert len(backward.train_rows()) == len(train)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "neither kind of file"),
        (["train.jsonl"], "needs train.* and test.*but holds train.jsonl"),
        (["data.csv"], "neither kind of file"),
    ],
)
def test_a_folder_without_both_splits_says_what_it_needs(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        write_jsonl(tmp_path / name, [gsm8k_row("Q", "1")])
    with pytest.raises(UserError, match=message):
        load("gsm8k", tmp_path)


def test_paths_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        load("gsm8k", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"neither \.jsonl nor \.parquet"):
        load("gsm8k", write_jsonl(tmp_path / "rows.csv", []))
    with pytest.raises(UserError, match="no rows to train on"):
        load("gsm8k", write_jsonl(tmp_path / "empty.jsonl", []))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match="not a Parquet file"):
        load("gsm8k", tmp_path / "broken.parquet")


def test_parquet_shards_are_read_as_jsonl_is(gsm8k_folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = [row.fields for row in load("gsm8k", gsm8k_folder).train_rows()]
    rows = [json.loads(line) for line in (gsm8k_folder / "train.jsonl").read_text().splitlines()]
    (gsm8k_folder / "train.jsonl").unlink()
    for shard, part in enumerate((rows[:2], rows[2:])):
        parquet.write_table(pyarrow.Table.from_pylist(part), gsm8k_folder / f"train-0000{shard}-of-00002.parquet")
    assert [row.fields for row in load("gsm8k", gsm8k_folder).train_rows()] == expected
    parquet.write_table(pyarrow.Table.from_pylist([{"question": "Q", "answer": "?"}]), gsm8k_folder / "train-2.parquet")
    with pytest.raises(UserError, match=r"train-2\.parquet, row 1 can't be used"):
        load("gsm8k", gsm8k_folder)


@pytest.mark.parametrize("name", ["gsm8k", "openmathinstruct2"])
def test_without_the_datasets_package_the_hub_is_refused_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'burnish\[datasets\]'.*task\.path"):
        load_task(TaskConfig(name=name))


def test_without_pyarrow_a_parquet_file_is_refused_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rows.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'burnish\[datasets\]'"):
        load("gsm8k", tmp_path / "rows.parquet")


class FakeHub:
    """Stands for the package `datasets`, whose hub no test may ask."""

    def __init__(self, rows: list[dict[str, Any]] | None) -> None:
        self.rows = rows
        self.asked: list[tuple[str, str | None, str]] = []

    def load_dataset(self, dataset: str, subset: str | None, split: str) -> Any:
        self.asked.append((dataset, subset, split))
        if self.rows is None:
            raise ConnectionError("no route to the hub\nand more")
        return pytest.importorskip("datasets").Dataset.from_list(self.rows)


def test_without_a_path_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub([gsm8k_row("Q", "12")])
    real = pytest.importorskip("datasets")
    monkeypatch.setattr(real, "load_dataset", hub.load_dataset)
    task = load_task(TaskConfig(name="gsm8k"))
    assert hub.asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    assert task.train_rows()[0].fields["answer"] == "12"
    problems = FakeHub([{"problem": f"P{i}", "expected_answer": "x", "generated_solution": "s"} for i in range(200)])
    monkeypatch.setattr(real, "load_dataset", problems.load_dataset)
    task = load_task(TaskConfig(name="openmathinstruct2"))
    assert problems.asked == [("nvidia/OpenMathInstruct-2", None, "train_1M")]
    assert len(task.train_rows()) + len(task.eval_rows()) == 200
    assert task.train_rows()[0].fields["generated_solution"] == "s"
    monkeypatch.setattr(real, "load_dataset", FakeHub(None).load_dataset)
    with pytest.raises(UserError, match=r"could not be loaded from the hub.*no route to the hub.*task\.path"):
        load_task(TaskConfig(name="gsm8k"))


def test_openmathinstruct2_is_graded_as_mathematics_and_repeated_problems_count_once(tmp_path: Path) -> None:
    golds = [r"2\sqrt{3}", r"\frac{1}{2}", "x^2+1", "18", "(1, 2)", "Monday"]
    rows = [
        {"problem": f"P{i}", "generated_solution": s, "expected_answer": golds[i % 6], "problem_source": "math"}
        for i in range(60)
        for s in ("one way", "another way")
    ]
    task = load("openmathinstruct2", write_jsonl(tmp_path / "rows.jsonl", rows), eval_share=0.2)
    train = list(task.train_rows())
    assert len(train) + len(task.eval_rows()) == 60
    assert all(row.fields["generated_solution"] == "one way" for row in train)
    assert "\\boxed{}" in train[0].messages[0]["content"]
    by_gold = {row.fields["answer"]: row for row in train}
    answers = {
        r"2\sqrt{3}": r"so it is $\boxed{\sqrt{12}}$.",
        r"\frac{1}{2}": r"\boxed{0.5}",
        "x^2+1": r"\boxed{1 + x^2}",
        "18": r"\boxed{x = 18}",
        "(1, 2)": r"\boxed{\left(1,2\right)}",
        "Monday": r"\boxed{\text{Monday}}",
    }
    with GradingPool(task, timeout_seconds=20.0) as pool:
        right = pool.grade([Completion(by_gold[gold], text, "eos", 9) for gold, text in answers.items()])
        assert [grade.parts for grade in right] == [{"correct": 1.0}] * 6
        wrong = pool.grade([Completion(by_gold[gold], r"\boxed{x^3 - 7}", "eos", 9) for gold in answers])
        assert [grade.parts for grade in wrong] == [{"correct": 0.0}] * 6


def test_a_worker_gets_the_task_without_its_rows(gsm8k_folder: Path) -> None:
    write_jsonl(gsm8k_folder / "train.jsonl", [gsm8k_row("long " * 1000, "1")] * 50)
    assert len(pickle.dumps(load("gsm8k", gsm8k_folder))) < 5000


@needs_gsm8k
def test_the_real_gsm8k_loads_and_every_gold_answer_solves_its_row() -> None:
    task = load("gsm8k", GSM8K)
    assert (len(task.train_rows()), len(task.eval_rows())) == (7473, 1319)
    assert task.eval_rows()[0].fields["answer"] == "18"
    with GradingPool(task) as pool:
        checker = GoldChecker(task, pool)
        rows = [*task.train_rows(), *task.eval_rows()]
        assert len(checker.keep(rows)) == len(rows)
        assert checker.failures == {}


@needs_gsm8k
def test_the_worked_solutions_of_the_real_gsm8k_are_graded_right_by_their_last_number() -> None:
    task = load("gsm8k", GSM8K)
    with GradingPool(task) as pool:
        rows = list(task.eval_rows())
        grades = pool.grade([Completion(row, row.fields["solution"], "eos", 99) for row in rows])
        assert all(grade.solved for grade in grades)
        assert check_gold(task, rows[0], pool) is None
