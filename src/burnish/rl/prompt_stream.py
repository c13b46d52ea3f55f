"""Where the next prompts of a run come from: rows in shuffled order, checked, tokenized, too long ones dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.errors import UserError
from burnish.rollout.records import Prompt
from burnish.tasks import GoldChecker, Row, row_index
from burnish.text.tokenizer import ChatTokenizer


@dataclass
class PromptStream:
    """An endless stream of prompts. `position`, `dropped` and the gold checker's counts are its whole state."""

    rows: Sequence[Row]
    tokenizer: ChatTokenizer
    gold: GoldChecker
    seed: int
    max_prompt_tokens: int
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    position: int = 0
    """Rows looked at so far, over all epochs."""
    dropped: int = 0
    """Rows passed over because their prompt was longer than `max_prompt_tokens`."""

    def take(self, count: int, first_group: int = 0) -> list[tuple[Prompt, Row]]:
        """The next `count` prompts, in groups numbered from `first_group`.

        Raises:
            UserError: if a whole epoch holds no prompt that is short enough.
            RunStopped: if too many gold answers fail their own grader.
        """
        taken: list[tuple[Prompt, Row]] = []
        fruitless = 0
        while len(taken) < count:
            if fruitless >= len(self.rows):
                raise UserError(
                    f"none of the task's {len(self.rows)} training prompts can be used: they are longer than "
                    f"rollout.max_prompt_tokens={self.max_prompt_tokens} or their gold answers fail; "
                    "raise rollout.max_prompt_tokens"
                )
            wanted = count - len(taken)
            looked_at = [
                self.rows[row_index(self.position + offset, len(self.rows), self.seed)] for offset in range(wanted)
            ]
            self.position += wanted
            before = len(taken)
            for row in self.gold.keep(looked_at):
                ids = self.tokenizer.encode_chat(row.messages, **self.chat_template_kwargs)
                if len(ids) > self.max_prompt_tokens:
                    self.dropped += 1
                    continue
                taken.append((Prompt(row.id, first_group + len(taken), tuple(ids)), row))
            fruitless = fruitless + wanted if len(taken) == before else 0
        return taken

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps (JSON)."""
        return {
            "position": self.position,
            "dropped": self.dropped,
            "gold_checked": self.gold.checked,
            "gold_failures": dict(self.gold.failures),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.position, self.dropped = state["position"], state["dropped"]
        self.gold.checked, self.gold.failures = state["gold_checked"], dict(state["gold_failures"])
