"""The API keeps what its schema promises, whatever is sent: schemathesis draws the requests."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from bertvision.serve.limits import Limits
from serve.servers import LastWordReader, serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def api():
    with serving(LastWordReader(), Limits(question=50, context=100, questions=3)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=20, suppress_health_check=list(HealthCheck), database=None)
def test_replies_are_as_promised(case):
    case.call_and_validate(checks=CHECKS)
