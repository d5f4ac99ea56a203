"""Who pays for each agent of a relay, which of them may work, and a payer that has changed."""

import json
from dataclasses import replace

import pytest
from helpers.program import as_a_process, environment

from ultramon.errors import ConfigurationError
from ultramon.relay.choices import RelayChoices
from ultramon.relay.launchers.claude_code import ClaudeCodeLauncher
from ultramon.relay.launchers.codex import CodexLauncher
from ultramon.relay.launchers.command import CommandLauncher
from ultramon.relay.launchers.copilot import CopilotLauncher
from ultramon.relay.launchers.gemini import GeminiLauncher
from ultramon.relay.launchers.opencode import OpencodeLauncher
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION
from ultramon.relay.launchers.qwen import QwenLauncher
from ultramon.relay.paying import Payers
from ultramon.state.plan_limits import FIVE_HOURS, PlanLimits, plan_limit

NOW = 1_800_000_000.0
LOGIN = {"claudeAiOauth": {"accessToken": "secret", "subscriptionType": "max"}}
CODEX_LOGIN = {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": {"id_token": "secret"}}
CODEX_KEY = {"auth_mode": "apikey", "OPENAI_API_KEY": "secret"}
OPENCODE = {"anthropic": {"type": "oauth"}, "openai": {"type": "api", "key": "secret"}}


class Account:
    """A home without any login, and the environment of a user who has it."""

    def __init__(self, directory):
        self.directory, self.home = directory, directory / "home"
        self.project = directory / "project"
        self.project.mkdir()
        self.environ = environment(
            HOME=str(self.home), CODEX_HOME=str(self.home / "codex"), XDG_DATA_HOME="",
            XDG_CONFIG_HOME="", CLAUDE_CONFIG_DIR="", GEMINI_CLI_HOME="", QWEN_HOME="",
        )  # fmt: skip

    def write(self, path, content):
        path = self.directory / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def payer(self, kind, *arguments, **environ):
        """What pays for the contexts of a launcher of that kind."""
        with as_a_process(self.environ | environ):
            launcher = kind("job", str(self.directory / "state"), arguments=arguments)
            return launcher.payer(str(self.project), self.environ | environ)


@pytest.fixture
def account(tmp_path):
    return Account(tmp_path)


def test_claude_code_takes_a_key_before_a_login(account):
    """Of the environment, of a settings file or by a command; a cloud's account is billed too."""
    assert str(account.payer(ClaudeCodeLauncher)) == "payment unknown"
    account.write("home/.claude/.credentials.json", LOGIN)
    assert str(account.payer(ClaudeCodeLauncher)) == "subscription"
    token = account.payer(ClaudeCodeLauncher, CLAUDE_CODE_OAUTH_TOKEN="secret")
    assert token.kind == SUBSCRIPTION
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK"):
        found = account.payer(ClaudeCodeLauncher, **{name: "secret"})
        assert str(found) == f"API key ({name})"
    account.write("project/.claude/settings.json", {"apiKeyHelper": "cat key"})
    assert str(account.payer(ClaudeCodeLauncher)) == "API key (apiKeyHelper)"
    account.write("project/.claude/settings.json", {"env": {"ANTHROPIC_API_KEY": "secret"}})
    assert str(account.payer(ClaudeCodeLauncher)) == "API key (ANTHROPIC_API_KEY)"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"claudeAiOauth": null}', "[" * 100_000])
def test_a_file_of_logins_that_says_nothing_makes_no_payer(account, content):
    """Nothing is made up, and nothing fails."""
    account.write("home/.claude/.credentials.json", content)
    account.write("home/codex/auth.json", content)
    account.write("home/.local/share/opencode/auth.json", content)
    for kind in (ClaudeCodeLauncher, CodexLauncher, OpencodeLauncher):
        assert account.payer(kind).kind is None


def test_codex_pays_as_its_login_says(account):
    """A key of the environment comes first."""
    assert account.payer(CodexLauncher).kind is None
    account.write("home/codex/auth.json", CODEX_LOGIN)
    assert str(account.payer(CodexLauncher)) == "subscription"
    assert str(account.payer(CodexLauncher, CODEX_API_KEY="x")) == "API key (CODEX_API_KEY)"
    account.write("home/codex/auth.json", CODEX_KEY)
    assert str(account.payer(CodexLauncher)) == "API key (auth.json)"
    assert account.payer(CodexLauncher, CODEX_ACCESS_TOKEN="x").kind == SUBSCRIPTION


def test_gemini_and_qwen_pay_as_their_settings_say(account):
    """Else as the environment says."""
    assert account.payer(GeminiLauncher).kind is account.payer(QwenLauncher).kind is None
    assert str(account.payer(GeminiLauncher, GEMINI_API_KEY="x")) == "API key (GEMINI_API_KEY)"
    assert account.payer(GeminiLauncher, GOOGLE_GENAI_USE_GCA="true").kind == SUBSCRIPTION
    assert str(account.payer(QwenLauncher, OPENAI_API_KEY="x")) == "API key (OPENAI_API_KEY)"
    assert str(account.payer(QwenLauncher, "--auth-type", "openai")) == "API key (openai)"
    for login, key, kind in (
        ("oauth-personal", "gemini-api-key", GeminiLauncher),
        ("qwen-oauth", "openai", QwenLauncher),
    ):
        folder = f"home/.{kind.host.name}/settings.json"
        account.write(folder, {"security": {"auth": {"selectedType": login}}})
        assert account.payer(kind, GEMINI_API_KEY="x", OPENAI_API_KEY="x").kind == SUBSCRIPTION
        account.write(folder, {"security": {"auth": {"selectedType": key}}})
        assert str(account.payer(kind)) == f"API key ({key})"


def test_copilot_and_opencode_pay_by_their_provider(account):
    """Copilot's plan, but for a provider of one's own; opencode by the provider of the model."""
    assert account.payer(CopilotLauncher).kind == SUBSCRIPTION
    own = account.payer(CopilotLauncher, COPILOT_PROVIDER_BASE_URL="http://127.0.0.1:1")
    assert str(own) == "API key (COPILOT_PROVIDER_BASE_URL)"
    account.write("home/.local/share/opencode/auth.json", OPENCODE)
    assert account.payer(OpencodeLauncher).kind is None
    assert account.payer(OpencodeLauncher, "--model", "anthropic/a-1").kind == SUBSCRIPTION
    assert account.payer(OpencodeLauncher, "-m", "openai/a/b").kind == API_KEY
    account.write("home/.config/opencode/opencode.json", {"model": "openai/a"})
    assert str(account.payer(OpencodeLauncher)) == "API key (auth.json)"


# --- which agents may work


@pytest.fixture
def payers(account):
    """Make those of a run of Claude Code with a subscription, and of Codex."""

    def make(**changes):
        choices = RelayChoices("g", str(account.project), agent="claude,codex")
        with as_a_process(account.environ | changes.pop("environ", {})):
            state = str(account.directory / "state")
            launchers = {
                "claude": ClaudeCodeLauncher("job", state), "codex": CodexLauncher("job", state),
            }  # fmt: skip
            return Payers(launchers, replace(choices, **changes))

    account.write("home/.claude/.credentials.json", LOGIN)
    return make


def test_another_agent_works_by_itself_where_its_price_is_fixed(account, payers):
    """With a key, or where nothing is known, only where the user says so."""
    plans = PlanLimits(str(account.directory / "state"))
    used = plan_limit(FIVE_HOURS, 38, NOW + 3_600, NOW)
    plans.record("claude-code", str(account.home / ".claude"), [used], NOW)
    unknown = payers()
    assert (unknown.allowed, unknown.first_kind) == (("claude",), SUBSCRIPTION)
    with as_a_process(account.environ):
        assert list(unknown.describe(plans, NOW)) == [
            "claude: subscription, 5h 38 % used",
            "codex: payment unknown, not used without --may-pay codex",
        ]
    account.write("home/codex/auth.json", CODEX_KEY)
    assert payers().allowed == ("claude",)
    may = payers(may_pay=("codex",))
    assert may.allowed == ("claude", "codex")
    with as_a_process(account.environ):
        assert list(may.describe(plans, NOW))[1] == "codex: API key (auth.json)"
    account.write("home/codex/auth.json", CODEX_LOGIN)
    assert payers().allowed == ("claude", "codex")


def test_who_may_pay_is_an_agent_of_the_run(payers):
    with pytest.raises(ConfigurationError, match="one or more of claude, codex"):
        payers(may_pay=("gemini",))


def test_a_run_that_would_continue_at_another_expense_asks(payers):
    """Begun with a subscription, continued in a shell that has a key."""
    asked = []

    def answer(text):
        asked.append(text)
        return len(asked) > 1

    payers(paid_by=SUBSCRIPTION).check(answer)
    payers(paid_by=API_KEY, environ={"ANTHROPIC_API_KEY": "x"}).check(answer)
    assert asked == []
    changed = payers(paid_by=SUBSCRIPTION, environ={"ANTHROPIC_API_KEY": "x"})
    with pytest.raises(ConfigurationError, match="given as --may-pay claude"):
        changed.check(answer)
    changed.check(answer)
    assert (
        asked
        == [
            "claude paid by subscription when the run began, and would now by API key "
            "(ANTHROPIC_API_KEY). Continue?"
        ]
        * 2
    )
    agreed = payers(paid_by=SUBSCRIPTION, may_pay=("claude",), environ={"ANTHROPIC_API_KEY": "x"})
    agreed.check(answer)
    assert len(asked) == 2


def test_a_program_of_ones_own_has_no_payer(account):
    """Nothing is printed of it."""
    choices = RelayChoices("g", str(account.project), agent="command")
    found = Payers({"command": CommandLauncher("job", ["true"])}, choices)
    plans = PlanLimits(str(account.directory / "state"))
    assert (found.allowed, list(found.describe(plans, NOW))) == (("command",), [])
