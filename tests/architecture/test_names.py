"""Naming rules for functions and docstrings, with their word lists as data."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "src" / "retinue", ROOT / "bench"]
WORDS = tomllib.loads(Path(__file__).with_name("naming_words.toml").read_text(encoding="utf-8"))
MAX_PARTICIPLE_SHARE = 0.02
MAX_ONE_WORD_SHARE = 0.30
MAX_EMPTY_VERB_SHARE = 0.04
MAX_MODULES_PER_WORD = 6
"""A one-word function name in more modules than this means several things."""
MAX_PRONOUN_DOCSTRINGS = 20

DEFINITION = re.compile(r"^\s*(?:async def|def|class) (\w+)", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> list[tuple[str, ast.Module]]:
    return [(name, ast.parse(source)) for name, source in read_sources(SOURCES)]


@cache
def suspicious_modules() -> list[tuple[str, ast.Module]]:
    """Parse every module, tests included, with a name that may break a rule. Parsing all of them would take seconds."""
    return [
        (path, ast.parse(source))
        for path, source in read_sources([*SOURCES, ROOT / "tests"])
        if any(
            is_participle(name) or old_words_in(name)
            for name in [Path(path).stem, *DEFINITION.findall(source)]
        )
    ]


def read_sources(folders: list[Path]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if "peers" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def functions(tree: ast.Module) -> Iterator[tuple[Function, bool]]:
    """Yield every function that is not a property or a special method, and whether it is at module level."""
    top_level = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("__") and not is_property(node):
            yield node, id(node) in top_level


def is_property(node: Function) -> bool:
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def is_participle(name: str) -> bool:
    return all(
        word in WORDS["irregular_participles"]
        or (bool(re.fullmatch(r"\w+ed", word)) and word not in WORDS["not_participles"])
        for word in name.strip("_").split("_")
    )


def old_words_in(name: str) -> set[str]:
    """Return the old words in a name in snake case or camel case."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
    return set(words) & set(WORDS["old_words"])


def bare_participles(path: str, tree: ast.Module) -> list[str]:
    found = sorted((node.lineno, node.name) for node, _ in functions(tree) if is_participle(node.name))
    return [f"{path}:{line} {name}" for line, name in found]


def names_with_old_words(path: str, tree: ast.Module) -> list[str]:
    """Return every module, class and function whose name contains an old word, with its place."""
    definitions = [node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef)]
    names = [(1, Path(path).stem), *sorted((node.lineno, node.name) for node in definitions)]
    return [f"{path}:{line} {name}" for line, name in names if old_words_in(name)]


def opens_with_pronoun(docstring: str) -> bool:
    return bool(re.match(rf"({'|'.join(WORDS['pronouns'])})\b", docstring))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("told", True),
        ("_kept", True),
        ("allowed", True),
        ("allowed_paths", False),
        ("is_hidden", False),
        ("feed", False),
    ],
)
def test_a_bare_participle_is_recognised(name: str, expected: bool):
    assert is_participle(name) is expected


def test_function_names_are_verbs_or_nouns_and_hardly_ever_bare_participles():
    found = [(path, node.name) for path, tree in modules() for node, _ in functions(tree)]
    participles = [each for each in found if is_participle(each[1])]
    assert len(participles) <= MAX_PARTICIPLE_SHARE * len(found), participles


SAMPLE = """\
class GuestProcess:
    @property
    def told(self): ...
    async def _kept(self):
        def wait_for_guests(): ...

@pytest.fixture
def ended(): ...
def ended_runs(): ...
def test_a_wish_is_saved(): ...
"""


def test_each_bad_name_is_reported_with_its_file_and_line():
    tree = ast.parse(SAMPLE)
    assert bare_participles("tests/vigil.py", tree) == ["tests/vigil.py:4 _kept", "tests/vigil.py:8 ended"]
    assert names_with_old_words("tests/vigil.py", tree) == [
        "tests/vigil.py:1 vigil",
        "tests/vigil.py:1 GuestProcess",
        "tests/vigil.py:3 told",
        "tests/vigil.py:5 wait_for_guests",
        "tests/vigil.py:10 test_a_wish_is_saved",
    ]


def test_no_function_in_tests_is_named_with_a_bare_participle():
    tests = [(path, tree) for path, tree in suspicious_modules() if path.startswith("tests/")]
    found = [place for path, tree in tests for place in bare_participles(path, tree)]
    assert not found, "\n".join(found)


def test_no_name_contains_a_word_of_the_old_vocabulary():
    found = [place for path, tree in suspicious_modules() for place in names_with_old_words(path, tree)]
    assert not found, "\n".join(found)


def test_most_functions_of_a_module_have_more_than_one_word():
    names = [node.name for _, tree in modules() for node, is_top in functions(tree) if is_top]
    one_word = [name for name in names if "_" not in name.strip("_")]
    assert len(one_word) <= MAX_ONE_WORD_SHARE * len(names), sorted(set(one_word))


def test_function_names_do_not_start_with_empty_verbs():
    names = [node.name for _, tree in modules() for node, _ in functions(tree)]
    empty = [name for name in names if name.strip("_").split("_")[0] in WORDS["empty_verbs"]]
    assert len(empty) <= MAX_EMPTY_VERB_SHARE * len(names), sorted(set(empty))


def test_one_word_names_are_not_shared_by_many_modules():
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in modules():
        for node, is_top in functions(tree):
            name = node.name.strip("_")
            if is_top and "_" not in name and name not in WORDS["common_words"]:
                homes[name].add(path)
    assert {name: sorted(paths) for name, paths in homes.items() if len(paths) > MAX_MODULES_PER_WORD} == {}


def test_docstrings_open_with_what_they_are_about():
    riddles = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, Function | ast.ClassDef) and opens_with_pronoun(ast.get_docstring(node) or "")
    ]
    assert len(riddles) <= MAX_PRONOUN_DOCSTRINGS, riddles


def test_module_names_can_be_guessed():
    assert [path for path, _ in modules() if Path(path).stem in WORDS["empty_module_names"]] == []
