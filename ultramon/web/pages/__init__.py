"""What each page shows, as element trees; knows no HTTP."""
