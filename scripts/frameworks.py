"""Run the tests of each framework against the oldest and the newest version that ultramon supports.

    python scripts/frameworks.py                    # all of FRAMEWORKS
    python scripts/frameworks.py langchain          # one of them
    python scripts/frameworks.py langchain 1.1.0    # in another version

Requirements of frameworks exclude each other, so each version has an environment of its own, kept
under ~/.cache/ultramon-tests/frameworks/. The oldest version is the bound of the extra in
pyproject.toml. Prints one table; exits 1 when a test fails or a version cannot be installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ultramon-tests"
TOOLS = ("hypothesis>=6.100", "pytest>=8.2", "pytest-timeout>=2.3")


class Framework(NamedTuple):
    """What is run for a framework.

    Attributes:
        extra: The extra of ultramon that has its oldest version.
        newest: The newest version that was tried.
        tests: Arguments of pytest.
        beside_oldest: Further requirements of the oldest version, which it left open too far.
        package: Which of the extra's requirements it is; empty = the only one.
        beside: Further requirements of both.
        beside_newest: Further requirements of the newest version.
    """

    extra: str
    newest: str
    tests: tuple[str, ...]
    beside_oldest: tuple[str, ...] = ()
    package: str = ""
    beside: tuple[str, ...] = ()
    beside_newest: tuple[str, ...] = ()


class Result(NamedTuple):
    """What pytest counted; the problem where it did not come so far."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problem: str = ""


def adapter_tests(module: str) -> tuple[str, ...]:
    """Return the tests of an adapter: those of every adapter, its own, its example and its page."""
    own = f"tests/integrations/test_integration_{module}.py"
    pages = ("tests/test_docs.py", "tests/test_how_pages.py")
    return ("tests/integrations/test_frameworks.py", own, *pages, "-k", module)


FRAMEWORKS = {
    "langchain": Framework(
        "langchain",
        "1.4.7",
        (
            "tests/integrations/test_integration_langchain_deepagents.py",
            *adapter_tests("langchain"),
        ),
        beside_newest=("deepagents==0.7.32",),
    ),
    "openai-agents": Framework(
        "openai-agents", "0.24.0", adapter_tests("openai_agents"), ("openai==2.21.0",)
    ),
    "pydantic-ai": Framework("pydantic-ai", "2.68.0", adapter_tests("pydantic_ai")),
    "claude-agent-sdk": Framework("claude-agent-sdk", "0.2.187", adapter_tests("claude_agent_sdk")),
    "google-adk": Framework("google-adk", "2.13.0", adapter_tests("google_adk")),
    "litellm": Framework("litellm", "1.106.2", adapter_tests("litellm")),
    "mcp": Framework("mcp", "2.3.0", ("tests/mcp/test_mcp.py",)),
    # Apart from the others, which are tested without aiohttp and boto3.
    "provider-sdks": Framework(
        "dev",
        "2.12.0",
        ("tests/integrations/test_integration_provider_client.py",),
        ("openai==2.54.0", "google-genai==2.34.0"),
        "anthropic",
        (
            "anthropic[aiohttp,bedrock,vertex]",
            "openai[aiohttp]",
            "google-genai[aiohttp]",
            "httpx",
            "httpx2",
        ),
    ),
}


def find_requirement(framework: Framework) -> tuple[str, str]:
    """Return the package of a framework and its oldest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = project["optional-dependencies"][framework.extra]
    bounds = [requirement.partition(">=")[::2] for requirement in requirements]
    (found,) = (bound for bound in bounds if framework.package in ("", bound[0]))
    return found


def prepare(name: str, package: str, version: str, beside: tuple[str, ...]) -> Path:
    """Make the environment of a version, unless it is there; return its Python.

    Raises:
        subprocess.CalledProcessError: It cannot be installed.
    """
    folder = CACHE / "frameworks" / f"{name}-{version}-py{sys.version_info.minor}"
    python = folder / "bin" / "python"
    wanted = ["-e", str(ROOT), f"{package}=={version}", *beside, *TOOLS]
    installed = folder / "installed.txt"
    if not installed.is_file() or installed.read_text(encoding="utf-8").splitlines() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *wanted],
            check=True,
            capture_output=True,
            text=True,
        )
        installed.write_text("\n".join(wanted), encoding="utf-8")
    return python


def run(name: str, version: str) -> tuple[str, Result]:
    """Run the tests of a framework; return the version with what was counted."""
    framework = FRAMEWORKS[name]
    package, oldest = find_requirement(framework)
    at_bound = {oldest: framework.beside_oldest, framework.newest: framework.beside_newest}
    beside = framework.beside + at_bound.get(version, ())
    try:
        python = prepare(name, package, version, beside)
    except subprocess.CalledProcessError as error:
        reasons = re.findall(r"^ERROR: (.*)$", error.stderr or "", re.MULTILINE)
        return version, Result(problem=reasons[0] if reasons else "cannot be installed")
    report = CACHE / "frameworks" / f"{name}-{version}.xml"
    report.unlink(missing_ok=True)
    # An older framework may warn of what a newer library will drop.
    options = ("-q", "-W", "default", "-p", "no:cacheprovider", f"--junitxml={report}")
    subprocess.run([python, "-m", "pytest", *options, *framework.tests], cwd=ROOT, check=False)
    if not report.is_file():
        return version, Result(problem="pytest did not start")
    (suite,) = ET.parse(report).getroot()
    tests, failures, errors, skipped = (
        int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return version, Result(tests - failed - skipped, failed, skipped)


def main(arguments: list[str]) -> int:
    """Run what is asked for and print the table."""
    name, version = [*arguments, None, None][:2]
    if name is not None and name not in FRAMEWORKS:
        raise SystemExit(f"{name} is none of {', '.join(FRAMEWORKS)}")
    names = list(FRAMEWORKS) if name is None else [name]
    rows = []
    for one in names:
        _package, oldest = find_requirement(FRAMEWORKS[one])
        asked = [version] if version else dict.fromkeys((oldest, FRAMEWORKS[one].newest))
        rows += [(one, *run(one, wanted)) for wanted in asked]
    print(f"\n{'framework':16} {'version':10} {'passed':>6} {'failed':>6} {'skipped':>7}")
    for one, tried, result in rows:
        counts = f"{result.passed:6} {result.failed:6} {result.skipped:7}"
        print(f"{one:16} {tried:10} {result.problem or counts}")
    return int(any(result.failed or result.problem or not result.passed for *_, result in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
