"""Writing a definition where FlashInfer-Trace looks for it: `<op_type>/<name>.json`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from kclab.core.definition import Definition


def definition_path(folder: Path, definition: Definition) -> Path:
    """Where a definition lies below a folder of definitions."""
    return folder / definition.op_type / f"{definition.name}.json"


def definition_text(definition: Definition) -> str:
    """The file's content: the body as indented JSON, one final newline."""
    return json.dumps(definition.body, indent=2, ensure_ascii=False) + "\n"


def write_definition(folder: Path, definition: Definition) -> Path:
    """Write the file in one rename, so that a reader never sees half of it."""
    path = definition_path(folder, definition)
    path.parent.mkdir(parents=True, exist_ok=True)
    umask = os.umask(0)
    os.umask(umask)
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(definition_text(definition))
    Path(temporary).chmod(0o666 & ~umask)
    Path(temporary).replace(path)
    return path
