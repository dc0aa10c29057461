"""Accounts in PostgreSQL, for servers on several hosts: the same promises as those of SQLite, kept over all of them."""
