"""A text as tokens."""

from dataclasses import dataclass

import tokenizers

TextInput = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text, or one pair of texts, as tokens. All lists have one entry per token."""

    raw: tokenizers.Encoding
    cut: int = 0
    """The number of tokens cut off; 0 unless `long="cut"`."""

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def ids(self) -> list[int]:
        """Token ids; Hugging Face: input_ids."""
        return self.raw.ids

    @property
    def segments(self) -> list[int]:
        """0 for the first text, 1 for the second; Hugging Face: token_type_ids."""
        return self.raw.type_ids

    @property
    def pieces(self) -> list[str]:
        """The tokens as strings, such as ##ing."""
        # The library shows a mask that includes the space before it with that space.
        return [piece.strip(" ") or piece for piece in self.raw.tokens]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """The span of each token in its own original text: text[start:end]. (0, 0) for special tokens."""
        return self.raw.offsets

    @property
    def words(self) -> list[int | None]:
        """The index of the word of each token, in its own text; None for special tokens."""
        return self.raw.word_ids

    @property
    def sources(self) -> list[int | None]:
        """0 for the first text, 1 for the second, None for special tokens."""
        return self.raw.sequence_ids
