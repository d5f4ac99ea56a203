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
        (2.41, 5.25, 8.42),
        (5.71, 12.13, 17.22),
        (12.91, 23.54, 33.15),
        (27.26, 43.84, 56.05),
        (39.81, 65.91, 84.13),
        (73.76, 104.27, 128.99),
    ),
    (
        (0.0, 0.0, 0.8),
        (0.06, 1.78, 3.35),
        (1.25, 5.25, 8.63),
        (2.93, 12.13, 17.85),
        (8.48, 23.54, 34.38),
        (18.71, 43.84, 58.56),
        (25.02, 65.91, 87.94),
        (45.34, 104.27, 135.63),
    ),
    (
        (0.0, 0.0, 0.92),
        (0.1, 1.78, 4.25),
        (1.46, 5.25, 10.51),
        (3.68, 12.13, 21.12),
        (9.7, 23.54, 39.88),
        (20.68, 43.84, 67.85),
        (29.49, 65.91, 105.04),
        (54.88, 104.27, 159.33),
    ),
    (
        (0.0, 0.0, 1.26),
        (0.24, 1.78, 4.72),
        (1.79, 5.25, 11.77),
        (4.51, 12.13, 23.89),
        (11.07, 23.54, 43.75),
        (22.84, 43.84, 72.93),
        (34.63, 65.91, 118.12),
        (64.95, 104.27, 175.06),
    ),
    (
        (0.0, 0.0, 1.26),
        (0.0, 1.78, 4.72),
        (1.1, 5.25, 11.77),
        (2.85, 12.13, 23.89),
        (7.73, 23.54, 43.75),
        (17.01, 43.84, 72.93),
        (23.62, 65.91, 118.12),
        (41.81, 104.27, 175.06),
    ),
)
HOLDS_AT_DISTANCE = (True, False, False, True, False)
HOLDS_FOR_HOST = {"": True, "claude-code": True, "codex": True, "opencode": False}
