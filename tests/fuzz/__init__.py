"""Random small networks of other people's habits, trained by us and by plain PyTorch."""
