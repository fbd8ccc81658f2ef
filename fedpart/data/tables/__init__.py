"""Tables: files with a row per example, and what their columns mean."""
