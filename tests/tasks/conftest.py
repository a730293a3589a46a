"""What the tests of several tasks use."""

import pytest
from tokenizers import Tokenizer

from encoders import plain_tokenizer


@pytest.fixture(scope="package")
def tokenizer() -> Tokenizer:
    return plain_tokenizer()
