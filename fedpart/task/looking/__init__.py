"""Looking: what a network does in its first passes that training would do to other clients, or lose."""
