"""The API keeps what its schema promises, whatever is sent: schemathesis draws the requests."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from bertvision.serve.server import Limits
from serve.servers import LastWordReader, serving

PROMISES = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
POSTS = [(path, "POST") for path in ("/answer", "/question-answering", "/classify", "/similarity", "/entities")]
ROUTES = [*POSTS, ("/health", "GET"), ("/metrics", "GET")]
few = settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def api():
    with serving(LastWordReader(), Limits(question=50, context=100, questions=3)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_all_routes_are_tried(api):
    assert {path for path, _ in ROUTES} == set(api)


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_what_fits_the_schema_gets_what_it_promises(api, path, method):
    @few
    @given(case=api[path][method].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case):
        case.call_and_validate(checks=PROMISES)

    check()


@pytest.mark.parametrize(("path", "method"), POSTS)
def test_what_does_not_is_refused(api, path, method):
    @few
    @given(case=api[path][method].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def check(case):
        case.call_and_validate(checks=[*PROMISES, negative_data_rejection])

    check()
