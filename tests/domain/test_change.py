"""Change is a new value."""

from dataclasses import dataclass, field

import pytest

from retinue.domain.change import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    first: int
    second: str = "b"
    third: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Careful:
    least: int
    most: int

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError("turned round")


@dataclass
class Open:
    word: str
    number: int = 0


def test_a_copy_has_what_was_said_and_the_rest_as_it_was() -> None:
    before = Many(first=1, third=(1, 2))

    after = replace(before, first=2, second="c")

    assert after == Many(first=2, second="c")
    assert after.third == (1, 2)
    assert before == Many(first=1)
    assert hash(after) == hash(Many(first=2, second="c"))


def test_a_field_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match="Many has no field 'fourth'"):
        replace(Many(first=1), fourth=4)


def test_what_checks_itself_checks_its_copies_too() -> None:
    assert replace(Careful(1, 2), most=3) == Careful(1, 3)
    with pytest.raises(ValueError, match="turned round"):
        replace(Careful(1, 2), most=0)


def test_values_of_any_making_are_copied() -> None:
    assert replace(Open("a"), number=3) == Open("a", 3)
