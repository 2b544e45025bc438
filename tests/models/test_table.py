from __future__ import annotations

import dataclasses

import pytest
from omegaconf import OmegaConf

from runner.models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_a_schema(name: str) -> None:
    schema = MODELS[name]
    assert dataclasses.fields(schema)[0].name == "name"
    built = OmegaConf.to_object(OmegaConf.structured(schema))
    assert built == schema()
    assert schema().name == name
