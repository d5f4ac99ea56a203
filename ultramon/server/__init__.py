"""The HTTP API: `create_app` is the application, `ultramon serve` runs it."""
