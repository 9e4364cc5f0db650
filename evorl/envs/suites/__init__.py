"""Adapters of environments from other libraries."""
