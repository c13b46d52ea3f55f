"""The configuration reference in docs/ says what the schema says."""

from pathlib import Path

from burnish.config.keys import all_keys
from burnish.config.reference import reference_page

PAGE = Path(__file__).parents[1] / "docs/configuration.md"


def test_committed_reference_is_current() -> None:
    assert PAGE.read_text() == reference_page(), "python -m burnish.config.reference > docs/configuration.md"


def test_every_key_has_its_sentence() -> None:
    for name, key in all_keys().items():
        assert key.sentence.endswith("."), name
