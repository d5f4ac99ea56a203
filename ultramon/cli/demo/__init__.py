"""`ultramon demo`: agents that fill up, hand over and lose nothing, in a minute."""
