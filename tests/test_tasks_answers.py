"""Answer extraction: the answer that a person would read is the one that is graded, and no other."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.tasks.answers import extract_answer, is_name, normalise_answer
from burnish.tasks.math_grading import compare_plainly, compare_symbolically, grade_math, grade_plainly
from burnish.tasks.numbers import canonical, last_number, plain_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{\frac{1}{2}} and then \boxed{x^{2}+1}.", "x^{2}+1"),
        (r"\boxed{unfinished, \boxed{18}", "18"),
        (r"\boxed{a \boxed{7}}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {5} and \boxed{6", "5"),
        ("<answer>17</answer> no, <answer> 18 </answer>", "18"),
        ("I write <answer> twice: <answer>18</answer>", "18"),
        ("<answer>18</answer> stray </answer>", "18"),
        ("<ANSWER>18</ANSWER>", "18"),
        (r"\boxed{3} <answer>4</answer>", "4"),
        (r"<answer>\boxed{4}</answer> \boxed{3}", "4"),
        ("3 apples and 4 pears make 7.", "7"),
        ("<answer>5 and no closing tag", "5"),
        ("no number at all", None),
        ("I had 3 <answer></answer>", None),
        (r"3 \boxed{ }", None),
        ("", None),
    ],
)
def test_extraction_takes_the_last_tag_else_the_last_balanced_box_else_the_last_number(
    text: str, answer: str | None
) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10 000", "10000"),
        ("10,000", "10000"),
        ("10\u202f000", "10000"),
        ("1,234,567.5", "2469135/2"),
        (r"10{,}000", "10000"),
        (r"10\,000", "10000"),
        ("50 percent", "50"),
        ("50%", "50"),
        (r"50\%", "50"),
        ("the total is 18 dollars", "18"),
        ("The answer is 18.", "18"),
        ("$18.00", "18"),
        (r"\$18", "18"),
        ("-$18", "-18"),
        ("$-18", "-18"),
        ("-3", "-3"),
        ("\u22123", "-3"),
        ("negative 3", "-3"),
        ("+3", "3"),
        (".5", "1/2"),
        ("5.", "5"),
        ("1/2", "1/2"),
        ("-1/2", "-1/2"),
        ("1 1/2", "3/2"),
        (r"\frac{1}{2}", "1/2"),
        (r"-\dfrac{3}{4}", "-3/4"),
        (r"\frac12", "1/2"),
        (r"2\frac{1}{2}", "5/2"),
        (r"$18$", "18"),
        (r"\(18\)", "18"),
        ("**18**", "18"),
        (r"18\text{ dollars}", "18"),
        ("18 dollars a day", "18"),
        ("18kg", "18"),
        ("60 miles/hour", "60"),
        (r"90^\circ", "90"),
        ("12 cm^2", "12"),
        ("2 million", "2000000"),
        ("1e6", "1000000"),
        ("-1000000", "-1000000"),
    ],
)
def test_a_decorated_number_is_read_exactly(text: str, number: str) -> None:
    assert plain_number(text) == Fraction(number)


@pytest.mark.parametrize(
    "text",
    ["17 = 18", "18x", "18 x", "2pi", "17 apples and 18 pears", "at least 18", "18 or so", "3-2", "2^3", "3!",
     r"\sqrt{4}", "x", "", "9" * 5000, "1e99999", "half of 18", "1/0"],
)  # fmt: skip
def test_what_is_not_one_number_is_not_read_as_one(text: str) -> None:
    assert plain_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5 + 4 = 9.", "9"),
        ("10 - 3", "3"),
        ("10-3", "3"),
        ("10 -3", "3"),
        ("pages 12–15", "15"),
        ("GPT-4", "4"),
        ("x = -3", "-3"),
        ("= - 3", "-3"),
        ("the answer is -3.", "-3"),
        ("- 3 apples", "3"),
        ("(-5)", "-5"),
        ("3 * (-2) = -6", "-6"),
        ("that is 3/4 = 0.75", "3/4"),
        ("12,345.67!", "1234567/100"),
        ("7 + 123 = 130", "130"),
        ("1, 2, 3", "3"),
    ],
)
def test_the_last_number_has_its_own_sign_and_not_a_subtraction(text: str, number: str) -> None:
    assert last_number(text) == Fraction(number)


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("x = 18", "18", True),
        ("y = x = 18", "18", True),
        ("18 = x", "18", True),
        ("the total = $18", "18", True),
        (r"\text{Total} = 18", "18", True),
        ("x_1 = 18", "18", True),
        ("17 = 18", "18", False),
        ("18 = 17", "18", False),
        ("17 = 18", "17", False),
        ("x = 17 = 18", "18", False),
        ("18", "x = 18", True),
        ("17", "18", False),
        ("50%", "50", True),
        ("0.5", r"\frac{1}{2}", True),
        ("1 1/2", "11/2", False),
        ("-1000000", "-1000000", True),
        ("I do not know", "18", False),
        ("17 apples and 18 pears", "18", False),
        ("Monday", "monday", True),
        (r"\dfrac{x}{2}", r"\frac{x}{2}", True),
        ("17 + 1", "18", None),
        (r"2\sqrt{3}", r"\sqrt{12}", None),
    ],
)
def test_plain_comparison_decides_what_needs_no_algebra(answer: str, gold: str, equal: bool | None) -> None:
    assert compare_plainly(answer, gold) is equal


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        (r"\sqrt{13}", r"\sqrt{12}", False),
        ("1 + x^2", "x^2 + 1", True),
        ("y = 1 + x^2", "x^2+1", True),
        ("3 + 4 = 7", "7", True),
        ("3 + 5 = 7", "7", False),
        ("x + 1 = 18", "18", False),
        ("2x = 18", "18", False),
        (r"\frac{36}{2}", "18", True),
        (r"\{2, 1\}", r"\{1, 2\}", True),
        ("(2, 1)", "(1, 2)", False),
        ("y^2 + x^2 = 1", "x^2+y^2=1", True),
    ],
)
def test_symbolic_comparison_counts_an_equation_only_if_no_side_says_something_else(
    answer: str, gold: str, equal: bool
) -> None:
    assert compare_symbolically(answer, gold) is equal


def test_completions_that_score_zero_elsewhere_score_one() -> None:
    completions = {
        r"\boxed{42}": "42",
        "<answer>10 000</answer>": "10000",
        "<answer>50 percent</answer>": "50",
        "<answer>the total is 18 dollars</answer>": "18",
        r"It is $\boxed{-1000000}$.": "-1000000",
        "So she has 18 dollars.": "18",
    }
    assert {text: grade_plainly(text, gold) for text, gold in completions.items()} == dict.fromkeys(completions, 1.0)
    assert grade_math("<answer>17 = 18</answer>", "18") == 0.0
    assert grade_math("nothing", "-1000000") == 0.0


@pytest.mark.parametrize("name", ["x", "x_1", "f(x)", r"\theta", "the total", r"\text{cost}", "AB", " x "])
def test_names_are_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("side", ["x + 1", "-x", "2x", "17", r"\pi", r"\sqrt{x}", "sin x", "", "not x"])
def test_expressions_are_no_names(side: str) -> None:
    assert not is_name(side)


def test_equal_answers_are_equal_votes() -> None:
    assert (
        len({normalise_answer(text) for text in ["0.5", "1/2", r"\frac{1}{2}", "$0.50", "x = 1/2", ".5", "50e-2"]}) == 1
    )
    assert normalise_answer(r"\left( x,  y \right)") == normalise_answer("(x,y)")
    assert normalise_answer("Yes.") == normalise_answer("yes")
    assert normalise_answer("1 1/2") != normalise_answer("11/2")


@given(st.fractions(max_denominator=10**6))
def test_every_number_survives_its_canonical_spelling(value: Fraction) -> None:
    assert plain_number(canonical(value)) == value
    assert last_number(f"The answer is {canonical(value)}.") == value
    assert normalise_answer(canonical(value)) == canonical(value)


@given(
    st.integers(min_value=-(10**12), max_value=10**12), st.sampled_from([",", " ", "\u00a0", "\u202f", "{,}", r"\,"])
)
def test_grouped_thousands_are_one_number(value: int, separator: str) -> None:
    grouped = f"{value:,}".replace(",", separator)
    assert plain_number(grouped) == value
    assert extract_answer(f"<answer>{grouped} dollars</answer>") == f"{grouped} dollars"
    assert grade_plainly(f"<answer>{grouped} dollars</answer>", str(value)) == 1.0


@given(st.text(alphabet=r"0123456789 ,./-+=$\{}()[]<>answerboxdfct%^_'" + "\n−½", max_size=60), st.integers(0, 99))
def test_no_text_makes_plain_grading_raise(text: str, gold: int) -> None:
    assert grade_plainly(text, str(gold)) in (None, 0.0, 1.0)
    answer = extract_answer(text)
    assert answer is None or isinstance(normalise_answer(answer), str)


@pytest.mark.parametrize(
    "piece",
    ["9", "9 ", "1,", "1,000,", r"\boxed{", "<answer>", "</answer>", "a", "a ", "{", r"\frac{1}", "1/", "-", "x=", "$"],
)  # fmt: skip
def test_the_longest_completions_are_read_in_linear_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    text += "}" * text.count("{")
    started = time.process_time()
    grade_plainly(text, "18")
    grade_plainly(f"<answer>{text}</answer>", "18")
    normalise_answer(text)
    assert time.process_time() - started < 3.0
