"""lambdas.attribute_values against boto3's serializer, which DynamoDB's users rely on."""

from decimal import Decimal

import pytest
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from hypothesis import given
from hypothesis import strategies as st

from lambdas.attribute_values import decode_item, decode_value, encode_item, encode_value

finite_floats = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
scalars = st.none() | st.booleans() | st.integers(-(10**37), 10**37) | st.text() | st.binary()
values = st.recursive(
    scalars,
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(values)
def test_a_value_is_encoded_as_boto3_encodes_it(value: object) -> None:
    assert encode_value(value) == TypeSerializer().serialize(value)


@given(values)
def test_a_value_survives_the_round_trip(value: object) -> None:
    assert decode_value(encode_value(value)) == value


@given(finite_floats)
def test_a_float_survives_the_round_trip_exactly(number: float) -> None:
    assert decode_value(encode_value(number)) == number


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=4))
def test_a_number_that_boto3_wrote_reads_as_the_same_number(number: Decimal) -> None:
    assert decode_value(TypeSerializer().serialize(number)) == float(number)


@given(st.floats(-1e9, 1e9).filter(lambda number: number == 0 or abs(number) > 1e-9))
def test_boto3_reads_a_float_that_was_written_here(number: float) -> None:
    assert float(TypeDeserializer().deserialize(encode_value(number))) == number


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        encode_item({"score": number})


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j])
def test_a_value_without_an_attribute_value_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no DynamoDB attribute value"):
        encode_value(value)


def test_an_attribute_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="SS"):
        decode_item({"names": {"SS": ["a"]}})
