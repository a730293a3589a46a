"""Reports of runs. TEMPLATES: the folder of templates; TEXTS: texts and lists of numbers to show."""

import tomllib
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).with_name("templates")
TEXTS: dict[str, Any] = tomllib.loads((TEMPLATES / "texts.toml").read_text(encoding="utf-8"))
