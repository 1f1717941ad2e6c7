"""What the API answers, as structs: one model for JSON, OpenAPI, the client and the CLI.

Ids are decimal strings in JSON (JavaScript cannot hold 63 bits); times are ISO 8601 in UTC.
"""
