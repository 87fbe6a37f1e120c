"""The base of every model and the number types they share."""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

INT64_MAX: Final = 2**63 - 1

Count = Annotated[int, Field(strict=True, ge=0, le=INT64_MAX)]
Millis = Annotated[int, Field(strict=True, ge=0, le=INT64_MAX)]


class Model(BaseModel):
    """A frozen value. Readers accept unknown fields, so that writers can be upgraded after them."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


class Message(Model):
    """A model that travels as a record of its own; TYPE is its `ce_type`."""

    TYPE: ClassVar[str]
