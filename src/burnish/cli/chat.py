"""A chat in the terminal: a line in, an answer as it is drawn, and the conversation so far as the next prompt."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from burnish.cli.streaming import TextStream

if TYPE_CHECKING:
    from burnish.rollout.language_model import LanguageModel

HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C interrupts an answer"

Messages = list[dict[str, str]]


def chat(model: "LanguageModel", opening: Sequence[dict[str, str]], settings: dict[str, Any], seed: int) -> None:
    """Talk until the user leaves. `opening` stands before every conversation; `settings` go to `generate`."""
    # Imported for what it does to input(): line editing, and earlier lines on the up key.
    import readline  # noqa: F401

    console = Console(highlight=False)
    console.print(Text.assemble((model.source.name, "bold cyan"), "  ", (HELP, "dim")))
    messages: Messages = list(opening)
    turn = 0
    while (line := _read_line(console)) is not None:
        match line.strip():
            case "":
                pass
            case "/exit" | "/quit":
                return
            case "/reset":
                messages = list(opening)
                console.print(Text("The conversation starts anew.", style="dim"))
            case command if command.startswith("/"):
                console.print(Text(f"There is no command {command}; {HELP}.", style="yellow"))
            case text:
                asked = [*messages, {"role": "user", "content": text}]
                # Each turn draws with a seed of its own: the same question twice may get two answers.
                messages = _answered(model, asked, len(opening), settings, seed + turn, console) or messages
                turn += 1


def _read_line(console: Console) -> str | None:
    """What the user typed; None for Ctrl-D."""
    try:
        # The control characters tell readline that the colour takes no room on the line.
        return input("\001\033[1;32m\002> \001\033[0m\002")
    except KeyboardInterrupt:
        console.print(Text("\n/exit or Ctrl-D leaves.", style="dim"))
        return ""
    except EOFError:
        console.print()
        return None


def _answered(
    model: "LanguageModel", messages: Messages, opening: int, settings: dict[str, Any], seed: int, console: Console
) -> Messages | None:
    """The conversation with the model's answer to it, as far as it came; None where there is none."""
    fitting, max_tokens = _fitted(model, messages, opening, settings)
    if max_tokens < 1:
        limit = model.spec.max_position_embeddings
        console.print(Text(f"That is longer than the model's context of {limit} tokens.", style="yellow"))
        return None
    if forgotten := len(messages) - len(fitting):
        note = f"(The first {forgotten} messages no longer fit the model's context and are forgotten.)"
        console.print(Text(note, style="dim"))
    settings = {**settings, "max_tokens": max_tokens}
    with TextStream(sys.stdout, console) as stream:
        try:
            (answer,) = model.generate(fitting, seed=seed, on_text=lambda _, text: stream.show(text), **settings)
        except KeyboardInterrupt:
            stream.finish(stream.text)
            console.print(Text("(interrupted)", style="dim"))
            return [*fitting, {"role": "assistant", "content": stream.text}] if stream.text else None
        stream.finish(answer.text)
    if answer.truncated:
        console.print(Text(f"(cut at {len(answer.token_ids)} tokens)", style="dim"))
    return [*fitting, {"role": "assistant", "content": answer.text}]


def _fitted(model: "LanguageModel", messages: Messages, opening: int, settings: dict[str, Any]) -> tuple[Messages, int]:
    """The conversation without its oldest turns, as far as they must go, and how long the answer may become.

    A quarter of the context is kept for the answer while there is something to forget.
    """
    context, wanted = model.spec.max_position_embeddings, settings["max_tokens"]
    first, turns = messages[:opening], messages[opening:]
    while True:
        fitting = [*first, *turns]
        room = context - len(model.encode(fitting, settings["chat_template_kwargs"]))
        if room >= min(wanted, context // 4) or len(turns) <= 2:
            return fitting, min(wanted, room)
        # A question and its answer go together, so that a user's message comes first again.
        turns = turns[2:]
