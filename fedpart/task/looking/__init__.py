"""Looking: side effects of a network's passes that would reach other clients, or be lost."""
