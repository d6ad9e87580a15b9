"""The `[data]` part of a fine-tuning recipe: labelled files and their columns, which evaluation reads too."""

from dataclasses import dataclass, replace

from bothways.text.columns import Columns


@dataclass(frozen=True)
class FinetuneData:
    """The `[data]` part: labelled files."""

    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    """Development data, by which the best model is selected; never trained on."""
    text: str = ""
    """Column of the text, if it has no usual name."""
    pair: str = ""
    """Column of the second text."""
    label: str = ""
    """Column of the label, or of the tags."""
    encoding: str = ""
    """Encoding of the files, such as gb18030. By default UTF-8, or what is guessed."""

    @property
    def columns(self) -> Columns:
        return Columns(self.text or None, self.pair or None, self.label or None)


def with_columns(data: FinetuneData, text: str, pair: str, label: str) -> FinetuneData:
    """The data with these names of columns, where they are not empty."""
    return replace(data, text=text or data.text, pair=pair or data.pair, label=label or data.label)
