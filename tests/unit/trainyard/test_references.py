"""How a job is named."""

import pytest

from trainyard.client.references import id_part
from trainyard.loading.sources import is_folder


@pytest.mark.parametrize(
    ("reference", "part"),
    [
        ("ft:tiny:admin:calc:w82fk9hgf3gh", "w82fk9hgf3gh"),
        ("ft:org/tiny:admin::w82fk9hgf3gh:ckpt-step-40", "w82fk9hgf3gh"),
        ("ft:", ""),
        ("last", "last"),
        ("tiny:calc", "tiny:calc"),
        ("w82fk9hgf3gh", "w82fk9hgf3gh"),
    ],
)
def test_model_of_openai_names_its_job(reference: str, part: str) -> None:
    assert id_part(reference) == part


def test_model_of_openai_is_no_folder() -> None:
    assert not is_folder("ft:org/tiny:admin::w82fk9hgf3gh")
    assert is_folder("org/tiny")
