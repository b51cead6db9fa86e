"""What produces the events: this package, in its version."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from attr import evolve
from openlineage.client.facet_v2 import BaseFacet

F = TypeVar("F", bound=BaseFacet)


@cache
def version_of(package: str) -> str:
    """Return the version of a package; `unknown` if it is not installed as one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


VERSION = version_of("lake-assets")
# A URI, as the specification wants it.
PRODUCER = f"urn:lake-assets:{VERSION}"


def ours(facet: F) -> F:
    """Return a facet that names this package as its producer."""
    return evolve(facet, producer=PRODUCER)
