"""How an agent's program is started for one context, and what it says at the end."""
