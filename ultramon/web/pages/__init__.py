"""The content of each page as an element tree; knows no HTTP."""
