"""`ultramon replay`: what a monitor would have said over a recording, and when."""
