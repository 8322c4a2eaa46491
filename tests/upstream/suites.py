"""Which upstream tests are run, how, and in what they may differ from a run without us."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata


class Variant(enum.StrEnum):
    """How our part comes in."""

    #: By JUPYTER_DEFAULT_PROVISIONER_NAME.
    PROVISIONER = "A"
    #: By the server extension; suites without a server get the provisioner as the extension chooses it.
    EXTENSION = "B"
    #: Notebooks are executed by batch runs: nbclient's client, or papermill's default engine, is replaced by ours.
    BATCH_RUNS = "C"


@dataclass(frozen=True)
class Suite:
    """Test modules of an sdist; `keep` is what is unpacked of it."""

    distribution: str
    modules: tuple[str, ...]
    keep: tuple[str, ...] = ("pyproject.toml", "tests/")
    has_server: bool = False
    #: Empty: that of the installed distribution.
    pinned: str = ""
    variants: tuple[Variant, ...] = (Variant.PROVISIONER, Variant.EXTENSION)

    @property
    def version(self) -> str:
        """Of the installed distribution: these tests are what it promises."""
        return self.pinned or metadata.version(self.distribution)


SUITES = (
    Suite(
        "jupyter_client",
        (
            "tests/test_provisioning.py",
            "tests/test_kernelmanager.py",
            "tests/test_restarter.py",
            "tests/test_multikernelmanager.py",
            "tests/test_client.py",
        ),
    ),
    Suite("jupyter_server", ("tests/services/kernels", "tests/services/sessions"), has_server=True),
    # It is not installed: the sdist brings the library, and its tests of ipykernel.
    Suite(
        "jupyter_kernel_test",
        ("test_ipykernel.py",),
        keep=("pyproject.toml", "test_ipykernel.py", "jupyter_kernel_test/"),
        pinned="0.7.0",
    ),
    Suite(
        "nbclient",
        # Not its tests of parallel notebooks: they fork processes after kernels were started, and these wait for ever.
        ("tests/test_client.py::test_run_all_notebooks", "tests/test_client.py::TestExecute"),
        variants=(Variant.BATCH_RUNS,),
    ),
    # Its tests are a part of its package. Those of storage services, languages and inspection start no kernel.
    Suite(
        "papermill",
        tuple(
            f"papermill/tests/test_{name}.py"
            for name in ("autosave", "cli", "clientwrap", "engines", "exceptions", "execute")
        ),
        keep=("pyproject.toml", "papermill/"),
        variants=(Variant.BATCH_RUNS,),
    ),
)


def suite_named(distribution: str) -> Suite:
    """Return the suite of a distribution; raises ValueError where there is none."""
    for suite in SUITES:
        if suite.distribution == distribution:
            return suite
    raise ValueError(f"There is no suite {distribution}.")


class Change(enum.StrEnum):
    """What is done differently."""

    OTHER_PROVISIONERS = "without the default provisioner"
    CULLED_IS_SUSPENDED = "culled is suspended, not 404"
    STOCK_ENGINE = "with papermill's own engine"
    MOVED_IMPORT = "with the present place of IPython's display"


@dataclass(frozen=True)
class Deviation:
    """Tests that are run differently, and why."""

    change: Change
    module: str
    variants: frozenset[Variant]
    why: str
    #: Only the tests that ask for this fixture; empty: all of the module.
    fixture: str = ""
    #: Only the tests whose ids end with one of these; empty: all of the module.
    tests: tuple[str, ...] = ("",)

    def applies(self, variant: Variant, module: str, fixtures: Collection[str], test: str) -> bool:
        """Whether a test of `module` is one of them."""
        named = module.rpartition(".")[2] == self.module and test.endswith(self.tests)
        return named and variant in self.variants and (not self.fixture or self.fixture in fixtures)


#: There are no others: nothing is deselected, and no failure is expected.
DEVIATIONS = (
    Deviation(
        Change.OTHER_PROVISIONERS,
        "test_provisioning",
        frozenset(Variant),
        "its mocked registry of provisioners does not know ours, so no kernelspec would be found",
        fixture="kpf",
    ),
    Deviation(
        Change.CULLED_IS_SUSPENDED,
        "test_cull",
        frozenset({Variant.EXTENSION}),
        "an idle kernel is suspended, without a notice before, and stays in the list",
    ),
    Deviation(
        Change.STOCK_ENGINE,
        "test_execute",
        frozenset({Variant.BATCH_RUNS}),
        "they replace the client of papermill's own engine by a mock",
        tests=("::test_start_timeout", "::test_default_start_timeout"),
    ),
    Deviation(
        Change.MOVED_IMPORT,
        "test_execute",
        frozenset({Variant.BATCH_RUNS}),
        "its notebook imports it from where IPython 9 no longer has it, which fails without us as well",
        tests=("TestBrokenNotebook2::test",),
    ),
)

#: Warnings that tests cause themselves, with a newer tornado; all others are errors, as upstream wants it.
WARNINGS_OF_TESTS = (
    "ignore:The method, uri, and version arguments to HTTPServerRequest:DeprecationWarning",
    "ignore:The start_line argument to HTTPServerRequest:DeprecationWarning",
)
