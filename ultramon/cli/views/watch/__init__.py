"""`ultramon watch`: the application on a terminal, else the table; only `app` loads Textual."""
