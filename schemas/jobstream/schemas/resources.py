"""What jobs ask for and machines have, in whole numbers: CPU in millicores, memory in MiB."""

from typing import Annotated, Final

from pydantic import Field

from jobstream.schemas.base import Model

CPU_MILLIS_MAX: Final = 1_000_000  # 1,000 cores on one machine
MEMORY_MIB_MAX: Final = 64 * 1024 * 1024  # 64 TiB

CpuMillis = Annotated[int, Field(strict=True, ge=1, le=CPU_MILLIS_MAX)]
MemoryMib = Annotated[int, Field(strict=True, ge=1, le=MEMORY_MIB_MAX)]


class Resources(Model):
    """An amount of CPU (millicores) and memory (MiB)."""

    cpu_millis: CpuMillis
    memory_mib: MemoryMib
