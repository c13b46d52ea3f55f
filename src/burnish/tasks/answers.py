"""Which part of a completion is its final answer, and one spelling for equal answers.

The last `<answer>…</answer>`, else the last balanced `\\boxed{…}`, else the last number. An answer of another kind
than the text offers is None, never a number that could be somebody's gold answer.
"""

import re

from burnish.tasks.numbers import NOT_PLAIN, canonical, last_number, plain_number, unify

_OPEN_TAG = re.compile(r"<answer>", re.IGNORECASE)
_CLOSE_TAG = re.compile(r"</answer>", re.IGNORECASE)
# What matters for balancing braces: the start of a box, an escaped character (not a brace), a brace.
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def extract_answer(text: str) -> str | None:
    """The final answer that `text` gives, as written; None where it gives none."""
    answer = tagged_answer(text)
    if answer is not None:
        boxed = last_boxed(answer)
        return (answer if boxed is None else boxed).strip() or None
    answer = last_boxed(text)
    if answer is not None:
        return answer.strip() or None
    number = last_number(text)
    return None if number is None else canonical(number)


def tagged_answer(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`; None where no tag is closed."""
    closings = list(_CLOSE_TAG.finditer(text))
    if not closings:
        return None
    openings = [tag for tag in _OPEN_TAG.finditer(text) if tag.end() <= closings[-1].start()]
    if not openings:
        return None
    start = openings[-1].end()
    return text[start : next(tag.start() for tag in closings if tag.start() >= start)]


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{…}` whose braces balance; of nested boxes the innermost."""
    last_start, content = -1, None
    open_braces: list[tuple[bool, int]] = []
    for token in _BRACES.finditer(text):
        if token[0] == "}":
            if open_braces:
                is_box, start = open_braces.pop()
                if is_box and start > last_start:
                    last_start, content = start, text[start : token.start()]
        elif token[0].endswith("{") and token[0] != "\\{":
            open_braces.append((token[0] != "{", token.end()))
    return content


def normalise_answer(answer: str) -> str:
    """A spelling that equal answers share: numbers exactly, everything else without the freedom of LaTeX's markup.

    Meant for counting votes, so it never runs a computer algebra system: `\\sqrt{12}` and `2\\sqrt{3}` stay different.
    """
    _, value = split_equation(answer)
    number = plain_number(value)
    return tidy(value) if number is None else canonical(number)


def tidy(text: str) -> str:
    """`text` without spaces (but between digits), math delimiters and markup that says nothing; words in lower case."""
    text = unify(text).replace("\\$", "$")
    text = re.sub(r"\\(?:left|right|displaystyle|quad|qquad)(?![a-zA-Z])|\\[()\[\]]|\*\*|`|\$", "", text)
    text = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    # The space in `1 1/2` is the one that matters.
    text = re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text).rstrip(".,;:")
    # One-letter names are variables, whose case means something.
    return text.lower() if re.fullmatch(r"[A-Za-z]{2,}", text) else text


def equation_sides(text: str) -> list[str]:
    """The sides of `a = b = …`; one element where `text` is no equation (`<=`, `!=` and `==` are not)."""
    return re.split(r"(?<![<>=!:])=(?![=<>])", text)


def split_equation(text: str) -> tuple[str | None, str]:
    """(name, value) of `name = value`, where the name is a variable or words; (None, text) for everything else."""
    sides = equation_sides(text)
    if len(sides) == 2 and is_name(sides[0]):
        return sides[0].strip(), sides[1].strip()
    return None, text


def is_name(side: str) -> bool:
    """Whether one side of an equation only names what the other is: `x`, `x_1`, `f(x)`, `the total`; not `x + 1`."""
    if len(side) > 100:
        return False
    side = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", side).strip().strip("$")
    side = re.sub(r"_(?:\{[0-9A-Za-z]+\}|[0-9A-Za-z])|\(\s*[A-Za-z]\s*\)\s*$", "", side)
    side = re.sub(r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|sigma|phi|omega|angle)(?![A-Za-z])", "greek", side)
    return (
        re.fullmatch(r"[A-Za-z\s'.]+", side) is not None
        and side.strip() != ""
        and not any(word.lower() in NOT_PLAIN for word in side.split())
    )
