"""What is computed: networks, their layers, hyperparameters inside of them, and likelihoods."""
