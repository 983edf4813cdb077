"""Primitives, one class each; a module per family."""
