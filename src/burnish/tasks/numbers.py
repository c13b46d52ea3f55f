"""Numbers as people and models write them: `10 000`, `$18.00`, `50 percent`, `−3`, `1/2`, read exactly."""

import re
from fractions import Fraction

# Longer runs of digits are a model gone astray, and Python refuses to convert very long ones.
_MAX_DIGITS = 300

_CURRENCY = "$€£¥₹"
_SPACE = " \u00a0\u2007\u2008\u2009\u202f"

# Every character that is read as a minus, a fraction bar or a percent sign.
_SAME_MEANING = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "‐": "-",
        "‑": "-",
        "－": "-",
        "﹣": "-",
        "⁄": "/",
        "∕": "/",
        "％": "%",
        "’": "'",
        "\u00ad": None,
    }
)

# One number without its sign: an optional whole part of a mixed number, digits in groups of three or plain, decimals,
# exponent, denominator.
_NUMBER = re.compile(
    rf"""
    (?:(?P<whole>[0-9]{{1,9}})[ ](?=[1-9][0-9]{{0,2}}/[1-9][0-9]{{0,2}}(?![0-9/.])))?
    (?P<numerator>
        (?:[0-9]{{1,3}}(?P<sep>[,{_SPACE}])[0-9]{{3}}(?:(?P=sep)[0-9]{{3}})*(?![0-9]) | [0-9]+ | (?=\.[0-9]))
        (?:\.[0-9]+)?
        (?:[eE][+-]?[0-9]{{1,3}}(?![0-9A-Za-z]))?
    )
    (?:[ ]?/[ ]?(?P<denominator>[1-9][0-9]*)(?![0-9]*\.[0-9]))?
    """,
    re.VERBOSE,
)

_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]*)?")
# Words that change what number is meant, or leave it open.
NOT_PLAIN = frozenset(
    """
    above arccos arcsin arctan at below between cos cosh cot csc cubed exp fewer greater half infinity inf less ln log
    minus modulo mod more nan negative no not or over pi plus quarter root sec sin sinh sqrt squared tan tanh than theta
    third times twice under undefined
    """.split()  # noqa: SIM905 - fifty quoted words are harder to read
)
_MAGNITUDES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}


def unify(text: str) -> str:
    """`text` with one character for each meaning (minus, fraction bar, …), LaTeX's spaces as spaces, its numeric
    fractions as a/b."""
    text = text.translate(_SAME_MEANING)
    text = text.replace("{,}", ",").replace("\\!", "")
    text = re.sub(r"\\[,;: ]", "\u2009", text)
    if "frac" in text:
        text = re.sub(r"([0-9])\s?(?=\\[dtc]?frac)", r"\1 ", text)
        text = re.sub(r"\\[dtc]?frac\s?\{\s?(-?[0-9]+)\s?\}\s?\{\s?([0-9]+)\s?\}", r"\1/\2", text)
        text = re.sub(r"\\[dtc]?frac\s?([0-9])\s?([0-9])(?![0-9])", r"\1/\2", text)
    return text


def last_number(text: str) -> Fraction | None:
    """The last number in `text` with its sign; None where there is none (or it is absurdly long)."""
    text = unify(text)
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    if last is None:
        return None
    value = _value(last)
    return -value if value is not None and _is_negative(text, last.start()) else value


def plain_number(text: str) -> Fraction | None:
    """The number that `text` as a whole stands for, or None where it is anything else.

    Decorations are allowed: currency, percent, units, markup, a sentence around exactly one number ("the total is 18
    dollars"). Operators, variables, several numbers, or words that change the value ("at least 18") are not.
    """
    if len(text) > 2 * _MAX_DIGITS:
        return None
    text = _undecorated(unify(text))
    matches = list(_NUMBER.finditer(text))
    if len(matches) != 1:
        return None
    value = _value(matches[0])
    before, after = text[: matches[0].start()], text[matches[0].end() :]
    if value is None:
        return None
    sign, before = _take_sign(before)
    factor, after = _take_magnitude(after.strip())
    if not _only_words(before) or not _only_unit(after):
        return None
    return sign * factor * value


def canonical(value: Fraction) -> str:
    """One spelling per number: `18`, `-3`, `0.5`, `1/3`."""
    if value.denominator == 1:
        return str(value.numerator)
    rest = value.denominator
    powers = []
    for prime in (2, 5):
        powers.append(0)
        while rest % prime == 0:
            rest //= prime
            powers[-1] += 1
    if rest != 1:
        return str(value)
    places = max(powers)
    digits = str(abs(value) * 10**places).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _value(match: re.Match[str]) -> Fraction | None:
    """The number of a match of `_NUMBER`, without sign."""
    if match.end() - match.start() > _MAX_DIGITS:
        return None
    value = Fraction(re.sub(rf"[,{_SPACE}]", "", match["numerator"]))
    if match["denominator"]:
        value /= int(match["denominator"])
    return value + int(match["whole"]) if match["whole"] else value


def _is_negative(text: str, start: int) -> bool:
    """Whether the minus before the number at `start`, if any, is its sign rather than a subtraction or a dash."""
    before = text[max(0, start - 40) : start].rstrip(_CURRENCY + "\\")
    if before.lower().endswith("negative "):
        return True
    if before.endswith("-"):
        before = before[:-1]
        if before[-1:].isalnum() or before[-1:] in ("-", "_", ")", "]", "}"):
            return False
        ahead = before.rstrip(_SPACE)[-1:]
        return not (ahead.isdigit() or (ahead and ahead in ")]}%"))
    # A minus with space after it is a subtraction or a bullet, unless nothing could stand to its left.
    return re.search(r"[=(]\s*-$", before.rstrip(_SPACE)) is not None


def _undecorated(text: str) -> str:
    """`text` without the markup around a number: math delimiters, emphasis, `\\text{…}`, degrees."""
    text = text.replace("\\$", "$").replace("\\%", "%")
    text = re.sub(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[()\[\]]|\*\*|`|[\"“”]", "", text)
    text = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\circ|\\degree|°", " ", text)
    text = re.sub(r"(?<=[A-Za-z]{2})\s?(?:\^\{?[23]\}?|[²³])", "", text)
    # After a bare number `!` is a factorial.
    text = text.strip().rstrip(".,;:!" if _WORD.search(text) else ".,;:").strip()
    if text.startswith("$") and text.endswith("$") and len(text) > 1:
        text = text.strip("$").strip()
    while text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    return text.rstrip(".,;:").replace("\n", " ")


def _take_sign(before: str) -> tuple[int, str]:
    """The sign at the end of what precedes a number, and the rest."""
    rest = before.rstrip().rstrip(_CURRENCY).rstrip()
    for mark, sign in (("-", -1), ("+", 1)):
        if rest.endswith(mark):
            return sign, rest[:-1].rstrip().rstrip(_CURRENCY)
    lowered = rest.lower()
    for word in ("negative", "minus"):
        if lowered == word or lowered.endswith(f" {word}"):
            return -1, rest[: -len(word)]
    return 1, rest


def _take_magnitude(after: str) -> tuple[int, str]:
    """The factor of words such as `million` right after a number, and the rest."""
    factor = 1
    while (word := _WORD.match(after)) and word[0].lower() in _MAGNITUDES:
        factor *= _MAGNITUDES[word[0].lower()]
        after = after[word.end() :].lstrip()
    return factor, after


def _only_words(text: str) -> bool:
    """Whether `text` is a plain piece of a sentence: no symbols, no one-letter variables, no word of `NOT_PLAIN`."""
    return re.fullmatch(r"[A-Za-z\s,:']*", text) is not None and all(
        (len(word) > 1 or word in ("a", "A", "I")) and word.lower() not in NOT_PLAIN for word in _WORD.findall(text)
    )


def _only_unit(text: str) -> bool:
    """Whether `text` can follow a number without changing it: a percent sign, a unit, the rest of a sentence."""
    text = text.removeprefix("%").strip().lstrip(_CURRENCY)
    text = re.sub(r"(?<=[A-Za-z]{2})[/-](?=[A-Za-z])|[().]", " ", text)
    first_word = _WORD.match(text.lstrip())
    return _only_words(text) and (first_word is None or len(first_word[0]) > 1)
