"""Looking: what a network does in its first passes that training it on clients would do to others, or lose."""
