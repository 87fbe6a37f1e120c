"""Names and ids: their form, their limits, and the job id that follows from an idempotency key.

Pure: a new id needs a clock and randomness and lives in `new_ids`.
"""

import uuid
from typing import Annotated, Final

from pydantic import StringConstraints

NAME_LENGTH_MAX: Final = 63  # as a DNS label: a tenant or queue can become a host or folder name
MACHINE_ID_LENGTH_MAX: Final = 128
IDEMPOTENCY_KEY_LENGTH_MAX: Final = 255
JOB_NAMESPACE: Final = uuid.UUID("6f7d1c1e-5b0a-5c53-9a51-0c8e6f5d2b11")  # never changes: derived ids depend on it

TENANT_PATTERN: Final = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"
QUEUE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
MACHINE_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
# A canonical UUID of version 7 (fresh), or of version 5 where an idempotency key derives it. A pattern: uuid.UUID takes 5 µs.
JOB_ID_PATTERN: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[57][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
OPAQUE_ID_PATTERN: Final = r"^[A-Za-z0-9._:-]{1,128}$"
LABEL_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?$"


def derive_job_id(tenant: str, idempotency_key: str) -> str:
    """The one job id of an idempotency key of a tenant. The leader derives it again: nobody can claim another's."""
    return str(uuid.uuid5(JOB_NAMESPACE, f"{tenant}\n{idempotency_key}"))


def is_derived(job_id: str) -> bool:
    return job_id[14] == "5"


def job_id_ms(job_id: str) -> int:
    """Milliseconds since 1970 that a version 7 id was made at, as its maker's clock said."""
    return int(job_id[:8] + job_id[9:13], 16)


Tenant = Annotated[str, StringConstraints(pattern=TENANT_PATTERN, strict=True)]
Queue = Annotated[str, StringConstraints(pattern=QUEUE_PATTERN, strict=True)]
MachineId = Annotated[str, StringConstraints(pattern=MACHINE_ID_PATTERN, strict=True)]
LabelText = Annotated[str, StringConstraints(pattern=LABEL_PATTERN, strict=True)]
JobId = Annotated[str, StringConstraints(strict=True, pattern=JOB_ID_PATTERN)]
OpaqueId = Annotated[str, StringConstraints(pattern=OPAQUE_ID_PATTERN, strict=True)]
IdempotencyKey = Annotated[
    str, StringConstraints(strict=True, min_length=1, max_length=IDEMPOTENCY_KEY_LENGTH_MAX, pattern=r"^[!-~ ]+$")
]
