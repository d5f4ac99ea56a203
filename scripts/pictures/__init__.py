"""The pictures of the documents, from real runs: `make pictures`."""
