"""A ladder of one's own: four levels, two of them at a number of tokens left.

A percentage alone fits few windows: 85 % of a million tokens leaves 150,000, of 32,000 it leaves
4,800. A rung can name a ratio, a number of tokens left, or both; the stricter one decides.

What you should see:

    200,000 window: notice at 100,000, wrap_up at 140,000, critical at 170,000, last_call at 190,000
     32,000 window: notice at 16,000, wrap_up at 22,400, critical at 27,200
    dropped there, as tokens left make no sense: wrap_up, last_call
    notice      none
    wrap_up     prepare_handoff
    last_call   force_return
"""

from __future__ import annotations

from ultramon import ContextConfig, Ladder, Rung, create_context_monitor

LADDER = Ladder(
    [
        Rung("notice", ratio=0.50),
        Rung("wrap_up", ratio=0.70, tokens_left=20_000, action="prepare_handoff"),
        Rung("critical", ratio=0.85, action="force_return"),
        Rung("last_call", tokens_left=10_000, action="force_return"),
    ]
)


def show(window_tokens: int) -> None:
    resolved = LADDER.resolve(window_tokens)
    rungs = [f"{rung.name} at {round(rung.ratio * window_tokens):,}" for rung in resolved.rungs]
    text = f"{window_tokens:>7,} window: {', '.join(rungs)}"
    print(text)
    if resolved.dropped:
        print(f"dropped there, as tokens left make no sense: {', '.join(resolved.dropped)}")


def main() -> None:
    show(200_000)
    show(32_000)
    config = ContextConfig(context_window_tokens=200_000, ladder=LADDER)
    with create_context_monitor("climber", config) as monitor:
        for tokens in (90_000, 110_000, 150_000, 191_000):
            action = monitor.report_usage(input_tokens=tokens)
            if action.changed:
                print(f"{action.level:<11} {action.action}")


if __name__ == "__main__":
    main()
