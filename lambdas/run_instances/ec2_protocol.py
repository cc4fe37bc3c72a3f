"""EC2's Query protocol, both ways: form bodies in, XML documents out.

What there is to read and write is in ec2_model.json (made by ``python -m infra.ec2_model``).
The reader takes any ``Version``; the writer answers in the model's. Pure: text in, text out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl
from xml.etree.ElementTree import Element, SubElement, tostring

import msgspec

from fleetcast.errors import InvalidAction, MalformedQueryString, MissingAction
from lambdas.run_instances.ec2_shapes import Field, Structure, legal_in_xml

if TYPE_CHECKING:
    from fleetcast.errors import EC2Error

MAX_BODY_BYTES: Final = 1 << 20
_MAX_FIELDS: Final = 10_000
_MAX_NAME_CHARACTERS: Final = 255
_SHOWN_CHARACTERS: Final = 100  # of what a client sent, in a message
_DECLARATION: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'


class _Action(msgspec.Struct, frozen=True):
    input: Structure
    output: Structure


class _Model(msgspec.Struct, frozen=True):
    version: str
    actions: dict[str, _Action]


_MODEL: Final = msgspec.json.decode(
    Path(__file__).with_name("ec2_model.json").read_bytes(),
    type=_Model,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for.

    parameters: by the names of EC2's API reference (`InstanceIds`, not `InstanceId.1`), typed as
    the model says. Kept out of the repr: user data is among them.
    """

    action: str
    parameters: dict[str, object] = field(repr=False)


def decode_request(body: str) -> Request:
    """Read a form body, or the query string of a GET.

    Raises EC2Error and nothing else, whatever the body holds: MalformedQueryString for what is
    no form, MissingAction, InvalidAction, and what the parameters' shapes raise.
    """
    texts = _form(body)
    name = texts.pop("Action", "")
    if not name:
        raise MissingAction("The request is missing an action")
    action = _MODEL.actions.get(name)
    if action is None:
        raise InvalidAction(
            f"The action {name[:_SHOWN_CHARACTERS]} is not valid for this web service."
        )
    fields = [
        Field(name, tuple(name.split(".")), text)
        for name, text in texts.items()
        if name != "Version" and not name.startswith("X-Amz-")  # a presigned URL's signature
    ]
    return Request(action=name, parameters=action.input.decode(fields))


def encode_response(action: str, result: dict[str, object], *, request_id: str) -> str:
    """Write the answer to a served action; members of the result that are None are left out.

    Raises KeyError or TypeError if the result doesn't fit the model.
    """
    namespace = f"http://ec2.amazonaws.com/doc/{_MODEL.version}/"
    root = Element(f"{action}Response", xmlns=namespace)
    SubElement(root, "requestId").text = request_id
    _MODEL.actions[action].output.encode(root, result)
    return _DECLARATION + tostring(root, encoding="unicode")


def encode_error(error: EC2Error, *, request_id: str) -> str:
    """Write an error as EC2 clients expect it."""
    root = Element("Response")
    fault = SubElement(SubElement(root, "Errors"), "Error")
    SubElement(fault, "Code").text = error.code
    SubElement(fault, "Message").text = legal_in_xml(error.message)
    SubElement(root, "RequestID").text = request_id
    return _DECLARATION + tostring(root, encoding="unicode")


def _form(body: str) -> dict[str, str]:
    """Return the fields of a form body; each may stand there once."""
    try:
        if len(body.encode()) > MAX_BODY_BYTES:
            raise MalformedQueryString(f"The request is larger than {MAX_BODY_BYTES} bytes")
        pairs = parse_qsl(
            body,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError as error:  # also what is no UTF-8
        raise MalformedQueryString("The request is not a form of names and values") from error
    texts = dict(pairs)
    if len(texts) < len(pairs):
        raise MalformedQueryString("A parameter appears more than once")
    if any(len(name) > _MAX_NAME_CHARACTERS for name in texts):
        raise MalformedQueryString(
            f"A parameter's name is longer than {_MAX_NAME_CHARACTERS} characters"
        )
    return texts
