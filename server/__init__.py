"""The Flower server side: decode, hand over to fedpart, encode."""
