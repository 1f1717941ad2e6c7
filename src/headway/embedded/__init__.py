"""Headway on one machine: a private PostgreSQL, and `headway up` around it."""
