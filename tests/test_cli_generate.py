"""`burnish generate` prints what the model says, to people, to pipes and as JSON, and chats in a terminal."""

import builtins
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import burnish
from burnish.cli.chat import chat
from burnish.cli.main import app
from burnish.cli.streaming import TextStream, printable
from burnish.errors import UserError
from burnish.rollout.language_model import LanguageModel
from tiny_models import write_tiny_hf_folder

SETTINGS: dict[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "max_tokens": 8,
    "stop_strings": [],
    "chat_template_kwargs": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf_folder(tmp_path_factory.mktemp("tiny"), scale=0.3)


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return burnish.load(folder, progress=False)


def generate(*arguments: str, stdin: str = "") -> str:
    result = CliRunner().invoke(app, ["generate", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def asked(content: str, system: str | None = None) -> list[dict[str, str]]:
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": content}]


def test_answer_is_the_models(model: LanguageModel, folder: Path) -> None:
    (expected,) = model.generate(asked("one two", "Be brief."), max_tokens=8)
    options = (str(folder), "--system", "Be brief.", "--max-tokens", "8")
    assert generate(*options, "one two") == expected.text + "\n"
    assert generate(*options, "-", stdin="one two\n") == expected.text + "\n"


def test_json_holds_ids_and_logprobs(model: LanguageModel, folder: Path) -> None:
    expected = model.generate(asked("one"), num_generations=2, temperature=1.0, max_tokens=8, seed=4)
    printed = generate(
        str(folder), "one", "--n", "2", "--temperature", "1", "--max-tokens", "8", "--seed", "4", "--json"
    )
    records = [json.loads(line) for line in printed.splitlines()]
    assert [record["text"] for record in records] == [answer.text for answer in expected]
    assert [record["token_ids"] for record in records] == [answer.token_ids.tolist() for answer in expected]
    assert [record["stop_reason"] for record in records] == [answer.stop_reason for answer in expected]
    assert records[0]["prompt_token_ids"] == model.encode(asked("one"))
    assert records[1]["logprobs"] == pytest.approx(expected[1].logprobs.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL"], "a PROMPT is needed"),
        (["MODEL", " "], "the prompt is empty"),
        (["MODEL", "one", "--n", "2"], "--n 2 answers at temperature 0 would all be the same"),
        (["MODEL", "one", "--top-p", "2"], "top_p=2.0 must be above 0 and at most 1"),
        (["MODEL", "one", "--stop", ""], "empty text"),
        (["MODEL", "one", "--template", "thinking"], "--template thinking is no setting"),
        (["MODEL", "one", "--dtype", "int8"], "dtype='int8' is not possible"),
        (["MODEL", "one", "--max-tokens", "256"], "exceed the model's context of 256"),
        (["./nowhere", "one"], "is no model"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(*(str(folder) if argument == "MODEL" else argument for argument in arguments))


def test_mistake_on_the_command_line_is_exit_code_2_without_a_traceback() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from burnish.cli.main import run; run()", "generate", "nowhere"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: a PROMPT is needed")
    assert len(result.stderr.splitlines()) == 1


class Conversation:
    """A user who types the given lines, and the prompts that the model was given."""

    def __init__(self, model: LanguageModel, monkeypatch: pytest.MonkeyPatch, interrupt_at: int | None = None) -> None:
        self.prompts: list[list[dict[str, str]]] = []
        self.seeds: list[int] = []
        self.max_tokens: list[int] = []
        self._model, self._monkeypatch = model, monkeypatch
        real = model.generate

        def listening(messages: Any, **options: Any) -> Any:
            self.prompts.append(list(messages))
            self.seeds.append(options["seed"])
            self.max_tokens.append(options["max_tokens"])
            if len(self.prompts) - 1 == interrupt_at:
                options["on_text"](0, "half an ans")
                raise KeyboardInterrupt
            return real(messages, **options)

        monkeypatch.setattr(model, "generate", listening)

    def __call__(self, *lines: str, **settings: Any) -> None:
        typed: Iterator[str] = iter(lines)

        def read(_: str = "") -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

        self._monkeypatch.setattr(builtins, "input", read)
        chat(self._model, [], {**SETTINGS, **settings}, seed=7)


def test_chat_remembers_until_reset(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = model.generate(asked("one"), max_tokens=8)
    talk = Conversation(model, monkeypatch)
    talk("one", "", "two", "/reset", "three", "/nonsense")
    assert talk.prompts[0] == asked("one")
    assert talk.prompts[1] == [*asked("one"), {"role": "assistant", "content": first.text}, *asked("two")]
    assert talk.prompts[2] == asked("three")
    assert talk.seeds == [7, 8, 9]
    printed = capsys.readouterr().out
    assert printable(first.text) in printed
    assert "There is no command /nonsense" in printed


def test_interrupted_answer_stays_as_far_as_it_came(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = Conversation(model, monkeypatch, interrupt_at=0)
    talk("one", "go on", "/exit", "never read")
    assert talk.prompts[1] == [*asked("one"), {"role": "assistant", "content": "half an ans"}, *asked("go on")]
    assert len(talk.prompts) == 2
    assert "(interrupted)" in capsys.readouterr().out


def test_chat_forgets_the_oldest_turns_when_the_context_is_full(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = Conversation(model, monkeypatch)
    talk("x" * 90, "y" * 90, "z" * 300, "short", max_tokens=40)
    assert [prompt[-1]["content"][0] for prompt in talk.prompts] == ["x", "y", "s"]
    assert talk.prompts[2][0]["content"][0] in "ys"
    for prompt, max_tokens in zip(talk.prompts, talk.max_tokens, strict=True):
        assert len(model.encode(prompt)) + max_tokens <= 256
    printed = " ".join(capsys.readouterr().out.split())
    assert "no longer fit" in printed
    assert "longer than the model's context of 256 tokens" in printed


def test_text_is_streamed_once_and_without_control_characters() -> None:
    out = io.StringIO()
    stream = TextStream(out)
    stream.show("a")
    stream.show("a\N{REPLACEMENT CHARACTER}")
    assert out.getvalue() == "a"
    stream.show("aé\x1b[2J")
    stream.finish("aé\x1b[2J\n!")
    assert out.getvalue() == "aé\N{REPLACEMENT CHARACTER}[2J\n!\n"
