"""The server's duties, each a run_once(), and what they share."""
