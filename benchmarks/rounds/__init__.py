"""Rounds: what a round costs on each engine, beside a bare loop, stock Flower and pfl."""
