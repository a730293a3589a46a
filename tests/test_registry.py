"""What is registered from outside: entry points of packages, and files that the user names."""

import sys

import pytest

from bertvision.errors import UserError
from bertvision.heads import HEADS, build_head
from bertvision.registry import SOURCES, TASKS, Registry, load_code

HEAD = """
from torch import nn
from bertvision.heads import Head, register

@register("{kind}")
class Mine(Head):
    def __init__(self, layers, width, outputs, *, scale: float = 1.0):
        super().__init__()
        self.readout = nn.Linear(width, outputs)
    def forward(self, states):
        return self.readout(states.layers[:, 0])
"""


@pytest.fixture
def added(monkeypatch):
    for registry in (HEADS, TASKS, SOURCES):
        monkeypatch.setattr(registry, "added", dict(registry.added))


def test_entry_points_of_a_package_are_imported_when_used(tmp_path, monkeypatch):
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = "[bertvision.things]\nfirst = mine_things:First\nbroken = mine_missing:No\n"
    (about / "entry_points.txt").write_text(points)
    (tmp_path / "mine_things.py").write_text("class First:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    things = Registry("thing", {"own": "collections:OrderedDict"})
    assert set(things) == {"own", "first", "broken"} and len(things) == 3
    assert "mine_things" not in sys.modules
    assert things["first"].__name__ == "First" and things["own"].__name__ == "OrderedDict"
    with pytest.raises(UserError, match=r"thing 'broken': mine_missing:No cannot be imported"):
        things["broken"]
    with pytest.raises(UserError, match=r"key: no thing is called 'frist'; did you mean 'first'\?.*--code"):
        things.named("frist", "key")
    with pytest.raises(ValueError, match="two things are called 'first'"):
        things.register("first")(dict)
    things["other"] = dict
    assert "other" in things
    del things["other"]
    assert "other" not in things


def test_a_file_that_the_user_names(tmp_path, added):
    path = tmp_path / "mine.py"
    path.write_text(HEAD.format(kind="from-a-file"))
    load_code(path)
    load_code(path)  # once is enough
    head = build_head({"kind": "from-a-file", "scale": 2}, layers=3, width=8, task="spans")
    assert head.parameter_count() == 18


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no such Python file"),
        ("import no_such_module_at_all", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        (HEAD.format(kind="pool"), "two heads are called 'pool'"),
    ],
)
def test_a_file_that_cannot_be_run(text, says, tmp_path, added):
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=says) as error:
        load_code(path)
    assert str(error.value).startswith(f"--code {path}: ")


def test_tasks_are_found_by_name():
    assert {"spans", "labels", "score", "tokens"} <= set(TASKS)
    assert all(TASKS[name].name == name for name in TASKS)
