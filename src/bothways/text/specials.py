"""Special tokens: their names, and their places around a text where a tokenizer's files do not define them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors
from tokenizers.pre_tokenizers import ByteLevel

from bothways.errors import BothwaysError

# The names of each special token, BERT's first. The roles are those of special_tokens_map.json.
ROLES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def add_specials(backend: tokenizers.Tokenizer, source: Path, *, space: bool = False) -> tokenizers.Tokenizer:
    """Add [CLS] text [SEP] text [SEP] where the vocabulary has these, else RoBERTa's <s> text </s></s> text </s>.

    `space`: whether a byte-level tokenizer reads a text as if after a space.
    """
    ids = {name: backend.token_to_id(name) for names in ROLES.values() for name in names}
    is_byte_level = isinstance(backend.pre_tokenizer, ByteLevel)
    if ids["[CLS]"] is not None and ids["[SEP]"] is not None:
        template = bert_template(ids["[CLS]"], ids["[SEP]"])
        backend.post_processor = processors.Sequence([processors.ByteLevel(), template]) if is_byte_level else template
    elif ids["<s>"] is None or ids["</s>"] is None:
        raise BothwaysError(
            f"{source} has neither [CLS] and [SEP] nor <s> and </s> to put around a text", "no-specials", source
        )
    elif is_byte_level:
        ends = ("</s>", ids["</s>"]), ("<s>", ids["<s>"])
        backend.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=space)
    else:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> </s> $B </s>",
            special_tokens=[(name, ids[name]) for name in ("<s>", "</s>")],
        )
    # In byte-level BPE the space before a word belongs to it, so the mask replaces that space too.
    spaced = ROLES["mask_token"] if is_byte_level else ()
    known = [name for name, number in ids.items() if number is not None]
    backend.add_special_tokens([AddedToken(n, lstrip=n in spaced, special=True, normalized=False) for n in known])
    return backend


def bert_template(cls: int, sep: int) -> processors.TemplateProcessing:
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP] in two segments, with these ids."""
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )


def content_of(token: Any) -> str:
    """The text of a special token, which is a string or an object with its `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise BothwaysError(f"a special token should be a text or have a content, not {token!r}", "bad-setting", token)
    return content


def switch(settings: Mapping[str, Any], name: str, default: bool, folder: Path) -> bool:
    """A boolean setting of tokenizer_config.json."""
    value = settings.get(name, default)
    if not isinstance(value, bool):
        raise BothwaysError(f"{folder}: {name} should be true or false, not {value!r}", "bad-setting", name)
    return value
