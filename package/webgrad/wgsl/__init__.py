"""WGSL text: the numeric prelude, the writer, and one template per kernel family."""
