"""Accounts: API keys, quotas, rates, charges and the ledger."""
