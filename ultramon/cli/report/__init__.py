"""`ultramon report`: what the transcripts on this machine say about context windows."""
