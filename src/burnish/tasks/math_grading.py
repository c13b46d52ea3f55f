"""Whether an answer equals the gold answer: exactly where both are plain numbers, else by computer algebra.

`compare_plainly` is cheap and certain to return. `compare_symbolically` asks math-verify, which can hang for minutes
on what a model writes: it belongs in a worker process that can be killed (see `grading.py`).
"""

import logging
from typing import Any

from burnish.tasks.answers import equation_sides, extract_answer, is_name, split_equation, tidy
from burnish.tasks.numbers import plain_number

# No answer that a person would grade is longer; a model that repeats itself makes much longer ones.
_MAX_ANSWER_CHARACTERS = 2000


def grade_math(text: str, gold: str) -> float:
    """1.0 if the final answer of the completion `text` equals `gold`, else 0.0. May take very long."""
    certain = grade_plainly(text, gold)
    if certain is not None:
        return certain
    answer = extract_answer(text)
    return float(answer is not None and compare_symbolically(answer, gold))


def grade_plainly(text: str, gold: str) -> float | None:
    """`grade_math` where no computer algebra is needed; None where it is."""
    answer = extract_answer(text)
    if answer is None:
        return 0.0
    equal = compare_plainly(answer, gold)
    return None if equal is None else float(equal)


def compare_plainly(answer: str, gold: str) -> bool | None:
    """Whether the two are equal as numbers or as text; None where that can't be told without algebra.

    `x = 18` gives 18, and so does `y = x = 18`. `17 = 18` does not: an equation counts for its value only if none of
    its sides says something else.
    """
    if len(answer) > _MAX_ANSWER_CHARACTERS:
        return False
    if tidy(answer) == tidy(gold):
        return True
    gold_number = plain_number(split_equation(gold)[1])
    if gold_number is None:
        return None
    sides = equation_sides(answer)
    if len(sides) > 1:
        sides = [side for side in sides if not is_name(side)]
    numbers = [plain_number(side) for side in sides]
    if any(number is not None and number != gold_number for number in numbers):
        return False
    if numbers and None not in numbers:
        return True
    return None if any(_may_be_expression(side) for side in sides) else False


def compare_symbolically(answer: str, gold: str) -> bool:
    """Whether math-verify finds the two equal. Run it in the main thread of a process that may be killed."""
    gold = split_equation(gold)[1]
    sides = [answer] if len(equation_sides(gold)) > 1 else equation_sides(answer)
    if len(sides) > 1:
        # math-verify would drop all but the last side, and take `17 = 18` for 18.
        sides = [side for side in sides if not is_name(side)] or sides[-1:]
    expected = _parse(gold)
    if not expected:
        raise ValueError(f"the gold answer {gold!r} can't be read as mathematics")
    return all(_equal(expected, side) for side in sides)


def _may_be_expression(text: str) -> bool:
    """Whether `text` can be an expression with a number for its value: prose without a symbol or digit can't."""
    has_digit = any(character.isdigit() for character in text)
    return "\\" in text or (has_digit and (any(c in "+-*/^()×÷·√!" for c in text) or not _is_prose(text)))


def _is_prose(text: str) -> bool:
    """Whether `text` has a word of three letters, as units and variables next to a number rarely do."""
    return any(len(word) >= 3 and word.isalpha() for word in text.split())


def _equal(expected: list[Any], answer: str) -> bool:
    from math_verify import verify

    parsed = _parse(answer)
    return bool(parsed) and bool(verify(expected, parsed, timeout_seconds=None))


def _parse(answer: str) -> list[Any]:
    """What math-verify reads in `answer`: a SymPy object and the text itself."""
    # Imported where it is used: SymPy takes over a second to load, and most gold answers are plain numbers.
    from math_verify import LatexExtractionConfig, parse

    # Its own time limits rest on SIGALRM; the worker's owner sets the limit here. It warns about that at each start.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    configuration = [LatexExtractionConfig(boxed_match_priority=0)]
    parsed: list[Any] = parse(f"\\boxed{{{answer}}}", configuration, parsing_timeout=None)
    return parsed
