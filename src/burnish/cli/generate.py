"""`burnish generate`: one prompt answered on standard output, or a chat where no prompt is given."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from burnish.rollout.language_model import LanguageModel
    from burnish.rollout.records import Trajectory


def generate(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face folder, a .gguf file, a hub id, or smollm2-135m-instruct.")
    ],
    prompt: Annotated[
        str | None, typer.Argument(help="What to ask; - reads it from standard input. Without one: a chat.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token; training draws at 1.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw among so many likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest that reach this share; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw among those at least this likely; 0 is off.")] = 0.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer in tokens (256; in a chat 1024).")
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="How many answers.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The same seed draws the same answers.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End an answer at this text; may be repeated.")] = None,
    template: Annotated[
        list[str] | None,
        typer.Option("--template", metavar="KEY=VALUE", help="A variable of the chat template; may be repeated."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto (bfloat16 on accelerators).")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per answer, with token ids and log-probabilities.")
    ] = False,
) -> None:
    """Ask a model something, or chat with it."""
    from burnish.errors import UserError

    if prompt is None and (as_json or n != 1 or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise UserError(
            "a PROMPT is needed where there is no terminal to chat in, and for --json and --n; type it after the "
            "model, or - to read it from standard input"
        )
    if n > 1 and temperature == 0:
        raise UserError(f"--n {n} answers at temperature 0 would all be the same; add --temperature 1")
    prompt = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt
    if prompt is not None and not prompt.strip():
        raise UserError("the prompt is empty; type what to ask")

    # Before the model is loaded, which takes a while, all that can be told is told.
    from burnish.rollout.language_model import checked_sampling, load

    settings: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "max_tokens": max_tokens or (256 if prompt is not None else 1024),
        "stop_strings": stop or [],
    }
    checked_sampling(num_generations=n, **settings)
    settings["chat_template_kwargs"] = _template_variables(template or [])
    language_model = load(model, dtype=dtype)
    opening = [{"role": "system", "content": system}] if system else []
    if prompt is None:
        from burnish.cli.chat import chat

        chat(language_model, opening, settings, seed)
        return
    messages = [*opening, {"role": "user", "content": prompt}]
    if as_json or n > 1 or not sys.stdout.isatty():
        answers = language_model.generate(messages, num_generations=n, seed=seed, **settings)
        _print_answers(answers, as_json)
    else:
        _stream_answer(language_model, messages, settings, seed)


def _stream_answer(model: "LanguageModel", messages: list[dict[str, str]], settings: dict[str, Any], seed: int) -> None:
    from rich.console import Console

    from burnish.cli.streaming import TextStream

    with TextStream(sys.stdout, Console(stderr=True)) as stream:
        (answer,) = model.generate(messages, seed=seed, on_text=lambda _, text: stream.show(text), **settings)
        stream.finish(answer.text)
    if answer.truncated:
        typer.secho(f"(cut at {len(answer.token_ids)} tokens; --max-tokens allows more)", dim=True, err=True)


def _print_answers(answers: "list[Trajectory]", as_json: bool) -> None:
    for answer in answers:
        if as_json:
            typer.echo(json.dumps(_record(answer), ensure_ascii=False))
            continue
        if len(answers) > 1:
            typer.secho(f"── {answer.completion_index + 1} of {len(answers)} ({answer.stop_reason})", dim=True)
        typer.echo(answer.text)


def _record(answer: "Trajectory") -> dict[str, Any]:
    return {
        "completion_index": answer.completion_index,
        "text": answer.text,
        "stop_reason": answer.stop_reason,
        "prompt_token_ids": answer.prompt_ids.tolist(),
        "token_ids": answer.token_ids.tolist(),
        "logprobs": [float(logprob) for logprob in answer.logprobs],
    }


def _template_variables(pairs: list[str]) -> dict[str, Any]:
    """`enable_thinking=false` → {"enable_thinking": False}: values are read as YAML, as in `key=value` settings."""
    from burnish.config import yaml_text
    from burnish.errors import UserError

    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--template {pair} is no setting; type for example --template enable_thinking=false")
        try:
            variables[name] = yaml_text.parse(value)
        except yaml_text.YamlError as error:
            raise UserError(f"--template {pair} can't be read ({error}); put the value in quotes") from None
    return variables
