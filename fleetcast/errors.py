"""The tree of fleetcast's exceptions.

    FleetcastError
    ├── InvalidInput                 a value from outside that can't be used
    │   ├── InvalidSignal            a scoring signal out of its range
    │   ├── InvalidWeights           a weight that is unknown, negative, not finite, …
    │   ├── InvalidConfiguration     a configuration key that is missing or wrong
    │   ├── UnknownInstanceType      a type that neither EC2's catalogue nor the fleet's knows
    │   ├── InvalidSubjectToken      a name that can't stand in a NATS subject
    │   └── InvalidMessage           bytes that are no wire message
    │       └── UnsupportedMessageVersion
    └── EC2Error                     what an EC2 client is told: code, HTTP status, message
        ├── (client's fault, 4xx)    MissingParameter, InvalidParameterValue, …
        └── (server's fault, 5xx)    InsufficientInstanceCapacity, ServiceUnavailable, InternalError

What only one part raises and handles is a FleetcastError beside its code: lambdas.bus.RegionError,
fleetcast.agent.journal.JournalUnwritable, …
A class owns its EC2 code and HTTP status; only the HTTP edge turns one into XML.
This module is pure: standard library only.
"""

from __future__ import annotations

from typing import ClassVar


class FleetcastError(Exception):
    """The root: catching it catches everything that fleetcast raises on purpose."""


# --- values from outside -------------------------------------------------------------------


class InvalidInput(FleetcastError, ValueError):
    """A value from outside that can't be used. The message says what would be right."""


class InvalidSignal(InvalidInput):
    """A scoring signal that is not a finite number or lies outside its range."""


class InvalidWeights(InvalidInput):
    """Weights that name an unknown signal, are negative or not finite, or don't sum to 1."""


class InvalidConfiguration(InvalidInput):
    """A configuration key that is missing or wrong.

    key: where it stands, e.g. ``regions[1].nats_url``. problem: what is wrong with it.
    expected: what would be right.
    """

    def __init__(self, key: str, problem: str, *, expected: str) -> None:
        self.key = key
        self.problem = problem
        self.expected = expected
        super().__init__(f"{key}: {problem}; expected {expected}")


class UnknownInstanceType(InvalidInput):
    """An instance type that neither EC2's catalogue nor the fleet's own types know."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown instance type {name!r}")


class InvalidSubjectToken(InvalidInput):
    """A region, zone, node or instance type that can't stand in a NATS subject."""


class InvalidMessage(InvalidInput):
    """Bytes that are not a wire message of the expected kind."""


class UnsupportedMessageVersion(InvalidMessage):
    """A wire message of a version that this reader doesn't know."""

    def __init__(self, version: object, *, supported: tuple[int, ...]) -> None:
        self.version = version
        self.supported = supported
        known = ", ".join(str(number) for number in supported)
        super().__init__(f"message version {version!r} is not supported; this reader knows {known}")


# --- what an EC2 client is told ------------------------------------------------------------


class EC2Error(FleetcastError):
    """An error as an EC2 client sees it. Source of codes: EC2 API reference, error codes."""

    code: str = "InternalError"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(f"{self.code}: {message}")


class InvalidAction(EC2Error):
    """The action is not one that this endpoint serves."""

    code = "InvalidAction"
    http_status = 400


class MissingAction(EC2Error):
    """The request doesn't say what to do."""

    code = "MissingAction"
    http_status = 400


class MalformedQueryString(EC2Error):
    """The body is not a form that an EC2 client could have sent."""

    code = "MalformedQueryString"
    http_status = 400


class MissingParameter(EC2Error):
    """A required parameter is absent."""

    code = "MissingParameter"
    http_status = 400

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter
        super().__init__(f"The request must contain the parameter {parameter}")


class UnknownParameter(EC2Error):
    """A parameter that this endpoint doesn't know or doesn't support."""

    code = "UnknownParameter"
    http_status = 400

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter
        super().__init__(f"The parameter {parameter} is not recognized or not supported")


class InvalidParameterValue(EC2Error):
    """A parameter's value is out of range or of the wrong form."""

    code = "InvalidParameterValue"
    http_status = 400


class InvalidParameterCombination(EC2Error):
    """Parameters that contradict each other."""

    code = "InvalidParameterCombination"
    http_status = 400


class InvalidAMIIDMalformed(EC2Error):
    """An image id that is not of the form ami-[0-9a-f]{17} (or the old 8 digits)."""

    code = "InvalidAMIID.Malformed"
    http_status = 400


class InvalidBlockDeviceMapping(EC2Error):
    """A block device mapping that asks for what an instance can't have."""

    code = "InvalidBlockDeviceMapping"
    http_status = 400


class TagLimitExceeded(EC2Error):
    """More tags than a resource can have."""

    code = "TagLimitExceeded"
    http_status = 400


class InvalidInstanceIDMalformed(EC2Error):
    """An instance id that is not of the form i-[0-9a-f]{17} (or the old 8 digits)."""

    code = "InvalidInstanceID.Malformed"
    http_status = 400


class InvalidInstanceIDNotFound(EC2Error):
    """An instance id that this account doesn't have."""

    code = "InvalidInstanceID.NotFound"
    http_status = 400


class InvalidInstanceType(EC2Error):
    """An instance type that no node of the fleet serves."""

    code = "InvalidInstanceType"
    http_status = 400


class IncorrectInstanceState(EC2Error):
    """An instance is in no state for what was asked of it."""

    code = "IncorrectInstanceState"
    http_status = 400


class InvalidReservationIDMalformed(EC2Error):
    """A reservation id that is not of the form r-[0-9a-f]{17} (or the old 8 digits)."""

    code = "InvalidReservationID.Malformed"
    http_status = 400


class InvalidReservationIDNotFound(EC2Error):
    """A reservation id that this account doesn't have."""

    code = "InvalidReservationID.NotFound"
    http_status = 400


class IdempotentParameterMismatch(EC2Error):
    """The ClientToken was used before, with other parameters."""

    code = "IdempotentParameterMismatch"
    http_status = 400


class IdempotentInstanceTerminated(EC2Error):
    """The ClientToken was used before, and its instances have been terminated."""

    code = "IdempotentInstanceTerminated"
    http_status = 400


class DryRunOperation(EC2Error):
    """The request would have succeeded, had it not been a dry run."""

    code = "DryRunOperation"
    http_status = 412


class RefusedByNode(EC2Error):
    """A request that every node would refuse, with the EC2 code that the node gave."""

    http_status = 400

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class InsufficientInstanceCapacity(EC2Error):
    """Every eligible region has said that nobody there has room (never said on less).

    For an instance that is to start again only its own node is eligible.
    """

    code = "InsufficientInstanceCapacity"
    http_status = 500


class InternalError(EC2Error):
    """Something failed on our side; the same request with the same ClientToken may be retried."""

    code = "InternalError"
    http_status = 500


class ServiceUnavailable(EC2Error):
    """A region or a node could not be asked; the same request may be retried."""

    code = "ServiceUnavailable"
    http_status = 503
