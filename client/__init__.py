"""The Flower client side: decode, hand over to fedpart, encode."""
