"""Change is a new value."""

from dataclasses import FrozenInstanceError, dataclass, field

import pytest

from retinue.domain.change import maker, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    first: int
    second: str = "b"
    third: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class More(Many):
    fourth: float = 0.5


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


def test_what_is_of_a_kind_of_another_is_copied_whole_and_stays_as_it_is() -> None:
    after = replace(More(first=1, third=(1,)), second="c", fourth=1.5)

    assert type(after) is More
    assert after == More(first=1, second="c", fourth=1.5)
    assert after.third == (1,)
    for value in (after, replace(Many(first=1), first=2)):
        with pytest.raises(FrozenInstanceError):
            value.first = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_a_field_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match="Many has no field 'fourth'"):
        replace(Many(first=1), fourth=4)


def test_what_checks_itself_checks_its_copies_too() -> None:
    assert replace(Careful(1, 2), most=3) == Careful(1, 3)
    with pytest.raises(ValueError, match="turned round"):
        replace(Careful(1, 2), most=0)


def test_values_of_any_making_are_copied() -> None:
    assert replace(Open("a"), number=3) == Open("a", 3)


def test_a_value_can_be_made_of_all_its_fields_in_their_order() -> None:
    made = maker(More)([1, "c", (1,), 1.5])

    assert type(made) is More
    assert made == More(first=1, second="c", fourth=1.5)
    assert made.third == (1,)
    with pytest.raises(FrozenInstanceError):
        made.first = 3  # pyright: ignore[reportAttributeAccessIssue]
    for facts in ([1, "c", (1,)], [1, "c", (1,), 1.5, 7]):
        with pytest.raises(ValueError, match="values to unpack"):
            maker(More)(facts)


def test_what_checks_itself_is_not_made_without_that() -> None:
    with pytest.raises(TypeError, match="Careful is made the long way"):
        maker(Careful)
