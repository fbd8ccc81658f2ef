"""What a round costs on a card: ``python -m benchmarks.card.rounds``, within six minutes."""

from benchmarks.rounds.bench import main

if __name__ == "__main__":
    main("cuda")
