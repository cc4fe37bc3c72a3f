"""The read API's client side: signs, asks, and says in words what is wrong.

Whatever goes wrong is a click.ClickException that tells what to do about it.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import botocore.session
import click
import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session
from botocore.parsers import ResponseParserError, create_parser
from botocore.utils import get_environ_proxies

from fleetcast.errors import InvalidReservationIDMalformed
from fleetcast.read_answers import (
    GPU_REQUIRED,
    GPUS,
    INSTANCE_TYPE,
    RECOMMENDATION_PATH,
    SCORES_PATH,
    ErrorAnswer,
    LaunchAnswer,
    RecommendationAnswer,
    ScoresAnswer,
    launch_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")
AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)

NO_CREDENTIALS: Final = (
    "no AWS credentials are configured; give AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)
_TIMEOUT_S: Final = 10
_SIGNED_FOR: Final = "execute-api"
# https://{api}.execute-api.{region}.amazonaws.com
_AWS_HOST: Final = re.compile(r"\.execute-api\.([a-z0-9-]+)\.")
_DEFAULT_REGION: Final = "us-east-1"  # for a host that doesn't say


def api_url_option(command: FunctionT) -> FunctionT:
    """Give a command the option --api-url."""
    return click.option(
        "--api-url",
        envvar="FLEETCAST_API_URL",
        show_envvar=True,
        metavar="URL",
        help="The deployment's API: the stack's output ApiUrl.",
    )(command)


class ReadApi:
    """The read API at a URL, asked with the credentials of the AWS profile."""

    def __init__(self, api_url: str | None) -> None:
        self._url = _checked_url(api_url).rstrip("/")
        self._session = botocore.session.get_session()
        try:
            certificates = self._session.get_config_variable("ca_bundle")
        except BotoCoreError as error:
            raise click.ClickException(f"the AWS profile can't be used: {error}") from error
        self._http = URLLib3Session(
            timeout=_TIMEOUT_S,
            proxies=get_environ_proxies(self._url),
            verify=certificates or True,
        )

    def scores(self, instance_type: str | None) -> ScoresAnswer:
        """Ask for all regions' scores."""
        return self._get(SCORES_PATH, {INSTANCE_TYPE: instance_type}, ScoresAnswer)

    def recommendation(
        self, instance_type: str | None, *, gpus: int, gpu_required: bool
    ) -> RecommendationAnswer:
        """Ask where to launch."""
        query = {
            INSTANCE_TYPE: instance_type,
            GPUS: str(gpus) if gpus else None,
            GPU_REQUIRED: "true" if gpu_required else None,
        }
        return self._get(RECOMMENDATION_PATH, query, RecommendationAnswer)

    def launch(self, reservation_id: str) -> LaunchAnswer:
        """Ask what happened in a launch."""
        try:
            path = launch_path(reservation_id)
        except InvalidReservationIDMalformed as error:
            raise click.ClickException(str(error)) from error
        return self._get(path, {}, LaunchAnswer)

    def _get(self, path: str, query: dict[str, str | None], answer_type: type[AnswerT]) -> AnswerT:
        given = {name: value for name, value in query.items() if value is not None}
        url = self._url + path + (f"?{urlencode(given)}" if given else "")
        try:
            response = self._http.send(self._signed(url).prepare())
            status, body = response.status_code, response.content
        except BotoCoreError as error:
            raise click.ClickException(f"can't reach the API at {self._url}: {error}") from error
        if status != HTTPStatus.OK:
            raise click.ClickException(_refusal(status, body))
        try:
            return msgspec.json.decode(body, type=answer_type)
        except (msgspec.DecodeError, ValueError) as error:
            raise click.ClickException(
                f"{self._url}{path} answered what the read API does not: {error}"
            ) from error

    def _signed(self, url: str) -> AWSRequest:
        request = AWSRequest(method="GET", url=url)
        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise click.ClickException(NO_CREDENTIALS)
            SigV4Auth(credentials, _SIGNED_FOR, self._region()).add_auth(request)
        except BotoCoreError as error:
            raise click.ClickException(f"the AWS credentials can't be used: {error}") from error
        return request

    def _region(self) -> str:
        named = _AWS_HOST.search(urlsplit(self._url).netloc)
        if named:
            return named[1]
        configured: str | None = self._session.get_config_variable("region")
        return configured or _DEFAULT_REGION


def _checked_url(value: str | None) -> str:
    if not value:
        raise click.UsageError(
            "no API is given; set FLEETCAST_API_URL or --api-url to the stack's output ApiUrl"
        )
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise click.UsageError(f"--api-url is {value!r}, which is no http:// or https:// URL")
    return value


def _refusal(status: int, body: bytes) -> str:
    """Say in words why the API refused: the function, or API Gateway by itself."""
    try:
        error = msgspec.json.decode(body, type=ErrorAnswer).error
    except msgspec.DecodeError:
        pass
    else:
        return f"{error.code}: {error.message}"
    return f"the API answered HTTP {status}: {_gateways_words(status, body) or 'no reason given'}"


def _gateways_words(status: int, body: bytes) -> str | None:
    """Return API Gateway's own reason, which a deployment has it write as EC2 does."""
    try:
        words: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        return words.get("message") or words.get("Message")
    except msgspec.DecodeError:
        pass
    try:
        answer = create_parser("ec2").parse(
            {"status_code": status, "headers": {}, "body": body},
            None,  # type: ignore[arg-type] # errors have no shape
        )
    except ResponseParserError:
        return None
    error = answer.get("Error", {})
    # For a page that is no EC2 error, the parser makes one up out of the status.
    if not error.get("Message") or error["Code"] == str(status):
        return None
    return f"{error['Code']}: {error['Message']}"
