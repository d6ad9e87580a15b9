"""bothways models"""

from bothways.cli.options import PrintJson
from bothways.cli.output import print_json, print_table


def models(as_json: PrintJson = False) -> None:
    """List the included models: languages, size, what they do, main score.

    An encoder is named by --model, and its tasks by --task.

    Example: bothways models
    """
    from bothways.model.box import boxed_models

    found = boxed_models()
    if as_json:
        keys = ("name", "task", "base", "languages", "about", "score", "size")
        print_json([{key: getattr(one, key) for key in keys} | {"folder": str(one.folder)} for one in found])
        return
    rows = [
        (
            f"  --task {one.task}" if one.base else one.name,
            ", ".join(one.languages),
            f"{one.size / 1e6:.1f} MB",
            one.about,
            one.score,
        )
        for one in found
    ]
    print_table(("model", "languages", "size", "what it does", "score"), rows, right=("size",))
