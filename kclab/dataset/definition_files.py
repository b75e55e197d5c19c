"""The definitions that come with a dataset, made to fit kclab's model where that is possible.

FlashInfer's own trace dumps differ from the format they feed: a constant axis may lack its value,
and the reference may be called something other than `run`. Both are put right here; everything
else stays as the file says.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kclab.core.definition import Definition
from kclab.core.errors import DatasetRefused, DefinitionInvalid
from kclab.dataset.paths import contained


def load_definitions(root: Path, extra: Path | None, warnings: list[str]) -> dict[str, Definition]:
    """Definitions by name from `extra`, `root/definitions` and `root/../definitions`.

    The first folder that has a name wins. A file that is no definition adds to `warnings`: the
    rows that need it are refused by name.
    """
    found: dict[str, Definition] = {}
    for folder in (extra, _own_folder(root, warnings), root.parent / "definitions"):
        for path in _files(folder):
            try:
                body = json.loads(path.read_bytes())
                definition = Definition.from_foreign(normalised(body), str(path))
            except (ValueError, RecursionError, DefinitionInvalid) as error:
                text = str(error)
                warnings.append(text if str(path) in text else f"{path}: {text}")
                continue
            found.setdefault(definition.name, definition)
    return found


def _own_folder(root: Path, warnings: list[str]) -> Path | None:
    """`root/definitions`, unless a link makes another place of it."""
    try:
        return contained(root, "definitions")
    except DatasetRefused as error:
        warnings.append(f"{root}: {error} It was left out.")
        return None


def _files(folder: Path | None) -> Iterator[Path]:
    if folder is None or not folder.is_dir():
        return
    for path in sorted(folder.rglob("*.json")):
        try:
            contained(folder, path.relative_to(folder).as_posix())
        except DatasetRefused:
            continue
        if path.is_file():
            yield path


def normalised(body: Any) -> Any:
    """A FlashInfer trace dump as a FlashInfer-Trace definition; any other body as it is."""
    if not isinstance(body, dict):
        return body
    changes = _valued_axes(body.get("axes"))
    tags = body.get("tags")
    if isinstance(tags, list) and any(str(tag).startswith("fi_api:") for tag in tags):
        changes.update(_with_run(body.get("reference")))
    return {**body, **changes} if changes else body


def _valued_axes(axes: Any) -> dict[str, Any]:
    """A constant axis without a value becomes variable: each workload still binds it."""
    if not isinstance(axes, dict):
        return {}
    bare = [
        name
        for name, axis in axes.items()
        if isinstance(axis, dict) and axis.get("type") == "const" and axis.get("value") is None
    ]
    if not bare:
        return {}
    fixed = {
        name: {**{k: v for k, v in axes[name].items() if k != "value"}, "type": "var"}
        for name in bare
    }
    return {"axes": {**axes, **fixed}}


def _with_run(reference: Any) -> dict[str, Any]:
    """A reference whose one public function is not called `run` gets a `run` that calls it."""
    if not isinstance(reference, str):
        return {}
    try:
        tree = ast.parse(reference)
    except (SyntaxError, ValueError):
        return {}
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    public = [name for name in names if not name.startswith("_")] or names
    if "run" in names or len(public) != 1:
        return {}
    wrapper = f"\n\ndef run(*args, **kwargs):\n    return {public[0]}(*args, **kwargs)\n"
    return {"reference": reference.rstrip("\n") + "\n" + wrapper}
