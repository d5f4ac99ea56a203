"""Files, locks, clocks, processes and text: no agent, standard library only."""
