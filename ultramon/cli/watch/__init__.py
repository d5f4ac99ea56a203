"""`ultramon watch` as an application on a terminal; only `app` loads Textual."""
