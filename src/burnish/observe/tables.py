"""Tables for a terminal: what an evaluation found, how it compares with before, and answers side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

LONGEST_ANSWER = 400
"""Characters of an answer that are shown."""

Results = Mapping[str, float | int | str]
"""A name and what was found: a float is a share and shown in percent, an int a count, a text as it is."""


@dataclass(frozen=True)
class AnswerPair:
    """The answers of the model before and after training to one prompt."""

    prompt: str
    gold: str
    before: str
    after: str
    before_correct: bool
    after_correct: bool


def evaluation_table(title: str, results: Results) -> Table:
    """One row for each thing found."""
    table = _table(title)
    table.add_column("measure")
    table.add_column("result", justify="right")
    for name, value in results.items():
        table.add_row(Text(name), Text(_shown(value), style="bold"))
    return table


def comparison_table(title: str, before: Results, after: Results) -> Table:
    """Before and after in one row for each thing that both hold, with the change of shares in percentage points."""
    table = _table(title)
    for heading in ("measure", "before", "after", "change"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for name in before:
        if name in after:
            old, new = before[name], after[name]
            table.add_row(Text(name), Text(_shown(old)), Text(_shown(new), style="bold"), _change(old, new))
    return table


def answers_table(title: str, pairs: Sequence[AnswerPair]) -> Table:
    """Prompt, gold answer, and both answers next to each other, marked right or wrong."""
    table = _table(title)
    table.show_lines = True
    table.add_column("prompt", ratio=2)
    table.add_column("before", ratio=3)
    table.add_column("after", ratio=3)
    for pair in pairs:
        prompt = Text(_printable(pair.prompt))
        prompt.append(f"\n→ {_printable(pair.gold)}", style="cyan")
        table.add_row(prompt, _marked(pair.before, pair.before_correct), _marked(pair.after, pair.after_correct))
    return table


def _table(title: str) -> Table:
    return Table(title=Text(title, style="bold"), title_justify="left", box=box.ROUNDED, border_style="dim")


def _shown(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else value


def _change(old: float | int | str, new: float | int | str) -> Text:
    if not isinstance(old, float) or not isinstance(new, float):
        return Text("")
    points = round(100 * (new - old), 1)
    style = "green" if points > 0 else "red" if points < 0 else "dim"
    return Text(f"{points:+.1f} points", style=style)


def _marked(answer: str, correct: bool) -> Text:
    mark = Text("✓ ", style="bold green") if correct else Text("✗ ", style="bold red")
    text = _printable(answer.strip())
    cut = text if len(text) <= LONGEST_ANSWER else text[:LONGEST_ANSWER].rstrip() + " …"
    return mark.append(Text(cut or "(empty)", style="" if cut else "dim"))


def _printable(text: str) -> str:
    """A model's text without what would move a terminal's cursor or colours."""
    return "".join(char if char.isprintable() or char == "\n" else "�" for char in text.replace("\t", "    "))
