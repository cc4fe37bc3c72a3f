"""How the calls of a sweep reach AWS: connections whose certificates are loaded once.

botocore loads its bundle of certificates for each new connection. That is most of what connecting
costs, and a cold sweep of ten regions connects some 130 times. Source: ADR 0009.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import botocore.exceptions
import botocore.session
import urllib3
import urllib3.exceptions
from botocore.awsrequest import AWSResponse
from botocore.httpsession import create_urllib3_context, get_cert_path
from botocore.utils import get_environ_proxies

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest

MAX_HOSTS: Final = 1024
MAX_IDLE_A_HOST: Final = 128

# What botocore makes of urllib3's errors: its retries go by them.
_ERRORS: Final = (
    (urllib3.exceptions.SSLError, botocore.exceptions.SSLError),
    (urllib3.exceptions.NewConnectionError, botocore.exceptions.EndpointConnectionError),
    (urllib3.exceptions.ConnectTimeoutError, botocore.exceptions.ConnectTimeoutError),
    (urllib3.exceptions.ReadTimeoutError, botocore.exceptions.ReadTimeoutError),
    (urllib3.exceptions.ProtocolError, botocore.exceptions.ConnectionClosedError),
    (urllib3.exceptions.HTTPError, botocore.exceptions.HTTPClientError),
)


class Connections:
    """HTTPS connections that clients share. Safe to use from many threads."""

    def __init__(self) -> None:
        """Load the certificates that botocore would trust."""
        configured = botocore.session.get_session().get_config_variable("ca_bundle")
        context = create_urllib3_context()
        context.load_verify_locations(get_cert_path(configured or True))
        self._pools = urllib3.PoolManager(
            num_pools=MAX_HOSTS, maxsize=MAX_IDLE_A_HOST, ssl_context=context
        )

    def carry(self, client: Any) -> None:  # noqa: ANN401 - of any service
        """Have a client's calls go over these connections, with the timeouts of its config."""
        config = client.meta.config
        timeout = urllib3.Timeout(connect=config.connect_timeout, read=config.read_timeout)
        client.meta.events.register("before-send", partial(self._send, timeout))

    def _send(
        self, timeout: urllib3.Timeout, request: AWSPreparedRequest, **_event: object
    ) -> AWSResponse | None:
        """Send a request in botocore's place; None leaves it to botocore."""
        if not request.url.startswith("https:") or get_environ_proxies(request.url):
            return None
        try:
            raw: Any = self._pools.urlopen(
                request.method,
                request.url,
                body=request.body,
                headers=request.headers,
                timeout=timeout,
                retries=False,  # they are the client's
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            response = AWSResponse(request.url, raw.status, raw.headers, raw)
            _ = response.content  # it is read while the connection is there
        except urllib3.exceptions.HTTPError as error:
            raise _as_botocores(error, request.url) from error
        return response


def _as_botocores(
    error: urllib3.exceptions.HTTPError, url: str
) -> botocore.exceptions.BotoCoreError:
    botocores = next(botocores for kind, botocores in _ERRORS if isinstance(error, kind))
    return botocores(endpoint_url=url, error=error)
