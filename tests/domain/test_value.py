"""Values are made quickly, and are dataclasses like all others."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from retinue.domain.change import replace
from retinue.domain.value import value

T = TypeVar("T")


@value
class Word:
    """Said by somebody."""

    text: str
    by: str = "me"
    marks: list[int] = dataclasses.field(default_factory=list[int])
    weight: float = dataclasses.field(default=1.0, compare=False)


@value
class Loud(Word):
    shouts: int = 1


@value
class Careful:
    least: int = 0
    most: int = 1

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError("turned round")


@value
class Pair(Generic[T]):
    first: T
    second: T


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Said by somebody."""

    text: str
    by: str = "me"
    marks: list[int] = dataclasses.field(default_factory=list[int])
    weight: float = dataclasses.field(default=1.0, compare=False)


def test_it_has_what_it_was_given_and_what_goes_without_saying() -> None:
    one, other = Word(text="a"), Word(text="a", by="you", marks=[1], weight=2.0)

    assert (one.text, one.by, one.marks, one.weight) == ("a", "me", [], 1.0)
    assert (other.text, other.by, other.marks, other.weight) == ("a", "you", [1], 2.0)
    assert one.marks is not Word(text="a").marks


def test_it_is_the_dataclass_that_it_would_have_been() -> None:
    one, slow = Word(text="a"), Slow(text="a")

    assert repr(one) == repr(slow).replace("Slow", "Word")
    assert dataclasses.asdict(one) == dataclasses.asdict(slow)
    assert [each.name for each in dataclasses.fields(Word)] == [
        each.name for each in dataclasses.fields(Slow)
    ]
    assert list(inspect.signature(Word).parameters) == list(inspect.signature(Slow).parameters)
    assert one == Word(text="a", weight=3.0)
    assert one != slow
    assert not hasattr(one, "__dict__")
    assert dataclasses.replace(one, by="you") == replace(one, by="you") == Word(text="a", by="you")
    assert copy.deepcopy(one) == copy.copy(one) == pickle.loads(pickle.dumps(one)) == one
    assert msgspec.json.decode(msgspec.json.encode(one), type=Word) == one


def test_nothing_changes_it_afterwards() -> None:
    one: Any = Word(text="a")

    with pytest.raises(dataclasses.FrozenInstanceError):
        one.text = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.text
    assert type(one) is Word


def test_what_is_missing_or_unknown_is_said() -> None:
    made: Any = Word

    with pytest.raises(
        TypeError, match=r"Word\.__init__\(\) missing 1 required keyword-only argument: 'text'"
    ):
        made()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        made(text="a", colour="red")
    with pytest.raises(TypeError, match="positional"):
        made("a")


def test_what_inherits_has_all_of_it() -> None:
    loud = Loud(text="a", shouts=3)

    assert (loud.text, loud.by, loud.shouts, type(loud)) == ("a", "me", 3, Loud)
    assert replace(loud, text="b") == Loud(text="b", shouts=3)


def test_a_dataclass_of_another_making_inherits_it() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Written(Word):
        by_hand: bool = True

    assert Written(text="a").by_hand
    assert Written(text="a") == Written(text="a", by_hand=True)


def test_a_kind_that_somebody_derived_plainly_makes_its_own() -> None:
    class Slotted(Word):
        __slots__ = ()

    class Open(Word):
        pass

    for kind in (Slotted, Open):
        made = kind(text="a")
        assert (type(made), made.text, made.by) == (kind, "a", "me")
        assert made == kind(text="a") != kind(text="b")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, "text", "b")  # noqa: B010  (nobody may write it as an assignment)


def test_what_checks_itself_does_so_when_it_is_whole() -> None:
    assert Careful(most=3).most == 3
    with pytest.raises(ValueError, match="turned round"):
        Careful(least=2)


def test_a_kind_of_other_kinds_is_made_and_changed() -> None:
    one = Pair[int](first=1, second=2)

    assert one == Pair(first=1, second=2)
    assert replace(one, second=3) == Pair(first=1, second=3)


def test_one_of_nothing_is_a_value_too() -> None:
    @value
    class Nothing:
        pass

    assert Nothing() == Nothing()
    assert repr(Nothing()).endswith("Nothing()")


def test_values_without_lists_are_hashed_by_what_they_hold() -> None:
    assert hash(Careful(most=3)) == hash(Careful(most=3))
    assert len({Careful(most=3), Careful(most=3), Careful(most=4)}) == 2


def test_what_nobody_gives_is_found_by_the_value_itself() -> None:
    @value
    class Found:
        text: str
        seen: list[str] = dataclasses.field(init=False, default_factory=list[str])
        times: int = dataclasses.field(init=False, default=1)
        length: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.text))

    one = Found(text="abc")

    assert (one.seen, one.times, one.length) == ([], 1, 3)
    assert list(inspect.signature(Found).parameters) == ["text"]
