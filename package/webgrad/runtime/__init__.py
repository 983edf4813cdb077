"""Executors: where a program runs."""
