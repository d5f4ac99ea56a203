"""Tables of the forecast, written by scripts/fit_forecast.py; not for editing.

By host (``""`` = all of them together) the mean tokens that a turn adds. By the distance to a rung,
whose rows end at these shares of the context limit: low end, middle and high end of the turns where
1, 2, 4, … were to be expected, the one that reaches the rung among them. And whether the range kept
its goals on repositories that were left out, by distance and by host. See benchmarks/RESULTS.md.
"""

TOKENS_PER_TURN = {"": 1614, "claude-code": 1576, "codex": 2046, "opencode": 1544}
DISTANCES = (0.05, 0.1, 0.2, 0.4)
ENDS = (
    (
        (0.0, 0.0, 0.75),
        (0.36, 1.78, 3.33),
        (2.43, 5.25, 8.42),
        (5.83, 12.16, 17.22),
        (12.93, 23.77, 33.15),
        (27.64, 43.84, 56.31),
        (38.02, 66.19, 84.16),
        (65.51, 98.62, 123.65),
    ),
    (
        (0.0, 0.0, 0.8),
        (0.07, 1.78, 3.37),
        (1.3, 5.25, 8.63),
        (2.93, 12.16, 17.88),
        (8.58, 23.77, 34.38),
        (19.02, 43.84, 58.56),
        (25.72, 66.19, 87.98),
        (36.24, 98.62, 128.16),
    ),
    (
        (0.0, 0.0, 0.84),
        (0.12, 1.78, 3.96),
        (1.46, 5.25, 9.9),
        (3.68, 12.16, 20.41),
        (9.91, 23.77, 38.56),
        (21.4, 43.84, 65.1),
        (30.53, 66.19, 103.0),
        (50.73, 98.62, 146.4),
    ),
    (
        (0.0, 0.0, 1.26),
        (0.24, 1.78, 4.74),
        (1.79, 5.25, 11.81),
        (4.59, 12.16, 23.96),
        (11.18, 23.77, 43.75),
        (23.75, 43.84, 72.93),
        (34.47, 66.19, 118.12),
        (56.11, 98.62, 172.8),
    ),
    (
        (0.0, 0.0, 1.26),
        (0.07, 1.78, 4.74),
        (1.3, 5.25, 11.81),
        (2.93, 12.16, 23.96),
        (8.58, 23.77, 43.75),
        (19.02, 43.84, 72.93),
        (25.72, 66.19, 118.12),
        (36.24, 98.62, 172.8),
    ),
)
HOLDS_AT_DISTANCE = (True, False, True, True, False)
HOLDS_FOR_HOST = {"": True, "claude-code": True, "codex": False, "opencode": False}
