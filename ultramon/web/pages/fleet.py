"""The fleet now: which agents need a person, and how full every window is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ultramon.backends.machines import are_several, shown_machine
from ultramon.context.gauge import is_lower_bound, known_tokens
from ultramon.context.ladder import FORCE_RETURN, PREPARE_HANDOFF, Ladder
from ultramon.context.level_words import brief_level_words
from ultramon.errors import ConfigurationError
from ultramon.pictures.drawings import bar
from ultramon.pictures.elements import Element, element
from ultramon.prices.cost import cost_of_agents
from ultramon.state.agent_rows import arrange, doing_words, phase_of, runway_words, tasks_words
from ultramon.state.liveness import ENDED, LOST, STALE
from ultramon.state.plan_words import limit_words, measured_words
from ultramon.state.usage_percent import usage_words
from ultramon.system.wording import field, plural, tokens
from ultramon.web.pages.layout import agent_url, job_url, number_cell, url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ultramon.context.ladder import ResolvedRung
    from ultramon.prices.cost import Cost
    from ultramon.state.agent_rows import AgentRow, RowGroup
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.observed import ObservedAgent
    from ultramon.state.plan_limits import AccountPlan
    from ultramon.web.agent_reader import Look

_MOST_UNREADABLE = 10
_MOST_MACHINES = 100
_MOST_DEPTH = 4
_COLUMNS = ("agent", "level", "usage", "", "tokens", "runway", "cost", "tasks", "doing", "state")
_MACHINE = "machine"
LIST_PRICE = "So far, by the transcripts on this machine; list price, not your bill."
_MAY_BE_EMPTY = ("runway", "cost", "tasks", "doing")
_LEVEL_CLASSES = {"warning": "level-warning", "critical": "level-critical"}


def level_class(one: ObservedAgent) -> str:
    """Return the class of an agent's level in the style sheet."""
    record = one.record
    if record.threshold_status is None:
        return "level-unknown"
    by_action = {FORCE_RETURN: "level-critical", PREPARE_HANDOFF: "level-warning"}
    return by_action.get(record.action, "level-normal")


def rungs_of(one: ObservedAgent) -> tuple[ResolvedRung, ...]:
    """Return the rungs of an agent's ladder; none where they cannot be read."""
    try:
        return Ladder.from_json(one.record.ladder).resolve(one.record.context_limit).rungs
    except ConfigurationError:
        return ()


def held_words(one: ObservedAgent) -> str:
    """Return the tokens in an agent's window, as a lower bound where it is one."""
    count = known_tokens(one.record)
    return ("≥ " if count and is_lower_bound(one.record) else "") + tokens(count)


def usage_bar(one: ObservedAgent) -> Element:
    """Draw how full an agent's window is, with its rungs."""
    ratio = one.record.usage_ratio
    words = "usage unknown" if ratio is None else f"{usage_words(one.record)} of the limit"
    return bar(ratio or 0.0, words, ticks=[rung.ratio for rung in rungs_of(one)])


def state_words(one: ObservedAgent, need: str) -> tuple[str, str]:
    """Return what an agent does or needs, and its class in the style sheet."""
    verdict, reason = one.liveness.verdict, field(one.liveness.reason)
    if verdict in (LOST, STALE):
        return f"{verdict}: {reason}", "bad" if verdict == LOST else "late"
    if verdict == ENDED:
        return reason, "dim"
    return (f"needs you: {need}", "need") if need else (field(phase_of(one.record)), "")


def fleet_content(
    look: Look,
    costs: Mapping[str, Cost],
    *,
    run: str | None,
    limit: int,
    more: int,
    with_ended: bool,
    machine: str | None = None,
    plans: Sequence[AccountPlan] = (),
    budgets: Sequence[BudgetReading] = (),
) -> Element:
    """Return the content of the page.

    Args:
        look: The agents.
        costs: What agents cost so far, by id, where it is known.
        run: The run they are of; None = of all runs.
        limit: How many may be shown.
        more: How many the link to more asks for.
        with_ended: Whether ended agents are among them.
        machine: The machine they are on; None = all.
        plans: The accounts whose limits are known.
        budgets: What the user's budgets amount to.
    """
    chosen = {"run": run, "machine": machine, "all": 1 if with_ended else None}
    # A column for them where agents of several are shown.
    machines = look.machines if are_several(look.machines, look.shown) else None
    columns = _COLUMNS if machines is None else (_COLUMNS[0], _MACHINE, *_COLUMNS[1:])
    drawing = _Drawing(costs, machines, len(columns))
    groups = [_group(group, drawing, is_all=not look.left_out) for group in arrange(look.shown)]
    head = element(
        "tr",
        *(
            element("th", name, scope="col", class_=name if name in _MAY_BE_EMPTY else None)
            for name in columns
        ),
    )
    table = element(
        "table",
        element("thead", head),
        *groups,
        class_=_table_class(look, costs),
        aria_label="Agents",
    )
    empty = "No agents. `ultramon demo` starts some; `ultramon install HOST` has the next sessions "
    empty += "of claude-code, codex, copilot, gemini, opencode or qwen report themselves."
    left_out = None
    if look.left_out:
        link = url("/", {**chosen, "limit": min(limit + look.left_out, more)})
        words = f"{look.left_out:,} less urgent ones are not shown. "
        left_out = element("p", words, element("a", "Show more", href=link), id="more")
    return element(
        "div",
        element("h1", str(look.summary) or "No agents at work", id="summary"),
        *(_plan(account, look.at) for account in plans),
        *(_budget(one, look.at) for one in budgets),
        _choices(look, run, machine, with_ended=with_ended),
        _machine_choices(look, run, machine, with_ended=with_ended),
        table if look.shown else element("p", empty, class_="dim"),
        left_out,
        *_unreadable(look),
    )


def _plan(account: AccountPlan, now: float) -> Element:
    """Draw the limits of an account, with the age of the numbers."""
    limits = []
    for limit in account.limits:
        words = limit_words(limit, now, utc=True)
        limits.append(element("span", bar(limit.used_ratio, words), words, class_="limit"))
    return element(
        "p",
        element("span", "plan", class_="dim"),
        element("span", field(account.name), class_="account"),
        *limits,
        element("span", measured_words(account, now), class_="dim"),
        class_="limits",
        aria_label=f"Plan of {field(account.name)}",
    )


def _budget(budget: BudgetReading, now: float) -> Element:
    """Draw a budget, with its levels and its forecast."""
    name, _, words = field(budget.words(now, utc=True)).partition(": ")
    ticks = [percent / 100 for percent in budget.levels]
    return element(
        "p",
        element("span", "budget", class_="dim"),
        element("span", name, class_="account"),
        element("span", bar(budget.used_ratio, words, ticks=ticks), words, class_="limit"),
        class_=f"limits budget {_LEVEL_CLASSES.get(budget.level or '', '')}".strip(),
        aria_label=f"Budget {name}",
    )


def _table_class(look: Look, costs: Mapping[str, Cost]) -> str:
    """Return the classes by which the style sheet leaves columns out that no row fills."""
    filled = {
        "runway": any(map(runway_words, look.shown)),
        "cost": any(cost.words for cost in costs.values()),
        "tasks": any(tasks_words(one.record) for one in look.shown),
        "doing": any(doing_words(one.record) for one in look.shown),
    }
    return " ".join(
        ["fleet", *(f"no-{name}" for name, is_filled in filled.items() if not is_filled)]
    )


def _choices(look: Look, run: str | None, machine: str | None, *, with_ended: bool) -> Element:
    ended, flag = look.counts[ENDED], 1 if with_ended else None
    all_runs = url("/", {"machine": machine, "all": flag})
    links = [_choice("All runs", all_runs, is_chosen=run is None)]
    for name in look.runs[:_MOST_UNREADABLE]:
        link = url("/", {"run": name, "machine": machine, "all": flag})
        links.append(_choice(field(name), link, is_chosen=name == run))
    if ended:
        words = f"{'Hide' if with_ended else 'Show'} {plural(ended, 'ended agent')}"
        link = url("/", {"run": run, "machine": machine, "all": None if with_ended else 1})
        links.append(element("a", words, href=link, class_="ended"))
    return element("nav", *links, class_="choices", aria_label="Which agents")


def _machine_choices(
    look: Look, run: str | None, machine: str | None, *, with_ended: bool
) -> Element | None:
    """Return links to the agents of each machine; none where there is one at most."""
    names = sorted((look.machines or {}).items(), key=lambda item: item[1])
    if len(names) < 2 and machine is None:
        return None
    chosen = {"run": run, "all": 1 if with_ended else None}
    links = [_choice("All machines", url("/", chosen), is_chosen=machine is None)]
    for machine_id, name in names[:_MOST_MACHINES]:
        link = url("/", {**chosen, "machine": machine_id})
        links.append(_choice(field(name), link, is_chosen=machine in (machine_id, name)))
    return element("nav", *links, class_="choices machines", aria_label="Which machine")


def _choice(name: str, link: str, *, is_chosen: bool) -> Element:
    return element("a", name, href=link, aria_current="true" if is_chosen else None)


class _Drawing(NamedTuple):
    """What the rows of the table need beside the agents."""

    costs: Mapping[str, Cost]
    machines: Mapping[str, str] | None
    """None = there is no column of machines."""
    columns: int


def _group(group: RowGroup, drawing: _Drawing, *, is_all: bool) -> Element:
    job = element("a", field(group.run), href=job_url(group.run))
    project = f" · {field(group.project)}" if group.project else None
    # What is not shown may be of any run.
    together = cost_of_agents(_contexts_below(group.rows), drawing.costs, is_all=is_all)
    cost = None
    if together is not None and together.known_usd is not None:
        cost = element("span", f" · {together.words}", title=LIST_PRICE)
    title = element("th", "run ", job, project, cost, colspan=drawing.columns, scope="rowgroup")
    rows = [line for row in group.rows for line in _lines(row, 0, drawing)]
    return element("tbody", element("tr", title, class_="group"), *rows)


def _contexts_below(rows: Iterable[AgentRow]) -> Iterator[ObservedAgent]:
    for row in rows:
        yield from row.contexts
        yield from _contexts_below(row.children)


def _lines(row: AgentRow, depth: int, drawing: _Drawing) -> Iterator[Element]:
    yield _line(row, depth, drawing)
    for child in row.children:
        yield from _lines(child, depth + 1, drawing)


def _line(row: AgentRow, depth: int, drawing: _Drawing) -> Element:
    one, record = row.seen, row.seen.record
    cost = cost_of_agents(row.contexts, drawing.costs)
    machine = None
    if drawing.machines is not None:
        name = field(shown_machine(drawing.machines, record.hostname))
        machine = element("td", name, class_=_MACHINE)
    title = row.name.title or row.name.project or row.name.tag
    tag = row.name.tag if row.name.tag != title else ""
    earlier = None
    if row.earlier:
        links: list[Element | str] = []
        for before in row.earlier:
            before_id = before.record.agent_id
            links += [" ← ", element("a", field(before_id), href=agent_url(before_id))]
        earlier = element("small", *links, class_="dim earlier")
    agent = element(
        "th",
        element("a", field(title), href=agent_url(record.agent_id)),
        element("small", f" {field(tag)}", class_="dim") if tag else None,
        earlier,
        scope="row",
        class_=f"agent depth-{min(depth, _MOST_DEPTH)}",
    )
    words, class_ = state_words(one, row.need)
    level = field(brief_level_words(record, with_limit=False))
    of = f" of {tokens(record.context_limit)}"
    return element(
        "tr",
        agent,
        machine,
        element("td", element("span", level, class_="level"), class_="level-cell"),
        number_cell(usage_words(record), record.usage_ratio, class_="number usage"),
        element("td", usage_bar(one), class_="bar-cell"),
        element(
            "td", held_words(one), element("small", of, class_="dim"), class_="number tokens",
            data_value=known_tokens(record), data_limit=record.context_limit,
        ),
        number_cell(runway_words(one), class_="number runway"),
        number_cell("" if cost is None else cost.words, class_="number cost"),
        number_cell(tasks_words(record), class_="number tasks"),
        element("td", field(doing_words(record)), class_="doing"),
        element("td", words, class_=f"state {class_}".strip()),
        id=f"agent-{record.agent_id}",
        class_=level_class(one),
        data_agent=record.agent_id,
        data_level=record.threshold_status,
        data_liveness=one.liveness.verdict,
        data_phase=record.phase,
    )  # fmt: skip


def _unreadable(look: Look) -> Iterator[Element]:
    for one in look.unreadable[:_MOST_UNREADABLE]:
        words = f"{field(one.agent_id)} cannot be read: {one.reason}"
        yield element("p", words, class_="bad unreadable")
    beyond = len(look.unreadable) - _MOST_UNREADABLE
    if beyond > 0:
        yield element("p", f"and {beyond:,} more", class_="bad")
